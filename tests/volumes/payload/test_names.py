"""Which paths a file of a volume may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.volumes.payload.files import PayloadError, PayloadFile
from trikubelet.volumes.payload.names import clean_path, with_clean_paths


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("a", "a"),
        ("a/b/c", "a/b/c"),
        ("./a//b/./c/", "a/b/c"),
        ("a..b/..c", "a..b/..c"),
        ("...", None),
        (".a", ".a"),
        ("x" * 255, "x" * 255),
    ],
)
def test_a_path_is_taken_in_its_shortest_form(path: str, clean: str | None) -> None:
    if clean is None:
        with pytest.raises(PayloadError):
            clean_path(path)
    else:
        assert clean_path(path) == clean


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", 'invalid path: must not be empty: ""'),
        ("/a", "invalid path: must be relative path: /a"),
        ("../a", "invalid path: must not contain '..': ../a"),
        ("a/../b", "invalid path: must not contain '..': a/../b"),
        ("..", "invalid path: must not contain '..': .."),
        ("..data", "invalid path: must not start with '..': ..data"),
        ("..a/b", "invalid path: must not start with '..': ..a/b"),
        ("./..data", "invalid path: must not start with '..': ./..data"),
        ("x" * 256, "invalid path: filenames must be less than or equal to 255 characters"),
        ("ä" * 128, "invalid path: filenames must be less than or equal to 255 characters"),
        ("a/" * 2048 + "b", "invalid path: must be less than or equal to 4096 characters"),
        (".", "invalid path: must name a file: '.'"),
        ("a\0b", "invalid path: must name a file: 'a\\x00b'"),
        ("\ud800", "invalid path: must be text: '\\ud800'"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str, problem: str) -> None:
    with pytest.raises(PayloadError) as refused:
        clean_path(path)
    assert str(refused.value) == problem


def test_a_file_below_a_file_is_refused() -> None:
    file = PayloadFile(b"", 0o644)
    with pytest.raises(PayloadError, match="invalid path: a/b/c is below a file: a/b"):
        with_clean_paths({"a/b/c": file, "./a/b": file})
    assert list(with_clean_paths({"a/b": file, "a/bc": file, "ab": file})) == ["a/b", "a/bc", "ab"]


@given(st.text(alphabet="./ab\0\udc80", max_size=12))
def test_what_is_not_refused_stays_inside(path: str) -> None:
    try:
        clean = clean_path(path)
    except PayloadError:
        return
    assert not clean.startswith(("/", ".."))
    assert "" not in (parts := clean.split("/"))
    assert not {".", ".."} & set(parts)
    assert clean_path(clean) == clean
