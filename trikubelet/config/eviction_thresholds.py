"""Thresholds as the configuration writes them (kubelet: `ParseThresholdConfig`, `UpdateContainerFsThresholds`). Pure.

`0%` and `100%` mean that there is no threshold. Where `pods` is among `enforceNodeAllocatable`, each hard threshold of
the node's memory is one of the pods' memory too. Thresholds of the file system with containers' layers cannot be
chosen: they are those of the file system that the layers are on.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from trikubelet.api import Quantity
from trikubelet.config.eviction_values import CONTAINER_FS_SIGNALS, Amount, EvictionConfig, Layout, Signal, Threshold
from trikubelet.formats.durations import parse_duration
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from trikubelet.config.kubelet_configuration import KubeletConfiguration

T = TypeVar("T")

DEFAULT_HARD: Final = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
"""Where nobody sets `evictionHard`; an empty one means that there are none."""
ENFORCED_FOR_PODS: Final = "pods"

_OFF: Final = ("0%", "100%")
_NUMBER: Final = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SIGNALS: Final = {signal.value: signal for signal in Signal}

_FOLLOWS_NODE_FS: Final = {
    Signal.NODE_FS: Signal.CONTAINER_FS,
    Signal.NODE_FS_INODES: Signal.CONTAINER_FS_INODES,
}
_FOLLOWS_IMAGE_FS: Final = {
    Signal.IMAGE_FS: Signal.CONTAINER_FS,
    Signal.IMAGE_FS_INODES: Signal.CONTAINER_FS_INODES,
}


@frozen
class ThresholdProblem:
    """One entry that is no threshold. `path` is as `evictionHard[memory.available]`."""

    path: str
    message: str


@frozen
class ThresholdsError(ValueError):
    """The configuration's thresholds cannot be used; all that is wrong with them."""

    problems: tuple[ThresholdProblem, ...]

    def __str__(self) -> str:
        return "; ".join(f"{problem.path}: {problem.message}" for problem in self.problems)


def eviction_config(configuration: KubeletConfiguration) -> EvictionConfig:
    """What the agent's configuration says. Raises ThresholdsError."""
    return EvictionConfig(
        thresholds=parse_thresholds(
            hard=DEFAULT_HARD if configuration.eviction_hard is None else configuration.eviction_hard,
            soft=configuration.eviction_soft,
            soft_grace=configuration.eviction_soft_grace_period,
            min_reclaim=configuration.eviction_minimum_reclaim,
            enforced=configuration.enforce_node_allocatable,
        ),
        transition_period=configuration.eviction_pressure_transition_period.total_seconds(),
        max_pod_grace=configuration.eviction_max_pod_grace_period,
        local_limits=configuration.local_storage_capacity_isolation,
        split_disks=configuration.enabled("KubeletSeparateDiskGC"),
    )


def parse_thresholds(
    *,
    hard: Mapping[str, str],
    soft: Mapping[str, str],
    soft_grace: Mapping[str, str],
    min_reclaim: Mapping[str, str],
    enforced: Collection[str] = (),
) -> tuple[Threshold, ...]:
    """All thresholds: the hard ones, the soft ones, those of the pods' memory. Raises ThresholdsError."""
    reader = _Reader()
    hard_values = reader.read("evictionHard", hard, _threshold_value)
    soft_values = reader.read("evictionSoft", soft, _threshold_value)
    grace = reader.read("evictionSoftGracePeriod", soft_grace, _grace)
    reclaim = reader.read("evictionMinimumReclaim", min_reclaim, _reclaim_value)
    for signal, value in soft_values.items():
        if value is not None and signal.value not in soft_grace:
            message = "needs a grace period for it in evictionSoftGracePeriod"
            reader.problems.append(ThresholdProblem(f"evictionSoft[{signal.value}]", message))
    if reader.problems:
        raise ThresholdsError(tuple(reader.problems))
    found = [
        Threshold(signal=signal, value=value, min_reclaim=reclaim.get(signal))
        for signal, value in hard_values.items()
        if value is not None
    ]
    found += [
        Threshold(signal=signal, value=value, grace=grace[signal], min_reclaim=reclaim.get(signal))
        for signal, value in soft_values.items()
        if value is not None
    ]
    return with_allocatable(found) if ENFORCED_FOR_PODS in enforced else tuple(found)


