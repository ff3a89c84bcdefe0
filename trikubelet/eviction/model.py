"""What is measured, compared and decided on: values without behaviour, but for the arithmetic of amounts.

Sizes are bytes, inodes and processes numbers, durations seconds. None is not known.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.api import Pod, Quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY: Final = "memory"
STORAGE: Final = "ephemeral-storage"
INODES: Final = "inodes"
PIDS: Final = "pids"
"""What a node runs out of: `The node was low on resource: …`."""

MEMORY_PRESSURE: Final = "MemoryPressure"
DISK_PRESSURE: Final = "DiskPressure"
PID_PRESSURE: Final = "PIDPressure"
CONDITIONS: Final = (MEMORY_PRESSURE, DISK_PRESSURE, PID_PRESSURE)
"""Types of node conditions, in the order in which they are told."""


class Signal(enum.StrEnum):
    """What thresholds are about (`evictionapi.Signal`)."""

    MEMORY = "memory.available"
    ALLOCATABLE_MEMORY = "allocatableMemory.available"
    NODE_FS = "nodefs.available"
    NODE_FS_INODES = "nodefs.inodesFree"
    IMAGE_FS = "imagefs.available"
    IMAGE_FS_INODES = "imagefs.inodesFree"
    CONTAINER_FS = "containerfs.available"
    CONTAINER_FS_INODES = "containerfs.inodesFree"
    PIDS = "pid.available"

    @property
    def resource(self) -> str:
        """What there is too little of when its threshold is crossed."""
        if self in MEMORY_SIGNALS:
            return MEMORY
        if self is Signal.PIDS:
            return PIDS
        return INODES if self.value.endswith("inodesFree") else STORAGE

    @property
    def condition(self) -> str:
        """The type of the node's condition."""
        if self in MEMORY_SIGNALS:
            return MEMORY_PRESSURE
        return PID_PRESSURE if self is Signal.PIDS else DISK_PRESSURE


MEMORY_SIGNALS: Final = frozenset({Signal.MEMORY, Signal.ALLOCATABLE_MEMORY})
NODE_FS_SIGNALS: Final = frozenset({Signal.NODE_FS, Signal.NODE_FS_INODES})
IMAGE_FS_SIGNALS: Final = frozenset({Signal.IMAGE_FS, Signal.IMAGE_FS_INODES})
CONTAINER_FS_SIGNALS: Final = frozenset({Signal.CONTAINER_FS, Signal.CONTAINER_FS_INODES})


class Layout(enum.Enum):
    """On which file systems the agent's folder, images and containers' writable layers are."""

    SINGLE = "all on one"
    DEDICATED = "images and layers apart from the agent's folder"
    SPLIT = "images apart from layers"


@attrs.frozen
class Amount:
    """A quantity, or a part of what there is."""

    quantity: Quantity | None = None
    fraction: float = 0.0
    """In single precision, as the kubelet keeps it. Counts only without a quantity."""

    def of(self, capacity: int) -> Quantity:
        """How much it is, rounded down."""
        if self.quantity is not None:
            return self.quantity
        return Quantity.from_bytes_count(int(capacity * self.fraction))


@attrs.frozen(kw_only=True)
class Threshold:
    """Less than this must not be left for longer than a grace period."""

    signal: Signal
    value: Amount
    grace: float = 0.0
    """Seconds. A *hard* threshold has none."""
    min_reclaim: Amount | None = None
    """How much more than the threshold is to be freed once it was crossed."""

    @property
    def hard(self) -> bool:
        return self.grace == 0


@attrs.frozen(kw_only=True)
class Observation:
    """How much was left."""

    available: int
    capacity: int
    at: float | None = None
    """When: seconds since 1970, by whoever measured. None: surely just now."""
    used: int | None = None
    """Of memory: with the file pages that nobody needs, so more than what is not available."""


@attrs.frozen(kw_only=True)
class FsUsage:
    """What somebody uses of a file system."""

    bytes: int | None = None
    inodes: int | None = None


NOTHING_USED: Final = FsUsage()


@attrs.frozen(kw_only=True)
class ContainerUsage:
    """Of one container."""

    memory_working_set: int | None = None
    rootfs: FsUsage = NOTHING_USED
    """Its writable layer."""
    logs: FsUsage = NOTHING_USED


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class PodMemoryUsage:
    """All memory in use: what a limit is compared with by the kernel."""

    pod: int | None = None
    containers: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Measurement:
    """One look at the node and its pods."""

    observations: Mapping[Signal, Observation]
    """What could not be measured is left out."""
    pods: Mapping[str, PodUsage] = attrs.field(factory=dict)
    """By UID."""
    layout: Layout = Layout.SINGLE
    complete: bool = True
    """Else of pods nothing is known but what some are limited in."""


@attrs.frozen
class UsageError(Exception):
    """The node could not be measured."""

    message: str

    def __str__(self) -> str:
        return self.message


class UsageSource(Protocol):
    """Measures (`measure.StatsUsageSource`)."""

    async def look(self, limited: Sequence[Pod]) -> Measurement:
        """The node, and of these pods what they have on its disk: much cheaper than `measure`.

        Begun after the call: never what was found before it. Raises UsageError.
        """
        ...

    async def measure(self, pods: Sequence[Pod]) -> Measurement:
        """The node and all that these pods use. As `look` otherwise."""
        ...

    async def pod_memory(self, pod: Pod) -> PodMemoryUsage:
        """Of one pod, as fresh. Raises UsageError."""
        ...


@attrs.frozen(kw_only=True)
class EvictionConfig:
    """What the configuration says (kubelet: `eviction.Config`)."""

    thresholds: tuple[Threshold, ...] = ()
    transition_period: float = 300.0
    """Seconds that a condition outlives the last threshold that was crossed."""
    max_pod_grace: int = 0
    """Seconds that a pod has at most when a soft threshold ends it."""
    local_limits: bool = True
    """Whether pods' own limits of local storage count (`localStorageCapacityIsolation`)."""

    @property
    def watches(self) -> bool:
        """Whether there is anything to measure for."""
        return bool(self.thresholds) or self.local_limits


@attrs.frozen(kw_only=True)
class LocalEviction:
    """A pod that used more of the disk than it may."""

    pod: Pod
    message: str
    limit: str
    """Which kind of limit, in the words of the kubelet's metrics."""
