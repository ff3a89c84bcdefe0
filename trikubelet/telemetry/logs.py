"""Structured logs: one line an event, bound to its pod. What a line looks like is in `log_lines`.

A logger made before the configuration follows it. Everything goes to stderr, unless the streams are split: then errors
go there, and all else to stdout, which may be buffered. What is buffered is written before the next error, by `flush`,
and at the end of the process.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import attrs

from trikubelet.formats.values import define
from trikubelet.telemetry.log_lines import as_colored_text, as_json, as_text, with_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

LogFormat = Literal["text", "json"]

# The kubelet's -v: 0 and 1 are notices for operators, 2 what happens to pods, 4 and more how it happens.
_LEVEL_OF_VERBOSITY = ((4, 10), (0, 20))
_NUMBERS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_NEVER: Final = 50


@define
class _Thresholds:
    """Which lines are written."""

    level: int = 0
    patterns: tuple[tuple[str, int], ...] = ()
    """Of loggers' names, with their levels; the first that matches counts."""
    _known: dict[str, int] = attrs.field(factory=dict)

    def of(self, name: str) -> int:
        if name not in self._known:
            matching = (level for pattern, level in self.patterns if fnmatchcase(name, pattern))
            self._known[name] = next(matching, self.level)
        return self._known[name]


@define
class _Streams:
    """Where lines are written."""

    render: Callable[[Mapping[str, Any]], str]
    error_stream: TextIO
    info_stream: TextIO | None = None
    """Of all lines but errors; None: the other one."""
    buffer: int = 0
    """Characters that may wait to be written; 0: none."""
    _waiting: list[str] = attrs.field(factory=list)
    _size: int = 0

    def write(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        # A line is written whole: other threads write, too.
        line = f"{self.render(with_facts(level, event, fields, datetime.now(UTC)))}\n"
        if level == "error" or self.info_stream is None:
            self.flush()
            self.error_stream.write(line)
            self.error_stream.flush()
            return
        self._waiting.append(line)
        self._size += len(line)
        if self._size > self.buffer:
            self.flush()

    def flush(self) -> None:
        if self.info_stream is None:
            return
        text, self._waiting, self._size = "".join(self._waiting), [], 0
        self.info_stream.write(text)
        self.info_stream.flush()


Write = Callable[[str, str, Mapping[str, object]], None]
"""Takes a line: its level, its event and its fields, of which `logger` is one."""

_thresholds = _Thresholds()
_streams = _Streams(as_text, sys.stderr)
_taken: Write | None = None
"""Who is given lines instead."""
_notice: Write | None = None
"""Who is given warnings and errors too."""


def set_verbosity(verbosity: int) -> None:
    """Change what is logged from now on. Raises ValueError for a negative one."""
    global _thresholds
    _thresholds = _Thresholds(_level(verbosity), _thresholds.patterns)


def flush() -> None:
    """Write what is buffered."""
    with suppress(OSError, ValueError):  # ValueError: somebody has closed the stream
        _streams.flush()


def _level(verbosity: int) -> int:
    for least, level in _LEVEL_OF_VERBOSITY:
        if verbosity >= least:
            return level
    raise ValueError(f"expected a verbosity of 0 or more, got {verbosity}")


def configure_logging(
    log_format: LogFormat,
    verbosity: int,
    *,
    by_name: tuple[tuple[str, int], ...] = (),
    split: bool = False,
    buffer: int = 0,
    file: TextIO | None = None,
    notice: Write | None = None,
) -> None:
    """Write every logger's lines as text for people, or as one JSON object a line.

    `by_name`: verbosities of loggers whose names a pattern matches. `split` sends errors to stderr and all else to
    stdout, where up to `buffer` characters may wait. `file`: instead of stderr. `notice` is given warnings and errors,
    too.
    """
    global _thresholds, _streams, _notice
    _notice = notice
    _thresholds = _Thresholds(_level(verbosity), tuple((pattern, _level(least)) for pattern, least in by_name))
    flush()
    out = file or sys.stderr
    if split and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr writes what no UTF-8 can say
    as_lines = as_colored_text if out.isatty() else as_text
    render = as_json if log_format == "json" else as_lines
    _streams = _Streams(render, out, sys.stdout if split else None, buffer)


atexit.register(flush)


def silence() -> None:
    """Write nothing from now on."""
    global _thresholds
    _thresholds = _Thresholds(_NEVER)


@contextmanager
def only_warnings() -> Iterator[None]:
    """Write warnings and errors in here, and nothing else."""
    global _thresholds
    before, _thresholds = _thresholds, _Thresholds(_NUMBERS["warning"])
    try:
        yield
    finally:
        _thresholds = before


@contextmanager
def given_to(write: Write) -> Iterator[None]:
    """Lines are given to `write` in here, and written nowhere."""
    global _taken
    before, _taken = _taken, write
    try:
        yield
    finally:
        _taken = before


@contextmanager
def configured_as_before() -> Iterator[None]:
    """What is configured in here counts until its end."""
    global _thresholds, _streams, _notice
    before = _thresholds, _streams, _notice
    try:
        yield
    finally:
        flush()
        _thresholds, _streams, _notice = before


class Logger:
    """A named logger. Keyword fields become part of the line; `bind` returns one with fields fixed."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, **fields: object) -> None:
        self._name = name
        self._fields = fields

    def bind(self, **fields: object) -> Logger:
        return Logger(self._name, **{**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        self._emit("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._emit("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._emit("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """`exc_info=exc` adds the traceback."""
        self._emit("error", event, fields)

    def _emit(self, level: str, event: str, fields: dict[str, object]) -> None:
        if _NUMBERS[level] < _thresholds.of(self._name):
            return
        if _notice is not None and _NUMBERS[level] >= _NUMBERS["warning"]:
            _notice(level, event, self._fields | fields)
        # When the log has no reader any more, or the disk is full, the pods matter more than the line.
        with suppress(OSError):
            (_taken or _streams.write)(level, event, {"logger": self._name, **self._fields, **fields})


def get_logger(name: str) -> Logger:
    """A logger for the part of the agent called `name`."""
    return Logger(name)
