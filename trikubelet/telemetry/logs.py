"""Structured logs: one line an event, bound to its pod.

`structlog` costs tens of milliseconds to import, so it is loaded when logging is configured or first used, never at
import of the agent's modules. A logger made before the configuration follows it.

Everything goes to stderr, unless the streams are split: then errors go there, and all else to stdout, which may be
buffered. What is buffered is written before the next error, by `flush`, and at the end of the process.
"""

from __future__ import annotations

import atexit
import sys
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LogFormat = Literal["text", "json"]
Notice: TypeAlias = "Callable[[str, str, Mapping[str, object]], None]"

# The kubelet's -v: 0 and 1 are notices for operators, 2 what happens to pods, 4 and more how it happens.
_LEVEL_OF_VERBOSITY = ((4, 10), (0, 20))
_NUMBERS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


@attrs.define
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


@attrs.define
class _SplitStreams:
    """What structlog writes through when errors have a stream of their own."""

    info_stream: TextIO
    error_stream: TextIO
    buffer: int
    """Characters that may wait to be written; 0: none."""
    _waiting: list[str] = attrs.field(factory=list)
    _size: int = 0

    def __call__(self, *_: Any) -> _SplitStreams:
        return self

    def info(self, line: str) -> None:
        self._waiting.append(f"{line}\n")
        self._size += len(line) + 1
        if self._size > self.buffer:
            self.flush()

    debug = warning = msg = info

    def error(self, line: str) -> None:
        self.flush()
        print(line, file=self.error_stream, flush=True)

    def flush(self) -> None:
        text, self._waiting, self._size = "".join(self._waiting), [], 0
        self.info_stream.write(text)
        self.info_stream.flush()


_thresholds = _Thresholds()
_split: _SplitStreams | None = None
_notice: Notice | None = None


def set_verbosity(verbosity: int) -> None:
    """Change what is logged from now on. Raises ValueError for a negative one."""
    global _thresholds
    _thresholds = _Thresholds(_level(verbosity), _thresholds.patterns)


def flush() -> None:
    """Write what is buffered."""
    if _split is not None:
        with suppress(OSError, ValueError):  # ValueError: somebody has closed the stream
            _split.flush()


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
    notice: Notice | None = None,
) -> None:
    """Write every logger's lines as text for people, or as one JSON object a line.

    `by_name`: verbosities of loggers whose names a pattern matches. `split` sends errors to stderr and all else to
    stdout, where up to `buffer` characters may wait. `file`: instead of stderr. `notice` is called with the level, the
    event and the fields of each warning and error that is written.
    """
    import structlog

    global _thresholds, _split, _notice
    _notice = notice
    _thresholds = _Thresholds(_level(verbosity), tuple((pattern, _level(least)) for pattern, least in by_name))
    flush()
    if split and _split is None:
        atexit.register(flush)
    _split = _SplitStreams(sys.stdout, sys.stderr, buffer) if split else None
    renderer: Any
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=file is None and sys.stderr.isatty(), pad_event_to=40)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_NUMBERS["debug"]),
        logger_factory=_split or structlog.PrintLoggerFactory(file=file or sys.stderr),
        cache_logger_on_first_use=False,
    )


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
        import structlog

        if _notice is not None and _NUMBERS[level] >= _NUMBERS["warning"]:
            _notice(level, event, self._fields | fields)
        # When the log has no reader any more, or the disk is full, the pods matter more than the line.
        with suppress(OSError):
            getattr(structlog.get_logger(), level)(event, logger=self._name, **{**self._fields, **fields})


def get_logger(name: str) -> Logger:
    """A logger for the part of the agent called `name`."""
    return Logger(name)
