"""Measures with the node's statistics (`trikubelet.node.stats`), which read cgroups and ask the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from trikubelet.config.eviction_values import Layout
from trikubelet.node.eviction.local_limits import limits_storage
from trikubelet.node.eviction.model import Measurement, PodMemoryUsage, PodUsage, UsageError
from trikubelet.node.eviction.observations import memory_of_pod, observe, usage_by_pod, usage_of_volumes
from trikubelet.node.stats.provider import FRESH_FOR, StatsTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trikubelet.api import Pod
    from trikubelet.node.stats.model import VolumeStats
    from trikubelet.node.stats.provider import Collection


class Statistics(Protocol):
    """What collects (`StatsProvider`)."""

    async def collect(self, *, full: bool) -> Collection:
        """Perhaps one that was made shortly before, for somebody else. Raises StatsTimeoutError."""
        ...

    async def collect_node(self, uids: Sequence[str] = ()) -> Collection:
        """One that is made now, of the node, and of what the pods with these UIDs have on its disk. Raises
        StatsTimeoutError."""
        ...

    async def volumes_of(self, pod: Pod) -> tuple[VolumeStats, ...]:
        """What a pod's volumes hold, as last measured."""
        ...


class StatsUsageSource:
    """Implements `UsageSource`."""

    def __init__(self, statistics: Callable[[], Statistics]) -> None:
        """`statistics`: asked for when something is to be measured first."""
        self._statistics = statistics
        self._layout = Layout.SINGLE
        """As it was last seen: a runtime that does not answer has not moved its images."""

    async def measure_node(self, limited: Sequence[Pod]) -> Measurement:
        """As the protocol says. What is wrong with parts of it, the statistics have logged.

        What pods have in volumes is known already; layers and logs have to be measured.
        """
        try:
            found = await self._statistics().collect_node([pod.metadata.uid for pod in limited if limits_storage(pod)])
        except StatsTimeoutError as error:
            raise UsageError(str(error)) from error
        of_pods = usage_by_pod(found.summary)
        for pod in limited:
            if pod.metadata.uid not in of_pods:
                volumes = await self._statistics().volumes_of(pod)
                of_pods[pod.metadata.uid] = PodUsage(volumes=usage_of_volumes(volumes))
        return self._measurement(found, of_pods, complete=False)

    async def measure(self, pods: Sequence[Pod]) -> Measurement:
        """As the protocol says, with all other pods too."""
        found = await self._collect(full=True)
        return self._measurement(found, usage_by_pod(found.summary), complete=True)

    def _measurement(self, found: Collection, pods: Mapping[str, PodUsage], *, complete: bool) -> Measurement:
        self._layout = layout_of(found) or self._layout
        observations = observe(found.summary)
        return Measurement(observations=observations, pods=pods, layout=self._layout, complete=complete)

    async def pod_memory(self, pod: Pod) -> PodMemoryUsage:
        """As the protocol says. Raises UsageError also for a pod that nothing was measured of."""
        found = await self._collect(full=False)
        usage = memory_of_pod(found.summary, pod.metadata.uid)
        if usage is None:
            raise UsageError(f"expected the memory usage of pod {pod.full_name}, found none of its containers running")
        return usage

    async def _collect(self, *, full: bool) -> Collection:
        """A collection that began now or later: one that somebody else has just got does not know of a pod that has
        ended since, or of images that were removed."""
        asked_at = trio.current_time()
        while True:
            try:
                found = await self._statistics().collect(full=full)
            except StatsTimeoutError as error:
                raise UsageError(str(error)) from error
            if found.made_at >= asked_at:
                return found
            await trio.sleep_until(found.made_at + FRESH_FOR)


def layout_of(found: Collection) -> Layout | None:
    """On which file systems things are; None when the runtime did not say where it has its images.

    Kubelet: `HasDedicatedImageFs`, `HasDedicatedContainerFs`.
    """
    images, layers = found.facts.image_fs, found.facts.container_fs
    if images is None:
        return None
    devices, of_node = found.measured.devices, found.measured.node_fs_device
    of_images = devices.get(images.path, "")
    of_layers = of_images if layers is None else devices.get(layers.path, "")
    if not (of_node and of_images and of_layers):
        return None
    if of_images != of_layers:
        return Layout.SPLIT
    return Layout.SINGLE if of_images == of_node else Layout.DEDICATED
