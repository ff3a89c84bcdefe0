"""Allocations of pods in a file: what they were given (`allocated_pods_state`), and what of it the runtime was set to.

The file is the kubelet's (`allocation/state`), so a node can be taken over in both directions:

    {"data": "{\"entries\":{\"<uid>\":{\"ContainerResources\":{…},\"PodLevelResources\":…}}}", "checksum": …}

Reading and setting is done in memory. A caller that needs it on the disk waits for `flush`; all callers at
one time share a write, and its failure. What is forgotten leaves the file with the next write: a pod too many in it
does no harm.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.allocation.model import PodAllocation, from_wire, to_wire
from trikubelet.formats.values import define
from trikubelet.linux.checkpoint import (
    BrokenCheckpointError,
    CheckpointError,
    GrowingChecksum,
    read_checkpoint,
    write_checkpoint,
)
from trikubelet.linux.durable_files import set_aside
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from pathlib import Path

log = get_logger("allocation")

ALLOCATED_FILE: Final = "allocated_pods_state"
ACTUATED_FILE: Final = "actuated_pods_state"
"""Names below the agent's root directory, as a kubelet's."""

_ENTRIES: Final = "entries"
_ADVICE: Final = {
    ALLOCATED_FILE: (
        "it told what resources pods were given; drain this node, delete the file, then start the agent again"
    ),
    ACTUATED_FILE: (
        "it told what the runtime was last told of pods' resources: move the file away, then start the agent again: "
        "pods go on running, and the runtime is asked what they have"
    ),
}


@define(eq=False)
class _Write:
    """A write on its way."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    failure: CheckpointError | None = None


class AllocationStore:
    """The allocations in one file, which only this class writes."""

    def __init__(
        self,
        entries: Mapping[str, PodAllocation],
        write: Callable[[str], Awaitable[None]],
        written: str | None = None,
    ) -> None:
        """Use `open`. `write` replaces what the file says, and raises CheckpointError; `written`: what it says."""
        self._write_out = write
        self._entries: dict[str, PodAllocation] = dict(entries)
        self._texts = {uid: f"{json.dumps(uid)}:{_text(allocation)}" for uid, allocation in entries.items()}
        """What changed last comes last: all that is before has been summed already."""
        self._written = written
        self._changes = 0
        """How many changes there were that have to be written."""
        self._durable_changes = 0
        self._writing: _Write | None = None

    @classmethod
    def open(cls, path: Path) -> AllocationStore:
        """Read the file, if there is one. Blocks on the disk. Raises CheckpointError, and OSError for its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        one_at_a_time, summed = trio.CapacityLimiter(1), GrowingChecksum()

        async def write(data: str) -> None:
            await trio.to_thread.run_sync(write_checkpoint, path, data, summed, limiter=one_at_a_time)

        return cls.of(path, lambda: read_checkpoint(path), write)

    @classmethod
    def open_or_begin_anew(cls, path: Path) -> AllocationStore:
        """As `open`, but a file that is not what was written is set aside, and nothing is known of any pod.

        For a node without a cluster: its pods have what their manifests say, and the runtime tells what it gave them.
        """
        try:
            return cls.open(path)
        except BrokenCheckpointError as error:
            log.error(
                "what pods were given cannot be read: the file is set aside, and the agent goes on from what runs",
                set_aside=str(set_aside(path)),
                problem=str(error.__cause__ or error),
            )
            return cls.open(path)

    @classmethod
    def of(cls, path: Path, read: Callable[[], str | None], write: Callable[[str], Awaitable[None]]) -> AllocationStore:
        """With what `read` says of the file, None when there is none. Raises what `read` raises, with advice."""
        try:
            data = read()
            return cls({} if data is None else _entries(path, data), write, data)
        except BrokenCheckpointError as error:
            raise BrokenCheckpointError(path, f"{error.problem}; {_ADVICE[path.name]}") from error

    def get(self, uid: str) -> PodAllocation | None:
        """The pod's allocation; the same object until another one is set."""
        return self._entries.get(uid)

    def uids(self) -> Collection[str]:
        return self._entries.keys()

    def set(self, uid: str, allocation: PodAllocation) -> None:
        """From now on `get` answers with this one. It is on the disk after the next `flush`."""
        if self._entries.get(uid) != allocation:
            self._entries[uid] = allocation
            self._texts.pop(uid, None)
            self._texts[uid] = f"{json.dumps(uid)}:{_text(allocation)}"
            self._changes += 1

    def forget(self, uid: str) -> None:
        """The pod is no more; no error if it was not known."""
        self._entries.pop(uid, None)
        self._texts.pop(uid, None)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        for uid in self._entries.keys() - set(uids):
            self.forget(uid)

    @property
    def is_durable(self) -> bool:
        """Whether all that was set is on the disk."""
        return self._durable_changes == self._changes

    async def flush(self) -> None:
        """Return when all that was set before is on the disk; at once when it is already.

        Raises CheckpointError when it cannot be written: then it is raised in all waiting callers, the old file is
        still there, and the next `flush` tries again. A write that has begun is not abandoned on cancellation: two at a
        time would spoil each other's file.
        """
        wanted = self._changes
        while self._durable_changes < wanted:
            if self._writing is None:
                await self._write()
            else:
                await self._wait_for(self._writing)

    async def _write(self) -> None:
        changes, data = self._changes, self._data()
        if data != self._written:
            self._writing = write = _Write()
            try:
                await self._write_out(data)
            except CheckpointError as error:
                write.failure = error
                raise
            finally:
                self._writing = None
                write.ended.set()
            self._written = data
        self._durable_changes = changes

    @staticmethod
    async def _wait_for(write: _Write) -> None:
        """Raises CheckpointError. One by one, those that wait for a slow disk that is full would wait for hours."""
        await write.ended.wait()
        if write.failure is not None:
            raise CheckpointError(write.failure.path, write.failure.problem) from write.failure

    def _data(self) -> str:
        if not self._texts:
            return "{}"
        return f'{{"{_ENTRIES}":{{{",".join(self._texts.values())}}}}}'


def _text(allocation: PodAllocation) -> str:
    return json.dumps(to_wire(allocation), separators=(",", ":"), sort_keys=True)


def _entries(path: Path, data: str) -> dict[str, PodAllocation]:
    try:
        wire: Any = json.loads(data)
        entries = wire.get(_ENTRIES) or {} if isinstance(wire, dict) else wire
        if not isinstance(entries, dict):
            raise ValueError(f'expected an object with "{_ENTRIES}"')
        return {uid: from_wire(allocation) for uid, allocation in entries.items()}
    except (ValueError, RecursionError) as error:
        raise BrokenCheckpointError(path, str(error)) from error
