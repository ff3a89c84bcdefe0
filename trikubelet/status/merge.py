"""Merging a new status into the reported one: pure decisions for the status manager.

A new status does not simply replace the old one. Conditions keep the time of their last transition, the pod keeps its
start time, and some things never happen: a pod that ended goes on in no other phase, and a container that may not be
restarted does not run again (`IllegalTransitionError`: the status was computed from stale facts, and the old one
stays).

`merge_for_server` is the other half: what of a status may be told to an API server whose view has more owners.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from trikubelet.api import (
    CONDITION_TRUE,
    CONTAINERS_READY,
    POD_READY,
    APIObject,
    ContainerState,
    PodCondition,
    PodStatus,
    is_sidecar,
)
from trikubelet.api.pod_kinds import has_ended
from trikubelet.container.restart_policy import should_restart
from trikubelet.status.conditions import (
    OWNED_CONDITIONS,
    RESIZE_CONDITIONS,
    SHARED_CONDITIONS,
    could_restart_all,
    find_condition,
    terminal_condition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from trikubelet.api import Container, ContainerStatus, Pod

T = TypeVar("T")
V = TypeVar("V", bound=APIObject)

_STAMPED: Final = (OWNED_CONDITIONS | SHARED_CONDITIONS) - RESIZE_CONDITIONS
"""Conditions that are given the times of their transitions here."""
MAX_TERMINATION_MESSAGES: Final = 12 * 1024
"""Bytes that the termination messages of all containers of a pod may take together."""


class IllegalTransitionError(Exception):
    """A status would let a container run again that has ended for good."""

    def __init__(self, container: str, *, init: bool) -> None:
        kind = "init container" if init else "container"
        super().__init__(f"terminated {kind} {container} attempted illegal transition to non-terminated state")
        self.container = container


def next_status(pod: Pod, old: PodStatus, new: PodStatus, now: datetime) -> PodStatus:
    """The status to report after `old` when `new` was generated at `now` (kubelet: `updateStatusInternal`).

    Raises IllegalTransitionError.
    """
    check_transitions(pod, old, new)
    if has_ended(old) and new.phase != old.phase:
        new = attrs.evolve(new, phase=old.phase, reason=old.reason, message=old.message)
    merged = attrs.evolve(
        new,
        conditions=tuple(_with_transition_time(condition, old, now) for condition in new.conditions),
        start_time=old.start_time or new.start_time or now,
        observed_generation=max(old.observed_generation, new.observed_generation),
    )
    return normalized(pod, merged)


def _with_transition_time(condition: PodCondition, old: PodStatus, now: datetime) -> PodCondition:
    if condition.type not in _STAMPED:
        return condition
    before = find_condition(old.conditions, condition.type)
    same = before is not None and before.status == condition.status
    return attrs.evolve(condition, last_transition_time=before.last_transition_time if same and before else now)


def check_transitions(pod: Pod, old: PodStatus, new: PodStatus) -> None:
    """Raise IllegalTransitionError when a container leaves its end although nothing may restart it."""
    if could_restart_all(pod):
        return
    if pod.spec.restart_policy != "Always":
        _check_ended(pod, pod.spec.containers, old.container_statuses, new.container_statuses, init=False)
        init = [container for container in pod.spec.init_containers if not is_sidecar(container)]
        _check_ended(pod, init, old.init_container_statuses, new.init_container_statuses, init=True)


def _check_ended(
    pod: Pod,
    containers: Iterable[Container],
    old: Sequence[ContainerStatus],
    new: Sequence[ContainerStatus],
    *,
    init: bool,
) -> None:
    by_name = {container.name: container for container in containers}
    goes_on = {status.name for status in new if status.state.terminated is None}
    for status in old:
        end = status.state.terminated
        container = by_name.get(status.name)
        if end is None or container is None or status.name not in goes_on:
            continue
        may_restart = end.exit_code != 0 and pod.spec.restart_policy == "OnFailure"
        if not may_restart and not should_restart(container, pod, end.exit_code):
            raise IllegalTransitionError(status.name, init=init)


def normalized(pod: Pod, status: PodStatus) -> PodStatus:
    """The status as an API server gives it back: whole seconds, messages of bounded size, containers in order.

    One that is so already is returned itself, as its parts are, so that those who keep both keep one.
    """
    spec = pod.spec
    count = len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    limit = MAX_TERMINATION_MESSAGES // max(count, 1)
    order = {container.name: index for index, container in enumerate(spec.init_containers)}

    def by_name(one: ContainerStatus) -> str:
        return one.name

    def clean(
        statuses: tuple[ContainerStatus, ...], place: Callable[[ContainerStatus], str | int]
    ) -> tuple[ContainerStatus, ...]:
        cleaned = (
            _with(one, state=_clean_state(one.state, limit), last_state=_clean_state(one.last_state, limit))
            for one in statuses
        )
        return _kept(statuses, tuple(sorted(cleaned, key=place)))

    conditions = tuple(
        _with(
            condition,
            last_probe_time=_whole_seconds(condition.last_probe_time),
            last_transition_time=_whole_seconds(condition.last_transition_time),
        )
        for condition in status.conditions
    )
    return _with(
        status,
        start_time=_whole_seconds(status.start_time),
        conditions=_kept(status.conditions, conditions),
        container_statuses=clean(status.container_statuses, by_name),
        init_container_statuses=clean(status.init_container_statuses, lambda one: order.get(one.name, len(order))),
        ephemeral_container_statuses=clean(status.ephemeral_container_statuses, by_name),
    )


def _with(value: V, **fields: Any) -> V:
    """`attrs.evolve`, which takes its time, only where a field is another object."""
    if all(getattr(value, name) is field for name, field in fields.items()):
        return value
    return attrs.evolve(value, **fields)


def _kept(before: tuple[T, ...], after: tuple[T, ...]) -> tuple[T, ...]:
    """`before`, if it has the same objects."""
    return before if len(before) == len(after) and all(map(operator.is_, before, after)) else after


def _clean_state(state: ContainerState, limit: int) -> ContainerState:
    running, ended = state.running, state.terminated
    if running is not None:
        running = _with(running, started_at=_whole_seconds(running.started_at))
    if ended is not None:
        ended = _with(
            ended,
            started_at=_whole_seconds(ended.started_at),
            finished_at=_whole_seconds(ended.finished_at),
            message=_cut(ended.message, limit),
        )
    return _with(state, running=running, terminated=ended)


def _whole_seconds(time: datetime | None) -> datetime | None:
    return time.replace(microsecond=0) if time is not None and time.microsecond else time


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes, and no half character."""
    return text if len(text) * 4 <= limit else text.encode()[:limit].decode(errors="ignore")


