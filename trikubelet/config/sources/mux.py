"""Runs every pod source and turns what they send into one stream of updates (kubelet: `PodConfig`).

Each source has a channel of its own into one merging task per source; updates of all sources leave through one
channel, those of one source in order. The mux knows which sources have spoken: until all have, nothing that is
merely unknown may be cleaned up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.config.sources.merge import merge_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.config.sources.types import PodUpdate


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
    _heard: set[str] = attrs.field(factory=set)

    def mark(self, source: str) -> bool:
        """Note a set of this source; True when it was the first."""
        first = source not in self._heard
        self._heard.add(source)
        return first

    def ready(self, seen: AbstractSet[str]) -> bool:
        """Whether every source was heard of, here and in `seen`: the sources whose updates the caller has handled."""
        return self.configured <= seen and self.configured <= self._heard


class SourceMux:
    """Merges pod sources. Source names must differ."""

    def __init__(
        self,
        sources: Sequence[PodSource],
        *,
        clock: WallClock,
        on_duplicate: Callable[[str, Pod], None] | None = None,
    ) -> None:
        """`on_duplicate` is told of a source's pod that is dropped because an earlier one has its full name or UID."""
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError(f"expected sources with different names, got {names}")
        self._sources = tuple(sources)
        self._clock = clock
        self._on_duplicate = on_duplicate
        self._seen = SourcesSeen(frozenset(names))
        self._pods: dict[str, Mapping[str, Pod]] = {name: {} for name in names}

    def sources_ready(self, seen: AbstractSet[str]) -> bool:
        """Whether every source has sent its pods and `seen` holds them all (kubelet: `SeenAllSources`)."""
        return self._seen.ready(seen)

    def pods(self, source: str) -> list[Pod]:
        """What a source wants now."""
        return list(self._pods[source].values())

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
                merged = merge_source(source, self._pods[source], pods, now=self._clock.now(), first=first)
                self._pods[source] = merged.pods
                if self._on_duplicate is not None:
                    for pod in merged.duplicates:
                        self._on_duplicate(source, pod)
                for update in merged.updates:
                    await send.send(update)
