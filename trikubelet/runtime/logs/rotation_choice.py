"""The files of a container's log: which are kept, and their names. Pure; the rules are the kubelet's
(`container_log_manager.go`).

    0.log                         written to by the runtime
    0.log.20260131-120000         the newest rotated one, not compressed, for programs that still read it
    0.log.20260131-110000.gz      older ones
    0.log.20260131-110000.tmp     being compressed; or left behind by an agent that was killed then

The names sort as the files follow each other. `node_api.log_file` and log collectors rely on that, so a clock that was
set back must not disturb it. The time in them is UTC: a local time goes back once a year.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPRESSED: Final = ".gz"
TEMPORARY: Final = ".tmp"
_STAMP: Final = "%Y%m%d-%H%M%S"
_ROTATED: Final = re.compile(r"(?P<stamp>\d{8}-\d{6})(?P<suffix>\.gz|\.tmp|)", re.ASCII)
_SECOND: Final = timedelta(seconds=1)


@frozen
class LogRotationPolicy:
    """When logs are rotated, and how many files each may have."""

    max_size: int = 10 * 2**20
    """Bytes from which on a log is rotated; negative: never (containerLogMaxSize)."""
    max_files: int = 5
    """Files of one container, the one that is written to included; at least 2 (containerLogMaxFiles)."""
    max_workers: int = 1
    """Rotations at a time (containerLogMaxWorkers)."""
    interval: float = 10.0
    """Seconds between two looks (containerLogMonitorInterval)."""

    @property
    def rotates(self) -> bool:
        return self.max_size >= 0

    def is_due(self, size: int) -> bool:
        """Whether a log of so many bytes is to be rotated. An empty one never is."""
        return self.rotates and size >= max(1, self.max_size)


@frozen
class Tidying:
    """The work on the rotated files of a log."""

    remove: tuple[str, ...]
    """Left-overs, and the oldest beyond the policy's number."""
    compress: tuple[str, ...]


def tidy(log_name: str, names: Iterable[str], policy: LogRotationPolicy) -> Tidying:
    """Decide on the files beside a log that is about to be rotated. Files with other names are left alone."""
    rotated = sorted(name for name in names if _match(log_name, name) is not None)
    present = frozenset(rotated)
    # A file that has been compressed is not needed any more, and goes after its compressed one is complete.
    left_over = [name for name in rotated if name.endswith(TEMPORARY) or name + COMPRESSED in present]
    useful = [name for name in rotated if name not in left_over]
    # The log and the file that it will become count too.
    excess = max(0, len(useful) - max(0, policy.max_files - 2))
    kept = useful[excess:]
    return Tidying((*left_over, *useful[:excess]), tuple(name for name in kept if not name.endswith(COMPRESSED)))


def rotated_name(log_name: str, names: Iterable[str], now: datetime) -> str:
    """The name for a log that is rotated now: after all that are there, whatever the clock says."""
    stamps = [match["stamp"] for name in names if (match := _match(log_name, name)) is not None]
    moment = now.astimezone(UTC)
    stamp = moment.strftime(_STAMP)
    newest = max(stamps, default="")
    if stamp <= newest:
        stamp = _after(newest)
    return f"{log_name}.{stamp}"


def _match(log_name: str, name: str) -> re.Match[str] | None:
    prefix = f"{log_name}."
    return _ROTATED.fullmatch(name, len(prefix)) if name.startswith(prefix) else None


def _after(stamp: str) -> str:
    """The stamp of the next second; of digits that are no date, the next number."""
    try:
        return (datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC) + _SECOND).strftime(_STAMP)
    except (ValueError, OverflowError):
        digits = f"{int(stamp.replace('-', '')) + 1:014}"
        return f"{digits[:8]}-{digits[8:]}"