def says_the_same(old: PodStatus, new: PodStatus) -> bool:
    """Whether two statuses differ in nothing that the agent reports; times of conditions do not count.

    Kubelet: `isPodStatusByKubeletEqual`.
    """

    def owned(status: PodStatus) -> dict[str, tuple[str, str, str]]:
        return {
            condition.type: (condition.status, condition.reason, condition.message)
            for condition in status.conditions
            if condition.type in OWNED_CONDITIONS or condition.type in SHARED_CONDITIONS
        }

    return owned(old) == owned(new) and new == attrs.evolve(
        old,
        conditions=new.conditions,
        resource_claim_statuses=new.resource_claim_statuses,
        extended_resource_claim_status=new.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=new.node_allocatable_resource_claim_statuses,
    )


def merge_for_server(pod: Pod, served: PodStatus, ours: PodStatus, now: datetime, *, may_run: bool) -> PodStatus:
    """The status to write to an API server that has `served` (kubelet: `mergePodStatus`).

    Others' conditions and claims are kept. While containers `may_run`, the pod is not told to have ended: others would
    take over what it still holds.
    """
    ending = has_ended(ours) and not has_ended(served)
    conditions = [condition for condition in served.conditions if condition.type not in OWNED_CONDITIONS]
    for condition in ours.conditions:
        if condition.type in OWNED_CONDITIONS:
            conditions.append(condition)
        elif condition.type in SHARED_CONDITIONS and ending and not may_run:
            conditions = [other for other in conditions if other.type != condition.type]
            conditions.append(_with_transition_time(condition, served, now))
    merged = attrs.evolve(
        ours,
        conditions=tuple(conditions),
        resource_claim_statuses=served.resource_claim_statuses,
        extended_resource_claim_status=served.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=served.node_allocatable_resource_claim_statuses,
    )
    if ending and may_run:
        merged = attrs.evolve(merged, phase=served.phase, reason=served.reason, message=served.message)
    return _not_ready_when_ended(pod, served, merged, now) if has_ended(merged) else merged


def _not_ready_when_ended(pod: Pod, served: PodStatus, status: PodStatus, now: datetime) -> PodStatus:
    types = (CONTAINERS_READY, POD_READY)
    if not any(one.type in types and one.status == CONDITION_TRUE for one in status.conditions):
        return status

    def corrected(condition: PodCondition) -> PodCondition:
        if condition.type not in types:
            return condition
        return _with_transition_time(terminal_condition(pod, condition.type, status.phase), served, now)

    conditions = [corrected(condition) for condition in status.conditions]
    missing = [type_ for type_ in types if find_condition(conditions, type_) is None]
    conditions += [corrected(PodCondition(type=type_)) for type_ in missing]
    return attrs.evolve(status, conditions=tuple(conditions))


def may_be_deleted(pod: Pod, *, finished: bool, mirror: bool) -> bool:
    """Whether the pod's object may go from the API server: asked for, ended, and everything released.

    Kubelet: `canBeDeleted`. `pod` is as the API server shows it.
    """
    return pod.metadata.deletion_timestamp is not None and not mirror and has_ended(pod.status) and finished
