"""When a probe asks, and what its answers come to: all that a worker decides, as functions of values.

A worker looks before it asks. Everything that decides whether it asks is in `look`, in this order:

1. Is there anything to ask? A pod that is over ends the worker. A container that was not made yet is waited for.
2. Is the container a new one? Then what was known of the old one is forgotten, the new one begins with the value its
   kind of probe begins with, and a hold is over.
3. On hold? After a liveness failure, and after a startup probe came to either result, the container is left alone
   until there is a new one.
4. Does it run? One that does not has failed; one that never will again ends the worker.
5. Is it too early, or another kind of probe's turn? The initial delay, and startup before the others.

`counted` takes an answer: a result counts when as many answers in a row say so as the threshold asks for.

The state is what a worker remembers between its looks; the results are for the book that others read. Facts from the
kubelet's prober worker (`doProbe`), whose tables are this module's tests. One difference: a new container does not take
back that a sidecar was known to have started, however young it is.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import POD_FAILED, POD_SUCCEEDED, Container, ContainerStatus, Pod, PodSpec, Probe, is_sidecar
from trikubelet.container.model import ContainerID, PodRuntimeStatus
from trikubelet.container.probe_results import ProbeResult
from trikubelet.container.restart_policy import should_restart
from trikubelet.formats.values import frozen
from trikubelet.probes.schedule import ROUNDING
from trikubelet.probes.types import ProbeKey, ProbeKind
from trikubelet.status.conditions import restarts_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.api import ContainerStateRunning, PodStatus

AGENT_RESTART_GRACE: Final = timedelta(seconds=10)
"""A container that is older than the agent by more than this was started by an earlier run of the agent."""

_INITIAL: Final = {
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}


@frozen
class WorkerSpec:
    """Which probe of which container a worker is for; as the pod was when the worker was made."""

    key: ProbeKey
    probe: Probe
    container: Container
    pod_spec: PodSpec
    sidecar: bool


@frozen
class WorkerState:
    """What a worker remembers."""

    container_id: ContainerID | None = None
    """The container that was last seen."""
    last: ProbeResult = ProbeResult.SUCCESS
    """What the last answer said; of an earlier container too."""
    run: int = 0
    """How many answers in a row said so, counted up to the threshold."""
    on_hold: bool = False
    """Nothing is asked before there is a new container."""


@frozen
class Observation:
    """What a worker sees when it looks."""

    phase: str | None
    """The pod's; None while nothing was reported of the pod."""
    status: ContainerStatus | None
    """The container's, as reported; None while it has none."""
    deleting: bool
    """Whether the pod is being deleted."""
    restarting_all: bool
    """Whether all containers of the pod restart, whatever their own policies say."""
    now: datetime
    agent_started: datetime | None
    """None: it is no matter what an earlier agent knew, every container begins anew."""


class Next(enum.Enum):
    """What the worker does after a verdict."""

    ASK = "ask"
    """Ask the container; after an answer was counted: go on at the next tick."""
    REST = "rest"
    """Until the status changes, or the initial delay is over."""
    END = "end"
    """This container is never asked again. The worker forgets its result and is gone."""


@frozen
class Verdict:
    """What came of a look or an answer."""

    state: WorkerState
    next: Next
    resume_in: float | None = None
    """With REST: seconds after which it is worth another look although no status changed."""
    results: tuple[tuple[ContainerID, ProbeResult | None], ...] = ()
    """What is now known of which container, to be kept in this order. None: forget it."""


def workers_of(pod: Pod) -> tuple[WorkerSpec, ...]:
    """The probes of a pod: those of its containers and its sidecars (kubelet: `AddPod`)."""
    main = [spec for container in pod.spec.containers for spec in _workers(pod, container, sidecar=False)]
    sidecars = [container for container in pod.spec.init_containers if is_sidecar(container)]
    return (*main, *(spec for container in sidecars for spec in _workers(pod, container, sidecar=True)))


def _workers(pod: Pod, container: Container, *, sidecar: bool) -> Iterator[WorkerSpec]:
    probes = (
        (ProbeKind.STARTUP, container.startup_probe),
        (ProbeKind.READINESS, container.readiness_probe),
        (ProbeKind.LIVENESS, container.liveness_probe),
    )
    for kind, probe in probes:
        if probe is not None:
            yield WorkerSpec(ProbeKey(pod.metadata.uid, container.name, kind), probe, container, pod.spec, sidecar)


def observe(
    spec: WorkerSpec, status: PodStatus | None, *, deleting: bool, now: datetime, agent_started: datetime | None
) -> Observation:
    """What the worker sees in the pod's reported status; None when nothing was reported of the pod."""
    if status is None:
        return Observation(None, None, deleting, False, now, agent_started)
    reported = (*status.container_statuses, *status.init_container_statuses)
    own = next((one for one in reported if one.name == spec.key.container), None)
    nothing_observed = PodRuntimeStatus(uid=spec.key.pod_uid, name="", namespace="")
    restarting = restarts_all(Pod(spec=spec.pod_spec), nothing_observed, status)
    return Observation(status.phase, own, deleting, restarting, now, agent_started)


