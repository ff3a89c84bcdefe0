"""Nodes that are short of something, and pods of every kind, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from trikubelet.api import (
    Container,
    EmptyDirVolumeSource,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
    Volume,
)
from trikubelet.api.pod_kinds import API_SERVER_SOURCE, CONFIG_SOURCE_ANNOTATION
from trikubelet.config.eviction_values import Amount, EvictionConfig, Layout, Signal, Threshold
from trikubelet.node.eviction.choice import Eviction, choose
from trikubelet.node.eviction.model import ContainerUsage, FsUsage, Measurement, Observation, PodUsage
from trikubelet.node.eviction.rounds import Reclaim, Round, RoundState, after_reclaim, begin_round, reclaims

LOW, DEFAULT, HIGH = -1, 0, 1
"""Priorities."""
MINUTE = 60.0
LOCAL_VOLUME = Volume(name="local-volume", empty_dir=EmptyDirVolumeSource())


def size(text: str) -> int:
    """`1Gi` in bytes; nothing at all is 0."""
    return Quantity(text or "0").value()


def amounts(cpu: str = "", memory: str = "", disk: str = "") -> dict[str, Quantity]:
    given = {"cpu": cpu, "memory": memory, "ephemeral-storage": disk}
    return {name: Quantity(text) for name, text in given.items() if text}


def container(
    name: str,
    requests: Mapping[str, Quantity] | None = None,
    limits: Mapping[str, Quantity] | None = None,
    **fields: Any,
) -> Container:
    resources = ResourceRequirements(requests=dict(requests or {}), limits=dict(limits or {}))
    return Container(name=name, resources=resources, **fields)


def make_pod(
    name: str,
    priority: int | None = DEFAULT,
    requests: Mapping[str, Quantity] | None = None,
    limits: Mapping[str, Quantity] | None = None,
    *,
    source: str = API_SERVER_SOURCE,
    **spec: Any,
) -> Pod:
    """A pod with one container of the same name, unless others are given. The name is its UID too."""
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=name, annotations={CONFIG_SOURCE_ANNOTATION: source}),
        spec=PodSpec(**{"containers": (container(name, requests, limits),), "priority": priority, **spec}),
    )


def memory(working_set: str) -> PodUsage:
    return PodUsage(memory_working_set=size(working_set))


def processes(count: int) -> PodUsage:
    return PodUsage(processes=count)


def disk(name: str, root: str = "", logs: str = "", volume: str = "", *, of: str = "bytes") -> PodUsage:
    """Of a pod with one container. `of`: `bytes` or `inodes`."""
    return PodUsage(
        containers={
            name: ContainerUsage(rootfs=FsUsage(**{of: size(root)}), logs=FsUsage(**{of: size(logs)})),
        },
        volumes={LOCAL_VOLUME.name: FsUsage(**{of: size(volume)})},
    )


def threshold(
    signal: Signal, value: str | float = "", *, grace: float = 0, reclaim: str | float | None = None
) -> Threshold:
    """Amounts are texts, parts of all numbers."""
    return Threshold(
        signal=signal, value=amount(value), grace=grace, min_reclaim=None if reclaim is None else amount(reclaim)
    )


def amount(value: str | float) -> Amount:
    return Amount(Quantity(value or "0")) if isinstance(value, str) else Amount(fraction=value)


def left(available: str, capacity: str = "", at: float | None = None) -> Observation:
    """Twice as much as is available, where nothing is said of the capacity."""
    return Observation(available=size(available), capacity=size(capacity) or 2 * size(available), at=at)


@attrs.define
class Node:
    """A node on which rounds take place, without anybody who carries them out."""

    thresholds: tuple[Threshold, ...]
    pods: Sequence[Pod] = ()
    usage: Mapping[str, PodUsage] = attrs.field(factory=dict)
    layout: Layout = Layout.SINGLE
    local_limits: bool = False
    now: float = 1000.0
    state: RoundState = attrs.field(factory=RoundState)
    last: Round | None = None

    @property
    def config(self) -> EvictionConfig:
        return EvictionConfig(thresholds=self.thresholds, max_pod_grace=5, local_limits=self.local_limits)

    def conditions(self) -> tuple[str, ...]:
        assert self.last is not None
        return self.last.conditions

    def look(self, observations: Mapping[Signal, Observation], *, later: float = 0.0) -> Round:
        """A round some seconds after the last one."""
        self.now += later
        self.last = begin_round(self.config, self.state, self.measured(observations), self.pods, self.now)
        self.state = self.last.state
        return self.last

    def evicts(
        self,
        observations: Mapping[Signal, Observation],
        *,
        later: float = 0.0,
        reclaimed: Mapping[Signal, Observation] | None = None,
    ) -> Eviction | None:
        """Who goes in a round. `reclaimed`: what is left after dead containers and unused images were removed; nothing
        more than before where nothing is said."""
        found = self.look(observations, later=later)
        if found.target is None:
            return None
        steps = reclaims(found.target.signal, self.layout)
        if steps and after_reclaim(self.config, self.measured({**observations, **(reclaimed or {})})):
            return None
        return choose(self.config, found, self.measured(observations), self.pods)

    def reclaims(self) -> tuple[Reclaim, ...]:
        """What the last round frees."""
        assert self.last is not None
        target = self.last.target
        return () if target is None else reclaims(target.signal, self.layout)

    def measured(self, observations: Mapping[Signal, Observation]) -> Measurement:
        return Measurement(observations=observations, pods=self.usage, layout=self.layout)
