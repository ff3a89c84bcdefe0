"""Text of others on a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.terminal_text import cut, padded, plain, plain_json, plain_lines, width

BAD = "\N{REPLACEMENT CHARACTER}"
ANY = st.text(st.characters(), max_size=60)
"""Lone surrogates, too."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("as it is", "as it is"),
        ("\x1b]0;title\x07", f"{BAD}]0;title{BAD}"),
        ("a\nb\r\nc\n", "a b c"),
        ("a\rb", f"a{BAD}b"),
        ("a\tb", "a       b"),
        ("\x7f", BAD),
        ("\x9b2J", f"{BAD}2J"),
        ("\u2028\u2029\u0085", BAD * 3),
        ("\u202eevil\u2066", f"{BAD}evil{BAD}"),
        ("\udc9b", BAD),
        ("no\u00a0break\u3000wide", "no break wide"),
        ("日本 ü é 🙂", "日本 ü é 🙂"),
    ],
)
def test_only_what_a_terminal_shows_is_left(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_line_feeds_of_ours_stay() -> None:
    assert plain_lines("one\ntwo\x1b[2J\n\n") == f"one\ntwo{BAD}[2J\n\n"


@given(ANY)
def test_no_text_steers_a_terminal(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert not {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert plain(shown) == shown
    shown.encode()
    assert plain_lines(text).count("\n") == text.count("\n")


@given(st.recursive(st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_json_stays_exact(value: object) -> None:
    text = plain_json(json.dumps(value))
    assert text.isprintable()
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("\uff46", 2), ("🙂", 2), ("é", 1)]
)
def test_the_columns_of_a_text(text: str, columns: int) -> None:
    assert width(text) == columns


@given(ANY, st.integers(0, 80))
def test_a_text_is_padded_and_cut_by_columns(text: str, columns: int) -> None:
    shown = plain(text)
    assert width(padded(shown, columns)) == max(width(shown), columns)
    assert width(cut(shown, columns)) <= columns
    assert shown.startswith(cut(shown, columns))
    if width(shown) <= columns:
        assert cut(shown, columns) == shown
