"""Eviction as it is configured: signals, thresholds and amounts, values without behaviour but for their arithmetic.

Sizes are bytes, inodes and processes numbers, durations seconds.
"""

from __future__ import annotations

import enum
from typing import Final

from trikubelet.api import Quantity
from trikubelet.formats.values import frozen

MEMORY: Final = "memory"
STORAGE: Final = "ephemeral-storage"
INODES: Final = "inodes"
PIDS: Final = "pids"
"""What a node runs out of: `The node was low on resource: …`."""
MEMORY_PRESSURE: Final = "MemoryPressure"
DISK_PRESSURE: Final = "DiskPressure"
PID_PRESSURE: Final = "PIDPressure"
CONDITIONS: Final = (MEMORY_PRESSURE, DISK_PRESSURE, PID_PRESSURE)
"""Types of node conditions, in the order of the node's status."""


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


@frozen
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


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class EvictionConfig:
    """What the configuration says (kubelet: `eviction.Config`)."""

    thresholds: tuple[Threshold, ...] = ()
    transition_period: float = 300.0
    """Seconds that a condition outlives the last threshold that was crossed."""
    max_pod_grace: int = 0
    """Seconds that a pod has at most when a soft threshold ends it."""
    local_limits: bool = True
    """Whether pods' own limits of local storage count (`localStorageCapacityIsolation`)."""

    split_disks: bool = True
    """Whether images and containers' layers may be on file systems of their own (KubeletSeparateDiskGC)."""

    @property
    def watches(self) -> bool:
        """Whether there is anything to measure for."""
        return bool(self.thresholds) or self.local_limits
