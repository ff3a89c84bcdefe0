"""When the last shutdown of the node began and ended, in a file (kubelet: `nodeshutdown/storage.go`).

The file has the kubelet's name and form. An agent that starts while the node shuts down learns from it how much of the
time is gone; metrics show the last shutdown, also of one before the machine was started anew.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.api.timestamps import format_micro_time, parse_time
from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import write_atomically
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

log = get_logger("node-shutdown")

FILE: Final = "graceful_node_shutdown_state"
NEVER: Final = "0001-01-01T00:00:00Z"
"""How Go writes that there is no time."""
_READABLE: Final = 0o644


@frozen
class ShutdownTimes:
    """Of the last shutdown."""

    began: datetime | None = None
    ended: datetime | None = None
    """When the last pod had ended; None while it goes on, and of one that was never completed."""


class ShutdownRecord:
    """The file. Problems with it are logged, and change nothing about the shutdown."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is kept."""
        self._path = path
        self.times = ShutdownTimes()
        """As last read or written."""

    async def load(self) -> ShutdownTimes:
        if self._path is not None:
            self.times = await trio.to_thread.run_sync(_read, self._path)
        return self.times

    async def store(self, times: ShutdownTimes) -> None:
        self.times = times
        path = self._path
        if path is None:
            return
        content = json.dumps({"startTime": _wire(times.began), "endTime": _wire(times.ended)}, separators=(",", ":"))
        try:
            await trio.to_thread.run_sync(lambda: write_atomically(path, content.encode(), mode=_READABLE))
        except OSError as error:
            log.error("the times of the shutdown cannot be kept", path=str(path), error=str(error))


def _read(path: Path) -> ShutdownTimes:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ShutdownTimes()
    except (OSError, ValueError, RecursionError) as error:
        log.warning("what is kept of the last shutdown cannot be read", path=str(path), error=str(error))
        return ShutdownTimes()
    if not isinstance(document, dict):
        log.warning("what is kept of the last shutdown is no object", path=str(path))
        return ShutdownTimes()
    return ShutdownTimes(_time(document.get("startTime")), _time(document.get("endTime")))


def _time(value: Any) -> datetime | None:
    return parse_time(value) if isinstance(value, str) and value != NEVER else None


def _wire(time: datetime | None) -> str:
    return NEVER if time is None else format_micro_time(time)
