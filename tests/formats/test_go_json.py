from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trikubelet.formats.go_json import loads

ANY_CHARACTER = st.characters(codec=None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(ANY_CHARACTER),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(ANY_CHARACTER), inner),
)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"\uDFFF and on"', "\ufffd and on"),
        (rb'{"\udc00": ["\ud800\ud800", 1, null, true]}', {"\ufffd": ["\ufffd\ufffd", 1, None, True]}),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\\ud800"', "\\ud800"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        (b'"\xff"', "\ufffd"),
        (b'"\xe2\x82"', "\ufffd"),
        (b'"\xf0\x9f\x98\x80"', "\U0001f600"),
    ],
)
def test_strings_are_unicode(raw: bytes, value: Any) -> None:
    assert loads(raw) == value


@given(VALUES)
def test_what_can_be_written_is_read_as_it_was(value: Any) -> None:
    read = loads(json.dumps(value).encode())
    json.dumps(read, ensure_ascii=False).encode()
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert read == value


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b"\xef\xbb\xbf1"])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        loads(raw)
