"""What is measured, compared and decided on: values without behaviour, but for the arithmetic of amounts.

Sizes are bytes, inodes and processes numbers, durations seconds. None is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.api import Pod
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen(kw_only=True)
class Observation:
    """How much was left."""

    available: int
    capacity: int
    at: float | None = None
    """When it was measured: seconds since 1970, by the source's clock. None: surely just now."""
    used: int | None = None
    """Of memory: with inactive file pages, so more than what is not available."""


@frozen(kw_only=True)
class FsUsage:
    """What somebody uses of a file system."""

    bytes: int | None = None
    inodes: int | None = None


NOTHING_USED: Final = FsUsage()


@frozen(kw_only=True)
class ContainerUsage:
    """Of one container."""

    memory_working_set: int | None = None
    rootfs: FsUsage = NOTHING_USED
    """Its writable layer."""
    logs: FsUsage = NOTHING_USED


@frozen(kw_only=True)
class PodUsage:
    """Of one pod."""

    memory_working_set: int | None = None
    memory_usage: int | None = None
    processes: int | None = None
    containers: Mapping[str, ContainerUsage] = attrs.field(factory=dict)
    """By name, in the order in which they were found."""
    volumes: Mapping[str, FsUsage] = attrs.field(factory=dict)
    """By name in the pod."""
    ephemeral: int | None = None
    """Bytes of the node's disk: layers, logs, local volumes and the pod's own files."""


@frozen(kw_only=True)
class PodMemoryUsage:
    """All memory in use: what a limit is compared with by the kernel."""

    pod: int | None = None
    containers: Mapping[str, int] = attrs.field(factory=dict)


@frozen(kw_only=True)
class Measurement:
    """One look at the node and its pods."""

    observations: Mapping[Signal, Observation]
    """What could not be measured is left out."""
    pods: Mapping[str, PodUsage] = attrs.field(factory=dict)
    """By UID."""
    layout: Layout = Layout.SINGLE
    complete: bool = True
    """Else of pods nothing is known but what some are limited in."""


@frozen
class UsageError(Exception):
    """The node could not be measured."""

    message: str

    def __str__(self) -> str:
        return self.message


class UsageSource(Protocol):
    """Measures (`measure.StatsUsageSource`)."""

    async def measure_node(self, limited: Sequence[Pod]) -> Measurement:
        """The node, and of these pods what they have on its disk: much cheaper than `measure`.

        Begun after the call: never what was found before it. Raises UsageError.
        """
        ...

    async def measure(self, pods: Sequence[Pod]) -> Measurement:
        """The node and all that these pods use. As `measure_node` otherwise."""
        ...

    async def pod_memory(self, pod: Pod) -> PodMemoryUsage:
        """Of one pod, as fresh. Raises UsageError."""
        ...


@frozen(kw_only=True)
class LocalEviction:
    """A pod that used more of the disk than it may."""

    pod: Pod
    message: str
    limit: str
    """Which kind of limit, in the words of the kubelet's metrics."""
