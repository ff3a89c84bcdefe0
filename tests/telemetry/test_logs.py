"""Where lines of the log go, and which are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from trikubelet.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.telemetry.logs import LogFormat


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    with logs.configured_as_before():
        yield


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def say(name: str) -> None:
    log = logs.get_logger(name)
    log.debug(f"{name} debug")
    log.info(f"{name} info")


@pytest.mark.parametrize(
    ("verbosity", "by_name", "written"),
    [
        (0, (), ["status info", "pleg info"]),
        (4, (), ["status debug", "status info", "pleg debug", "pleg info"]),
        (0, (("status", 4),), ["status debug", "status info", "pleg info"]),
        (0, (("st*", 5),), ["status debug", "status info", "pleg info"]),
        (0, (("stat", 5),), ["status info", "pleg info"]),
        (4, (("pl?g", 0),), ["status debug", "status info", "pleg info"]),
        (0, (("status", 0), ("*", 9)), ["status info", "pleg debug", "pleg info"]),
    ],
)
def test_how_much_is_written_is_said_for_all_and_for_some(
    verbosity: int, by_name: tuple[tuple[str, int], ...], written: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure_logging("json", verbosity, by_name=by_name)
    say("status")
    say("pleg")
    captured = capsys.readouterr()
    assert events(captured.err) == written
    assert captured.out == ""


def test_the_level_of_all_is_changed_and_that_of_some_stays(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logging("json", 4, by_name=(("status", 0),))
    logs.set_verbosity(5)
    say("status")
    say("pleg")
    logs.set_verbosity(0)
    say("pleg")
    assert events(capsys.readouterr().err) == ["status info", "pleg debug", "pleg info", "pleg info"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_errors_have_a_stream_of_their_own_when_it_is_split(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure_logging(log_format, 4, split=True)
    log = logs.get_logger("test")
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)(f"a {level} line")
    captured = capsys.readouterr()
    assert [f"a {level} line" in captured.out for level in ("debug", "info", "warning", "error")] == [True] * 3 + [
        False
    ]
    assert "a error line" in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("buffer", [0, 1000])
def test_what_no_utf8_can_say_is_written_to_either_stream(capsys: pytest.CaptureFixture[str], buffer: int) -> None:
    logs.configure_logging("text", 0, split=True, buffer=buffer)
    log = logs.get_logger("test")
    log.info("a file", path="/\udcff.sock")
    log.info("another")
    logs.flush()
    out = capsys.readouterr().out
    assert "path='/\\udcff.sock'" in out
    assert "another" in out


def test_what_is_no_error_may_wait_until_there_is_more_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logging("json", 0, split=True, buffer=1000)
    log = logs.get_logger("test")
    log.info("first")
    assert capsys.readouterr().out == ""
    log.info("x" * 1000)
    assert events(capsys.readouterr().out) == ["first", "x" * 1000]
    log.info("second")
    logs.flush()
    assert events(capsys.readouterr().out) == ["second"]
    log.info("before")
    log.error("an error")
    captured = capsys.readouterr()
    assert (events(captured.out), events(captured.err)) == (["before"], ["an error"])
    log.info("last")
    logs.configure_logging("json", 0)
    assert events(capsys.readouterr().out) == ["last"]
