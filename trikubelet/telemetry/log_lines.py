"""What a line of the log looks like: text for people, or one JSON object. Pure.

These are the forms of structlog's console and JSON renderers, which wrote the lines before: a logger that renders what
it is given needs little of a library, and that one loaded asyncio, greenlet and rich (see docs/decisions.md). Other
than theirs, no text here steers a terminal or begins a line of its own: a container's words are in these fields.
"""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any, Final

from trikubelet.formats.terminal_text import plain, plain_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

LEVEL_WIDTH: Final = 9
EVENT_WIDTH: Final = 40
_QUOTED: Final = frozenset(" \t=\r\n\"'")
"""A text with one of these is written as Python writes it."""
_RESET, _BRIGHT, _DIM = "\033[0m", "\033[1m", "\033[2m"
_RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN = (f"\033[{number}m" for number in range(31, 37))
_OF_LEVEL: Final = {"debug": _GREEN, "info": _GREEN, "warning": _YELLOW, "error": _RED}


def with_facts(level: str, event: str, fields: Mapping[str, object], now: datetime) -> dict[str, Any]:
    """All fields of a line, in the order in which JSON has them. An exception in `exc_info` becomes its traceback."""
    line: dict[str, Any] = {name: value for name, value in fields.items() if name != "exc_info"}
    line |= {"event": event, "level": level, "timestamp": now.isoformat().replace("+00:00", "Z")}
    fault = fields.get("exc_info")
    if isinstance(fault, BaseException):
        line["exception"] = "".join(traceback.format_exception(fault)).removesuffix("\n")
    return line


def as_json(line: Mapping[str, Any]) -> str:
    """One object. What JSON has no words for is written as Python writes it."""
    return plain_json(json.dumps(line, default=repr))


def as_text(line: Mapping[str, Any]) -> str:
    """Time, level, event and logger, then the other fields by their names; an exception's traceback below."""
    text = (
        f"{line['timestamp']} [{line['level']:{LEVEL_WIDTH}}] {plain(line['event']):{EVENT_WIDTH}} [{line['logger']}]"
    )
    others = "".join(f" {name}={_shown(value)}" for name, value in _others(line))
    return f"{text}{others}".rstrip(" ") + _below(line)


def as_colored_text(line: Mapping[str, Any]) -> str:
    """The same for a terminal."""
    level = f"{_OF_LEVEL[line['level']]}{_BRIGHT}{line['level']:{LEVEL_WIDTH}}{_RESET}"
    event = f"{_BRIGHT}{plain(line['event']):{EVENT_WIDTH}}{_RESET}"
    logger = f"[{_RESET}{_BRIGHT}{_BLUE}{line['logger']}{_RESET}]{_RESET}"
    text = f"{_DIM}{line['timestamp']}{_RESET} [{level}] {event} {logger}"
    others = (f" {_CYAN}{name}{_RESET}={_MAGENTA}{_shown(value)}{_RESET}" for name, value in _others(line))
    return text + "".join(others) + _below(line)


def _others(line: Mapping[str, Any]) -> list[tuple[str, Any]]:
    placed = ("timestamp", "level", "event", "logger", "exception")
    return sorted((name, value) for name, value in line.items() if name not in placed)


def _shown(value: object) -> str:
    bare = isinstance(value, str) and value.isprintable() and _QUOTED.isdisjoint(value)
    return str(value) if bare else plain(repr(value))


def _below(line: Mapping[str, Any]) -> str:
    """Indented, since an exception's text may have lines that look like lines of this log."""
    if "exception" not in line:
        return ""
    return "".join(f"\n  {plain(part)}" for part in line["exception"].split("\n"))
