"""Lines of the log as values."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trikubelet.telemetry.logs import given_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """The lines that are written in here: their fields, with `event` and `log_level`. They are written nowhere."""
    lines: list[dict[str, Any]] = []

    def take(level: str, event: str, fields: Mapping[str, object]) -> None:
        lines.append({**fields, "event": event, "log_level": level})

    with given_to(take):
        yield lines
