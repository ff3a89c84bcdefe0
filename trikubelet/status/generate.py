"""The status of a pod, from its spec, what the runtime shows and what was reported before.

Everything here is a function of its arguments: the same node seen the same way is reported the same way. The outcomes
are those of the kubelet's `generateAPIPodStatus`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.api import (
    DISRUPTION_TARGET,
    POD_FAILED,
    POD_RUNNING,
    ContainerStatus,
    HostIP,
    PodIP,
    PodStatus,
    is_sidecar,
    qos_class,
)
from trikubelet.api.pod_kinds import TERMINAL_PHASES
from trikubelet.container.downward import sort_pod_ips
from trikubelet.status.conditions import (
    OWNED_CONDITIONS,
    SHARED_CONDITIONS,
    containers_ready_condition,
    find_condition,
    initialized_condition,
    ready_condition,
    ready_to_start_condition,
    restarting_condition,
    scheduled_condition,
)
from trikubelet.status.container_statuses import ResourceHealthOf, StatusContext, container_statuses, no_resource_health
from trikubelet.status.phase import pod_phase
from trikubelet.status.pod_resources import with_pod_resources
from trikubelet.status.probe_outcomes import NO_OUTCOMES, ProbeOutcomes, with_probe_outcomes
from trikubelet.status.restart_rules import could_restart_all, restarts_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.api import Container, Pod, PodCondition
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.status.actual_resources import ActualResources

    _Statuses = Sequence[ContainerStatus]


@attrs.frozen
class Eviction:
    """Why the agent ends a pod on its own, such as an active deadline that has passed."""

    reason: str
    message: str


def generate_pod_status(
    pod: Pod,
    observed: PodRuntimeStatus,
    *,
    previous: PodStatus,
    waiting_reasons: Mapping[str, tuple[str, str]],
    terminal: bool = False,
    host_ips: Sequence[str] = (),
    outcomes: ProbeOutcomes = NO_OUTCOMES,
    eviction: Eviction | None = None,
    recursive_read_only: bool = False,
    resource_health: ResourceHealthOf = no_resource_health,
    resizes: Sequence[PodCondition] = (),
    actual: ActualResources | None = None,
) -> PodStatus:
    """What is to be reported of the pod. Times of transitions and the start time are the status manager's to set.

    - `previous` is what the status manager holds, or the pod's own status when it holds none.
    - `waiting_reasons` has reason and message of containers that could not be started, by name.
    - `terminal`: no container will be started again.
    - `host_ips` are the node's addresses, the primary one first; they are also those of a pod in the host's network.
    - `eviction` ends the pod, whatever its containers do.
    - `recursive_read_only`: the runtime can mount volumes read-only with everything below them.
    - `resource_health` tells how the devices of a container do, by its name.
    - `resizes`: the conditions about the pod's resize, if it has one.
    - `actual`: what is known of the resources that the pod, given as allocated, really has.
    """
    restarting = restarts_all(pod, observed, previous)
    context = StatusContext(pod, observed, waiting_reasons, restarting, recursive_read_only, resource_health, actual)
    status = _with_container_statuses(pod, previous, context)
    main_and_init = (*status.container_statuses, *status.init_container_statuses)
    initialized = _main_container_in_sandbox(pod, observed)
    phase = pod_phase(pod, main_and_init, terminal=terminal, initialized=initialized)
    status = _with_phase(status, phase, pod, previous, eviction)
    before = previous.resources if previous.phase == POD_RUNNING else None
    status = with_pod_resources(pod, _with_outcomes(status, pod, previous, outcomes), actual, before)
    status = attrs.evolve(status, conditions=_conditions(pod, observed, previous, status, resizes))
    return _with_addresses(status, pod, observed, host_ips)


def _with_container_statuses(pod: Pod, previous: PodStatus, context: StatusContext) -> PodStatus:
    spec = pod.spec
    return PodStatus(
        observed_generation=pod.metadata.generation,
        qos_class=qos_class(pod),
        container_statuses=container_statuses(spec.containers, previous.container_statuses, context),
        init_container_statuses=container_statuses(
            spec.init_containers, previous.init_container_statuses, context, init=True
        ),
        ephemeral_container_statuses=container_statuses(
            spec.ephemeral_containers, previous.ephemeral_container_statuses, context
        ),
        nominated_node_name=previous.nominated_node_name,
        resource_claim_statuses=pod.status.resource_claim_statuses,
        extended_resource_claim_status=pod.status.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=pod.status.node_allocatable_resource_claim_statuses,
    )


def _main_container_in_sandbox(pod: Pod, observed: PodRuntimeStatus) -> bool:
    """Whether the sandbox in use holds a main container, in whatever state."""
    sandbox = observed.sandbox_statuses[0] if observed.sandbox_statuses else None
    if sandbox is None or not sandbox.ready:
        return False
    names = {container.name for container in pod.spec.containers}
    return any(status.name in names and status.pod_sandbox_id == sandbox.id for status in observed.container_statuses)


def _with_phase(status: PodStatus, phase: str, pod: Pod, previous: PodStatus, eviction: Eviction | None) -> PodStatus:
    """Phase, reason and message. A pod that was reported as ended stays so, with the reason it ended for."""
    for reported in (previous.phase, pod.status.phase):
        if phase not in TERMINAL_PHASES and reported in TERMINAL_PHASES:
            phase = reported
    reason = message = ""
    if phase == previous.phase:
        reason = previous.reason or pod.status.reason
        message = previous.message or pod.status.message
    if eviction is not None:
        phase, reason, message = POD_FAILED, eviction.reason, eviction.message
    if pod.status.phase in TERMINAL_PHASES:
        phase = pod.status.phase
    return attrs.evolve(status, phase=phase, reason=reason, message=message)


def _with_outcomes(status: PodStatus, pod: Pod, previous: PodStatus, outcomes: ProbeOutcomes) -> PodStatus:
    def probed(
        containers: Sequence[Container],
        now: Sequence[ContainerStatus],
        before: Sequence[ContainerStatus],
        *,
        init: bool,
    ) -> tuple[ContainerStatus, ...]:
        by_name = {container.name: container for container in containers}
        old = {one.name: one for one in before}
        return tuple(
            with_probe_outcomes(
                by_name[one.name],
                one,
                old.get(one.name),
                outcomes,
                runs_to_completion=init and not is_sidecar(by_name[one.name]),
            )
            for one in now
        )

    main = probed(pod.spec.containers, status.container_statuses, previous.container_statuses, init=False)
    init = probed(pod.spec.init_containers, status.init_container_statuses, previous.init_container_statuses, init=True)
    return attrs.evolve(status, container_statuses=main, init_container_statuses=init)


def _conditions(
    pod: Pod,
    observed: PodRuntimeStatus,
    previous: PodStatus,
    status: PodStatus,
    resizes: Sequence[PodCondition],
) -> tuple[PodCondition, ...]:
    conditions = [
        condition
        for condition in pod.status.conditions
        if condition.type not in OWNED_CONDITIONS and condition.type not in SHARED_CONDITIONS
    ]
    conditions += resizes
    # A disruption was said once, when the pod was chosen; nothing that is observed later says it again.
    disruption = find_condition(previous.conditions, DISRUPTION_TARGET) or find_condition(
        pod.status.conditions, DISRUPTION_TARGET
    )
    if disruption is not None:
        conditions.append(disruption)
    statuses = (*status.init_container_statuses, *status.container_statuses)
    conditions += [
        ready_to_start_condition(pod, observed),
        initialized_condition(pod, previous, statuses, status.phase),
        ready_condition(pod, conditions, statuses, status.phase),
        containers_ready_condition(pod, statuses, status.phase),
        scheduled_condition(pod),
    ]
    if could_restart_all(pod):
        conditions.append(restarting_condition(pod, observed, previous, status.phase))
    return tuple(conditions)


def _with_addresses(status: PodStatus, pod: Pod, observed: PodRuntimeStatus, host_ips: Sequence[str]) -> PodStatus:
    pod_ips = sort_pod_ips(observed.ips, host_ips)
    if pod.spec.host_network and host_ips:
        pod_ips = pod_ips or [host_ips[0]]
        if len(pod_ips) == 1 and len(host_ips) > 1 and _family(pod_ips[0]) != _family(host_ips[1]):
            pod_ips.append(host_ips[1])
    return attrs.evolve(
        status,
        host_ip=host_ips[0] if host_ips else "",
        host_ips=tuple(HostIP(ip=ip) for ip in host_ips[:2]),
        pod_ip=pod_ips[0] if pod_ips else "",
        pod_ips=tuple(PodIP(ip=ip) for ip in pod_ips),
    )


def host_ip_mismatch(previous: PodStatus, host_ips: Sequence[str]) -> str | None:
    """What to tell when the node's address, once reported, becomes one of the other family.

    That is how a node ends whose agent found one address and whose cloud provider then chose another.
    """
    old = previous.host_ip
    if not old or not host_ips or _family(old) == _family(host_ips[0]):
        return None
    return (
        f"Kubelet detected an IPv{_family(old)} node IP ({old}), but the cloud provider selected an "
        f"IPv{_family(host_ips[0])} node IP ({host_ips[0]}); "
        "pass an explicit `--node-ip` to kubelet to fix this."
    )


def _family(ip: str) -> int:
    """4 or 6."""
    return 6 if ":" in ip else 4
