"""The status of a pod, from its spec, what the runtime shows and what was reported before.

Everything here is a function of its arguments: the same node seen the same way is reported the same way. The outcomes
are those of the kubelet's `generateAPIPodStatus`.

A container that ended may be removed by something else before it was looked at. If the runtime's events told of its
end, its exit code is known all the same: `with_lost_ends` adds such containers to what was observed. A container that
was never seen to end counts as failed in the last status of a pod (`terminated_status`): a pod must not look as if it
had done its work when that is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.api import (
    CONDITION_TRUE,
    DISRUPTION_TARGET,
    POD_FAILED,
    POD_READY,
    POD_RUNNING,
    ContainerState,
    ContainerStatus,
    HostIP,
    PodIP,
    PodStatus,
    is_sidecar,
    qos_class,
)
from trikubelet.api.pod_kinds import TERMINAL_PHASES, has_ended, is_static_pod
from trikubelet.container.downward import sort_pod_ips
from trikubelet.formats.values import frozen
from trikubelet.status.conditions import (
    OWNED_CONDITIONS,
    SHARED_CONDITIONS,
    containers_ready_condition,
    could_restart_all,
    find_condition,
    initialized_condition,
    ready_condition,
    ready_to_start_condition,
    restarting_condition,
    restarts_all,
    scheduled_condition,
)
from trikubelet.status.container_statuses import (
    LOST_WHEN_TERMINATED,
    NO_OUTCOMES,
    ProbeOutcomes,
    ResourceHealthOf,
    StatusContext,
    container_statuses,
    no_resource_health,
    unknown_end,
    with_probe_outcomes,
)
from trikubelet.status.phase import pod_phase
from trikubelet.status.resources import with_pod_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trikubelet.api import Container, Pod, PodCondition
    from trikubelet.container import model
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.status.resources import ActualResources

    _Statuses = Sequence[ContainerStatus]


@frozen
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
    ipv6_first: bool = False,
    outcomes: ProbeOutcomes = NO_OUTCOMES,
    eviction: Eviction | None = None,
    recursive_read_only: bool = False,
    resource_health: ResourceHealthOf = no_resource_health,
    resizes: Sequence[PodCondition] = (),
    tells_sandbox: bool = True,
    actual: ActualResources | None = None,
) -> PodStatus:
    """The status to report of the pod. Times of transitions and the start time are the status manager's to set.

    - `previous` is what the status manager holds, or the pod's own status when it holds none.
    - `waiting_reasons` has reason and message of containers that could not be started, by name.
    - `terminal`: no container will be started again.
    - `host_ips` are the node's addresses, the primary one first; they are also those of a pod in the host's network.
    - `ipv6_first`: of a pod with addresses of both families, this is the primary one.
    - `eviction` ends the pod, whatever its containers do.
    - `recursive_read_only`: the runtime can mount volumes read-only with everything below them.
    - `resource_health` tells how the devices of a container do, by its name.
    - `resizes`: the conditions about the pod's resize, if it has one.
    - `tells_sandbox`: the condition PodReadyToStartContainers is wanted.
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
    conditions = _conditions(pod, observed, previous, status, resizes, sandbox=tells_sandbox)
    return _with_addresses(attrs.evolve(status, conditions=conditions), pod, observed, host_ips, ipv6_first=ipv6_first)


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


def _is_ready(status: PodStatus) -> bool:
    condition = find_condition(status.conditions, POD_READY)
    return condition is not None and condition.status == CONDITION_TRUE


def _with_outcomes(status: PodStatus, pod: Pod, previous: PodStatus, outcomes: ProbeOutcomes) -> PodStatus:
    # Of a static pod, what its mirror pod says counts, which is all that there is.
    pod_was_ready = is_static_pod(pod) or _is_ready(pod.status)

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
                pod_was_ready=pod_was_ready,
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
    *,
    sandbox: bool,
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
        *([ready_to_start_condition(pod, observed)] if sandbox else []),
        initialized_condition(pod, previous, statuses, status.phase),
        ready_condition(pod, conditions, statuses, status.phase),
        containers_ready_condition(pod, statuses, status.phase),
        scheduled_condition(pod),
    ]
    if could_restart_all(pod):
        conditions.append(restarting_condition(pod, observed, previous, status.phase))
    return tuple(conditions)


