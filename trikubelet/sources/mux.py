"""Runs every pod source and turns what they send into one stream of updates (kubelet: `PodConfig`).

Each source has a channel of its own into one merging task per source; updates of all sources leave through one
channel, those of one source in order. The mux knows which sources have spoken: until all have, nothing that is
merely unknown may be cleaned up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.sources.merge import NOTHING, Merged, merge_source
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.sources.types import PodUpdate
    from trikubelet.telemetry.events import EventRecorder


class PodSource(Protocol):
    """Something that says which pods this node should run."""

    @property
    def name(self) -> str:
        """`file`, `http` or `api`."""
        ...

    async def run(self, send: trio.MemorySendChannel[tuple[Pod, ...]], *, task_status: trio.TaskStatus[None]) -> None:
        """Send the whole set of pods whenever it may have changed, until cancelled."""
        ...


@attrs.define
class SourcesSeen:
    """Which of the configured sources have sent their first set."""

    configured: frozenset[str]
    _spoken: set[str] = attrs.field(factory=set)

    def mark(self, source: str) -> bool:
        """Record a set of this source; True when it was the first."""
        first = source not in self._spoken
        self._spoken.add(source)
        return first

    def ready(self, seen: AbstractSet[str]) -> bool:
        """Whether every source was seen, here and in `seen`: the sources whose updates the caller has handled."""
        return self.configured <= seen and self.configured <= self._spoken


class SourceMux:
    """Merges pod sources. Source names must differ."""

    def __init__(
        self,
        sources: Sequence[PodSource],
        *,
        clock: WallClock,
        on_duplicate: Callable[[str, Pod], None] | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        """`on_duplicate` is told of a source's pod that is dropped because an earlier one has its full name or UID, and
        `recorder` gets an event of it: once, and again when the pod is dropped anew after it was not."""
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError(f"expected sources with different names, got {names}")
        self._sources = tuple(sources)
        self._clock = clock
        self._on_duplicate = on_duplicate
        self._recorder = recorder
        self._seen = SourcesSeen(frozenset(names))
        self._merged: dict[str, Merged] = dict.fromkeys(names, NOTHING)

    def sources_ready(self, seen: AbstractSet[str]) -> bool:
        """Whether every source has sent its pods and `seen` holds them all (kubelet: `SeenAllSources`)."""
        return self._seen.ready(seen)

    def pods(self, source: str) -> list[Pod]:
        """What a source wants now."""
        return list(self._merged[source].pods.values())

    async def run(
        self,
        send: trio.MemorySendChannel[PodUpdate],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run all sources and send their changes. Runs until cancelled; closes `send` then.

        `task_status.started` is called when every source watches. An error of a source ends all.
        """
        async with send, trio.open_nursery() as nursery:
            for source in self._sources:
                into, from_source = trio.open_memory_channel[tuple["Pod", ...]](0)
                nursery.start_soon(self._merge, source.name, from_source, send)
                await nursery.start(source.run, into)
            task_status.started()

    async def _merge(
        self,
        source: str,
        receive: trio.MemoryReceiveChannel[tuple[Pod, ...]],
        send: trio.MemorySendChannel[PodUpdate],
    ) -> None:
        async with receive:
            async for pods in receive:
                first = self._seen.mark(source)
                before = self._merged[source]
                merged = merge_source(source, before, pods, now=self._clock.now(), first=first)
                # What changed is in the updates; keeping it here would keep old versions of pods.
                self._merged[source] = attrs.evolve(merged, updates=())
                known = {_identity(pod) for pod in before.duplicates}
                for pod in merged.duplicates:
                    if _identity(pod) not in known:
                        self._report_duplicate(source, pod)
                for update in merged.updates:
                    await send.send(update)

    def _report_duplicate(self, source: str, pod: Pod) -> None:
        if self._on_duplicate is not None:
            self._on_duplicate(source, pod)
        if self._recorder is not None:
            name = pod.metadata.name
            pod_name = f"{name}_{pod.metadata.namespace}({pod.metadata.uid})"
            message = f'Error validating pod {pod_name} from {source} due to duplicate pod name "{name}", ignoring'
            self._recorder.pod_event(pod, EventType.WARNING, "FailedValidation", message)


def _identity(pod: Pod) -> tuple[str, str]:
    return (pod.full_name, pod.metadata.uid)
