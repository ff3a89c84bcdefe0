"""What commands print for people."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo_wrapped

if TYPE_CHECKING:
    import pytest

SENTENCE = "  db: the image localhost/some-thing cannot be pulled"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_sentence_is_broken_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    echo_wrapped(SENTENCE)
    assert screen.getvalue().splitlines() == [
        "  db: the image",
        "    localhost/some-thing",
        "    cannot be pulled",
    ]


def test_elsewhere_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    echo_wrapped(SENTENCE)
    CommandError("x " * 100).show()
    out, err = capsys.readouterr()
    assert out == f"{SENTENCE}\n"
    assert err.count("\n") == 1


def test_an_error_fits_the_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    CommandError("no agent answers here: is one running?").show()
    assert screen.getvalue() == "Error: no agent answers here:\n  is one running?\n"