def _with_addresses(
    status: PodStatus, pod: Pod, observed: PodRuntimeStatus, host_ips: Sequence[str], *, ipv6_first: bool
) -> PodStatus:
    pod_ips = sort_pod_ips(observed.ips, ipv6_first=ipv6_first)
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
    """The message when the node's address, once reported, becomes one of the other family.

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


def with_lost_ends(
    observed: PodRuntimeStatus, previous: PodStatus, seen_end: Callable[[str], model.ContainerStatus | None]
) -> PodRuntimeStatus:
    """The observed status, with the ends of those that were reported as running and are gone.

    `seen_end` tells the last status of a container by its id, if it is known.
    """
    shown = {status.id.id for status in observed.container_statuses}
    reported = (
        *previous.init_container_statuses,
        *previous.container_statuses,
        *previous.ephemeral_container_statuses,
    )
    running = (status.container_id.rpartition("/")[2] for status in reported if status.state.running is not None)
    ends = [end for container_id in running if container_id not in shown and (end := seen_end(container_id))]
    if not ends:
        return observed
    newest_first = sorted((*observed.container_statuses, *ends), key=_created_at, reverse=True)
    return attrs.evolve(observed, container_statuses=tuple(newest_first))


def _created_at(status: model.ContainerStatus) -> float:
    """In Unix seconds; an unknown one counts as long ago."""
    return 0.0 if status.created_at is None else status.created_at.timestamp()


def terminated_status(pod: Pod, status: PodStatus) -> PodStatus:
    """`status`, with an end for each container that has begun and a phase that is one (kubelet: `TerminatePod`).

    Containers that never began are left as they are. A static pod keeps its phase: the same pod may come back with the
    same file.
    """
    init = status.init_container_statuses
    begun = _begun(init)
    status = attrs.evolve(
        status, init_container_statuses=tuple(_ended(one) for one in init[:begun]) + tuple(init[begun:])
    )
    if has_initialized(pod, status):
        ended = tuple(_ended(one) for one in status.container_statuses)
        status = attrs.evolve(status, container_statuses=ended)
    if not has_ended(status) and not is_static_pod(pod):
        status = attrs.evolve(status, phase=POD_FAILED)
    return status


def has_initialized(pod: Pod, status: PodStatus) -> bool:
    """Whether there is a sign that a main container was ever to be started (kubelet: `hasPodInitialized`)."""
    if not pod.spec.init_containers:
        return True
    if any(one.last_state.terminated is not None or one.state.waiting is None for one in status.container_statuses):
        return True
    if not status.init_container_statuses:
        return False
    last = status.init_container_statuses[-1]
    container = next((one for one in pod.spec.init_containers if one.name == last.name), None)
    if container is None:
        return False
    if is_sidecar(container):
        return last.state.running is not None and bool(last.started)
    ends = (last.last_state.terminated, last.state.terminated)
    return any(end is not None and end.exit_code == 0 for end in ends)


def _begun(statuses: Sequence[ContainerStatus]) -> int:
    """How many init containers have begun: all but the last ones that still wait, and the first in any case."""
    for index in range(len(statuses) - 1, -1, -1):
        if statuses[index].state.waiting is None or statuses[index].last_state.terminated is not None:
            return index + 1
    return min(1, len(statuses))


def _ended(status: ContainerStatus) -> ContainerStatus:
    if status.state.terminated is not None:
        return status
    return attrs.evolve(status, state=ContainerState(terminated=unknown_end(LOST_WHEN_TERMINATED)))
