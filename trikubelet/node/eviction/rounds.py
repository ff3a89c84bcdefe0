"""One round: what a measurement means after all those before it (kubelet: `managerImpl.synchronize`). Pure.

A threshold is *met* while less is left than it says. Once it was met for longer than its grace period it is acted on,
and stays so until its minimum reclaim is there too. A condition of the node is true from the first threshold that is
met on, grace period or not, until none was met for the transition period: else the scheduler would fill the node again
while it is only just above a threshold.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from trikubelet.config.eviction_thresholds import for_layout
from trikubelet.config.eviction_values import (
    CONDITIONS,
    DISK_PRESSURE,
    IMAGE_FS_SIGNALS,
    MEMORY_SIGNALS,
    NODE_FS_SIGNALS,
    EvictionConfig,
    Layout,
    Signal,
    Threshold,
)
from trikubelet.formats.values import frozen
from trikubelet.node.eviction.local_limits import over_their_limits
from trikubelet.node.eviction.model import LocalEviction, Measurement, Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.api import Pod


@frozen(kw_only=True)
class RoundState:
    """What a round leaves to the next. Times are those that `begin_round` was given."""

    first_met: Mapping[Threshold, float] = attrs.field(factory=dict)
    """Since when thresholds have been met without a break, in the configuration's order."""
    acted_on: tuple[Threshold, ...] = ()
    """Those that were met for longer than their grace period."""
    last_pressure: Mapping[str, float] = attrs.field(factory=dict)
    """By type of condition, when one of its thresholds was last met."""
    observations: Mapping[Signal, Observation] = attrs.field(factory=dict)
    """Of the last round."""


@frozen(kw_only=True)
class Round:
    """What is to be done."""

    state: RoundState
    conditions: tuple[str, ...]
    """Types of the node's conditions that are true now."""
    local: tuple[LocalEviction, ...]
    """Pods to end for their own limits. If there are any, nothing else is done in this round."""
    thresholds: tuple[Threshold, ...]
    """Those to be acted on, the most urgent first: it says what is done."""

    @property
    def target(self) -> Threshold | None:
        return self.thresholds[0] if self.thresholds else None


def begin_round(
    config: EvictionConfig, state: RoundState, measured: Measurement, pods: Sequence[Pod], now: float
) -> Round:
    """`pods`: those that are active. `now`: seconds of a clock that only goes forward."""
    thresholds = for_layout(config.thresholds, measured.layout)
    unresolved = thresholds_met(state.acted_on, measured.observations, until_reclaimed=True)
    met = {*thresholds_met(thresholds, measured.observations), *unresolved}
    first_met = {threshold: state.first_met.get(threshold, now) for threshold in thresholds if threshold in met}
    last_pressure = {**state.last_pressure, **dict.fromkeys(conditions_of(first_met), now)}
    acted_on = grace_passed(first_met, now)
    return Round(
        state=RoundState(
            first_met=first_met,
            acted_on=acted_on,
            last_pressure=last_pressure,
            observations=measured.observations,
        ),
        conditions=conditions_since(last_pressure, config.transition_period, now),
        local=over_their_limits(pods, measured) if config.local_limits else (),
        thresholds=in_order_of_urgency(with_news(acted_on, measured.observations, state.observations)),
    )


class Reclaim(enum.Enum):
    """What can be freed without ending a pod."""

    DEAD_CONTAINERS = "dead containers"
    UNUSED_IMAGES = "unused images"


def reclaims(signal: Signal, layout: Layout) -> tuple[Reclaim, ...]:
    """What frees some of it, in order (kubelet: `buildSignalToNodeReclaimFuncs`). Nothing does of memory and processes,
    nor of a file system that has neither containers' layers nor images."""
    if signal.condition != DISK_PRESSURE:
        return ()
    if layout is Layout.SINGLE:
        return (Reclaim.DEAD_CONTAINERS, Reclaim.UNUSED_IMAGES)
    if layout is Layout.DEDICATED:
        return () if signal in NODE_FS_SIGNALS else (Reclaim.DEAD_CONTAINERS, Reclaim.UNUSED_IMAGES)
    return (Reclaim.UNUSED_IMAGES,) if signal in IMAGE_FS_SIGNALS else (Reclaim.DEAD_CONTAINERS,)


def after_reclaim(config: EvictionConfig, measured: Measurement) -> bool:
    """Whether no pod needs to end: every threshold is kept, with its minimum reclaim (`reclaimNodeLevelResources`)."""
    thresholds = for_layout(config.thresholds, measured.layout)
    return not thresholds_met(thresholds, measured.observations, until_reclaimed=True)


def thresholds_met(
    thresholds: Iterable[Threshold], observations: Mapping[Signal, Observation], *, until_reclaimed: bool = False
) -> tuple[Threshold, ...]:
    """Those below which it has come. `until_reclaimed`: or that lack their minimum reclaim. Grace periods do not
    count, and what was not observed is not met."""
    return tuple(
        threshold
        for threshold in thresholds
        if threshold.signal in observations
        and _is_met(threshold, observations[threshold.signal], until_reclaimed=until_reclaimed)
    )


def _is_met(threshold: Threshold, observed: Observation, *, until_reclaimed: bool) -> bool:
    wanted = threshold.value.of(observed.capacity)
    if until_reclaimed and threshold.min_reclaim is not None:
        wanted += threshold.min_reclaim.of(observed.capacity)
    return wanted.value() > observed.available


def with_news(
    thresholds: Iterable[Threshold], observations: Mapping[Signal, Observation], last: Mapping[Signal, Observation]
) -> tuple[Threshold, ...]:
    """Those about which something was measured since the last round: to act twice on one measurement would be to act
    on what is over (`thresholdsUpdatedStats`)."""
    return tuple(
        threshold
        for threshold in thresholds
        if threshold.signal in observations and _is_news(observations[threshold.signal], last.get(threshold.signal))
    )


def _is_news(observed: Observation, last: Observation | None) -> bool:
    return last is None or observed.at is None or last.at is None or observed.at > last.at


def grace_passed(first_met: Mapping[Threshold, float], now: float) -> tuple[Threshold, ...]:
    """Those that have been met for their grace period."""
    return tuple(threshold for threshold, since in first_met.items() if now - since >= threshold.grace)


def conditions_of(thresholds: Iterable[Threshold]) -> tuple[str, ...]:
    """The conditions that thresholds make true."""
    types = {threshold.signal.condition for threshold in thresholds}
    return tuple(type_ for type_ in CONDITIONS if type_ in types)


def conditions_since(last_pressure: Mapping[str, float], period: float, now: float) -> tuple[str, ...]:
    """Those for which there was reason in the last `period` seconds."""
    return tuple(type_ for type_ in CONDITIONS if type_ in last_pressure and now - last_pressure[type_] < period)


def in_order_of_urgency(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Memory first; of the others the order stays. Where the kubelet leaves it to chance, hard ones come before soft
    ones, whose pods may take longer to end."""
    return tuple(sorted(thresholds, key=lambda each: (each.signal not in MEMORY_SIGNALS, not each.hard)))
