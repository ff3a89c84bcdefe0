"""Follows the kernel's log and says when the machine ran out of memory (kubelet: `oom_watcher_linux.go`).

Only what happens from now on counts: an agent that starts again would otherwise report every kill since the boot. A
log that cannot be read (a container without the device, `kernel.dmesg_restrict` and no CAP_SYSLOG) is said once, and
the agent runs on without these events.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.node.oom.kernel_log import OomReader, message_of
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("oom")

KERNEL_LOG: Final = Path("/dev/kmsg")
SYSTEM_OOM: Final = "SystemOOM"
_LARGEST_RECORD: Final = 8192
_AT_A_TIME: Final = 100
"""Records read before others get a turn: a kernel in trouble writes thousands."""


async def watch_kernel_log(recorder: EventRecorder, path: Path = KERNEL_LOG) -> None:
    """Record an event for every kill that concerns the whole machine, until cancelled or the log is at its end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(descriptor, 0, os.SEEK_END)
            await follow(descriptor, recorder)
        finally:
            os.close(descriptor)
        problem = "it ended"
    except OSError as error:
        problem = str(error)
    log.warning(
        "no event will tell when this machine runs out of memory: the kernel's log cannot be read", error=problem
    )


async def follow(descriptor: int, recorder: EventRecorder) -> None:
    """Read records from a non-blocking descriptor, one with each read, until its end. Raises OSError."""
    reader = OomReader()
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        for _ in range(_AT_A_TIME):
            try:
                record = os.read(descriptor, _LARGEST_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The kernel has overwritten records before they were read; the next read goes on after the gap.
                reader.records_lost()
                continue
            if not record:
                return
            kill = reader.take(message_of(record))
            if kill is not None and kill.of_the_machine:
                message = f"System OOM encountered, victim process: {kill.process}, pid: {kill.pid}"
                recorder.node_event(EventType.WARNING, SYSTEM_OOM, message)
