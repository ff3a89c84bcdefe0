"""Structured logs: one line an event, bound to its pod.

`structlog` costs tens of milliseconds to import, so it is loaded when logging is configured or first used, never at
import of the agent's modules. A logger made before the configuration follows it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Literal

LogFormat = Literal["text", "json"]

# The kubelet's -v: 0 and 1 are notices for operators, 2 what happens to pods, 4 and more how it happens.
_LEVEL_OF_VERBOSITY = ((4, 10), (0, 20))


def set_verbosity(verbosity: int) -> None:
    """Change what is logged from now on. Raises ValueError for a negative one."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_level(verbosity)))


def _level(verbosity: int) -> int:
    for least, level in _LEVEL_OF_VERBOSITY:
        if verbosity >= least:
            return level
    raise ValueError(f"expected a verbosity of 0 or more, got {verbosity}")


def configure_logging(log_format: LogFormat, verbosity: int) -> None:
    """Send every logger's lines to stderr, as text for people or one JSON object a line."""
    import structlog

    renderer: Any
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=40)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level(verbosity)),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
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
        import structlog

        # When the log has no reader any more, or the disk is full, the pods matter more than the line.
        with suppress(OSError):
            getattr(structlog.get_logger(), level)(event, logger=self._name, **{**self._fields, **fields})


def get_logger(name: str) -> Logger:
    """A logger for the part of the agent called `name`."""
    return Logger(name)