def with_allocatable(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """The same, and each hard one of memory once more for the memory of all pods (`addAllocatableThresholds`)."""
    given = tuple(thresholds)
    added = (
        attrs.evolve(threshold, signal=Signal.ALLOCATABLE_MEMORY)
        for threshold in given
        if threshold.signal is Signal.MEMORY and threshold.hard
    )
    return (*given, *added)


def for_layout(thresholds: Iterable[Threshold], layout: Layout) -> tuple[Threshold, ...]:
    """The same, with those of the file system that has the layers: whatever is said of it is not used."""
    follows = _FOLLOWS_IMAGE_FS if layout is Layout.DEDICATED else _FOLLOWS_NODE_FS
    given = tuple(threshold for threshold in thresholds if threshold.signal not in CONTAINER_FS_SIGNALS)
    added = (
        attrs.evolve(threshold, signal=follows[threshold.signal]) for threshold in given if threshold.signal in follows
    )
    return (*given, *added)


def unused(thresholds: Iterable[Threshold]) -> tuple[str, ...]:
    """What the configuration says and `for_layout` does not use, for a warning."""
    return tuple(
        f"{'evictionHard' if threshold.hard else 'evictionSoft'}[{threshold.signal.value}]"
        for threshold in thresholds
        if threshold.signal in CONTAINER_FS_SIGNALS
    )


class _Reader:
    """Reads whole fields, and notes what is wrong instead of stopping there."""

    def __init__(self) -> None:
        self.problems: list[ThresholdProblem] = []

    def read(self, field: str, entries: Mapping[str, str], parse: Callable[[str], T]) -> dict[Signal, T]:
        values: dict[Signal, T] = {}
        for name, text in entries.items():
            signal = _SIGNALS.get(name)
            try:
                if signal is None:
                    raise ValueError(f"is no eviction signal; known are {', '.join(_SIGNALS)}")
                values[signal] = parse(text)
            except ValueError as error:
                self.problems.append(ThresholdProblem(f"{field}[{name}]", str(error)))
        return values


def _threshold_value(text: str) -> Amount | None:
    """None: there is to be no threshold."""
    if text in _OFF:
        return None
    if not text.endswith("%"):
        quantity = Quantity(text)
        if quantity.nanos <= 0:
            raise ValueError(f"must be more than 0, got {text}")
        return Amount(quantity)
    fraction = parse_percentage(text)
    if not 0 <= fraction <= 1:
        raise ValueError(f"must be between 0% and 100%, got {text}")
    return Amount(fraction=fraction)


def _reclaim_value(text: str) -> Amount:
    if not text.endswith("%"):
        quantity = Quantity(text)
        if quantity.nanos < 0:
            raise ValueError(f"must not be negative, got {text}")
        return Amount(quantity)
    fraction = parse_percentage(text)
    if fraction <= 0:
        raise ValueError(f"must be more than 0%, got {text}")
    return Amount(fraction=fraction)


def _grace(text: str) -> float:
    seconds = parse_duration(text).total_seconds()
    if seconds < 0:
        raise ValueError(f"must not be negative, got {text}")
    return seconds


def parse_percentage(text: str) -> float:
    """`25.5%` as 0.255. Raises ValueError.

    The kubelet keeps it in single precision, and a byte more or less shows in what it tells.
    """
    digits = text.rstrip("%")
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f'expected a percentage such as "10%" or "2.5%", got "{text[:60]}"')
    try:
        fraction = _single(_single(float(digits)) / 100)
    except OverflowError:
        fraction = math.inf
    if math.isinf(fraction):
        raise ValueError(f'expected a percentage such as "10%" or "2.5%", got "{text[:60]}": it is too large')
    return fraction


def _single(number: float) -> float:
    """Rounded to single precision."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