def decide(spec: WorkerSpec, state: WorkerState, seen: Observation) -> Verdict:
    """Whether to ask now (kubelet: `doProbe` up to the asking)."""
    if seen.phase in (POD_FAILED, POD_SUCCEEDED):
        return Verdict(state, Next.END)
    status = None if seen.phase is None else seen.status
    container_id = None if status is None else _id_of(status)
    if status is None or container_id is None:
        return Verdict(state, Next.REST)
    results: list[tuple[ContainerID, ProbeResult | None]] = []
    if container_id != state.container_id:
        if state.container_id is not None:
            results.append((state.container_id, None))
        if (initial := _initial_result(spec, status, seen)) is not None:
            results.append((container_id, initial))
        state = attrs.evolve(state, container_id=container_id, on_hold=False)
    if state.on_hold:
        return Verdict(state, Next.REST, results=tuple(results))

    running = status.state.running
    if running is None:
        results.append((container_id, ProbeResult.FAILURE))
        return Verdict(state, Next.END if _over(spec, status, seen) else Next.REST, results=tuple(results))
    if seen.deleting and not _goes_on_in_deletion(spec):
        # The container is about to be killed for another reason than its health.
        results.append((container_id, ProbeResult.SUCCESS))
        return Verdict(state, Next.END, results=tuple(results))
    delay = _delay_left(spec.probe, running, seen.now)
    if delay is not None:
        return Verdict(state, Next.REST, delay, tuple(results))
    # Startup is over once the container has started; the others begin then.
    mine = (spec.key.kind is ProbeKind.STARTUP) != bool(status.started)
    return Verdict(state, Next.ASK if mine else Next.REST, results=tuple(results))


def counted(spec: WorkerSpec, state: WorkerState, success: bool) -> Verdict:
    """Take the answer that the container gave (kubelet: `doProbe` after the asking).

    An answer that was thrown away, since the asking itself failed, is not counted. Raises ValueError where no container
    was seen that could have answered.
    """
    container_id = state.container_id
    if container_id is None:
        raise ValueError(f"expected an answer of a container that `look` named, got one of none for {spec.key}")
    result = ProbeResult.SUCCESS if success else ProbeResult.FAILURE
    threshold = spec.probe.success_threshold if success else spec.probe.failure_threshold
    run = min(state.run + 1, threshold) if result is state.last else 1
    state = attrs.evolve(state, last=result, run=run)
    if run < threshold:
        return Verdict(state, Next.ASK)
    results = ((container_id, result),)
    if spec.key.kind is ProbeKind.STARTUP or (spec.key.kind is ProbeKind.LIVENESS and not success):
        return Verdict(attrs.evolve(state, run=0, on_hold=True), Next.REST, results=results)
    return Verdict(state, Next.ASK, results=results)


def _id_of(status: ContainerStatus) -> ContainerID | None:
    try:
        return ContainerID.parse(status.container_id)
    except ValueError:
        # Statuses of before a restart of the agent come from the API server: such an id names nothing that runs here.
        return None


def _initial_result(spec: WorkerSpec, status: ContainerStatus, seen: Observation) -> ProbeResult | None:
    """What a container that is new to the worker begins with; None to go on with what was reported of it.

    A container that outlived the agent keeps what was reported until its probe says otherwise, so that it is not taken
    out of service. The plan of a pod's start reads results instead of statuses, so a sidecar that has started says so
    at once, or its pod would never count as initialized (kubernetes#136910).
    """
    if seen.agent_started is None:
        return _INITIAL[spec.key.kind]
    if spec.sidecar and spec.key.kind is ProbeKind.STARTUP and status.started:
        return ProbeResult.SUCCESS
    started_at = None if status.state.running is None else status.state.running.started_at
    if started_at is not None and started_at < seen.agent_started - AGENT_RESTART_GRACE:
        return None
    return _INITIAL[spec.key.kind]


def _over(spec: WorkerSpec, status: ContainerStatus, seen: Observation) -> bool:
    """Whether a container that does not run never will again."""
    end = status.state.terminated
    if end is None or seen.restarting_all:
        return False
    return not should_restart(spec.container, Pod(spec=spec.pod_spec), end.exit_code)


def _goes_on_in_deletion(spec: WorkerSpec) -> bool:
    """Traffic may still come while the pod ends; a sidecar serves the others until it is its turn."""
    return spec.key.kind is ProbeKind.READINESS or spec.sidecar


def _delay_left(probe: Probe, running: ContainerStateRunning, now: datetime) -> float | None:
    """Seconds of initial delay left, None when it is over."""
    delay = probe.initial_delay_seconds
    if delay <= 0 or running.started_at is None:
        return None
    left = delay - (now - running.started_at).total_seconds()
    # Never longer than the whole delay: the wall clock may have been set back, and may be set right again.
    return min(left, float(delay)) if left > ROUNDING else None
