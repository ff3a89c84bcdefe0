"""Probes, statuses and a worker without a task, for the tables of this folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from trikubelet.api import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
)
from trikubelet.container.model import ContainerID
from trikubelet.container.probe_results import ProbeResult
from trikubelet.probes.decisions import Next, Verdict, WorkerSpec, WorkerState, counted, decide, observe, workers_of
from trikubelet.probes.types import ProbeKind

STARTED = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
"""When the agent started, and the containers of most tests."""
ID = ContainerID("test", "1")
LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN
FIELDS = {LIVENESS: "liveness_probe", READINESS: "readiness_probe", STARTUP: "startup_probe"}
INITIAL = {LIVENESS: SUCCESS, READINESS: FAILURE, STARTUP: UNKNOWN}

each_kind = pytest.mark.parametrize("kind", ProbeKind, ids=lambda kind: kind.value)


def probe(**fields: int) -> Probe:
    defaults: dict[str, Any] = dict.fromkeys(("period_seconds", "success_threshold", "failure_threshold"), 1)
    return Probe(**defaults | fields)


def container(kind: ProbeKind, asks: Probe | None = None, **fields: Any) -> Container:
    fields[FIELDS[kind]] = asks or probe()
    return Container(name="c", **fields)


def pod_of(*containers: Container, sidecar: Container | None = None, restart: str = "Never") -> Pod:
    init = () if sidecar is None else (sidecar,)
    spec = PodSpec(containers=containers, init_containers=init, restart_policy=restart)
    return Pod(metadata=ObjectMeta(name="p", uid="u"), spec=spec)


def running(*, started: bool | None = True, id_: str = "test://1", since: datetime | None = STARTED) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning(started_at=since))
    return ContainerStatus(name="c", container_id=id_, state=state, started=started)


def waiting() -> ContainerStatus:
    return ContainerStatus(name="c", container_id="test://1", state=ContainerState(waiting=ContainerStateWaiting()))


def ended(code: int = 0, name: str = "c") -> ContainerStatus:
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=code))
    return ContainerStatus(name=name, container_id=f"test://{'1' if name == 'c' else name}", state=state)


def status_of(*containers: ContainerStatus, phase: str = "Running", **fields: Any) -> PodStatus:
    return PodStatus(phase=phase, container_statuses=containers, **fields)


@attrs.define
class Worker:
    """Remembers what a worker would, keeps its results, and asks a container that says what it is told to."""

    spec: WorkerSpec
    status: PodStatus | None = None
    answer: bool = True
    deleting: bool = False
    now: datetime = STARTED
    agent_started: datetime | None = STARTED
    state: WorkerState = attrs.field(factory=WorkerState)
    results: dict[ContainerID, ProbeResult] = attrs.field(factory=dict)
    asked: int = 0

    @property
    def result(self) -> ProbeResult | None:
        return self.results.get(ID)

    def look(self) -> Verdict:
        seen = observe(self.spec, self.status, deleting=self.deleting, now=self.now, agent_started=self.agent_started)
        return self._keep(decide(self.spec, self.state, seen))

    def probe(self) -> bool:
        """One round, as the kubelet's `doProbe`. Tells whether the worker goes on."""
        verdict = self.look()
        if verdict.next is Next.ASK:
            self.asked += 1
            verdict = self._keep(counted(self.spec, self.state, self.answer))
        return verdict.next is not Next.END

    def _keep(self, verdict: Verdict) -> Verdict:
        self.state = verdict.state
        for container_id, result in verdict.results:
            if result is None:
                del self.results[container_id]
            else:
                self.results[container_id] = result
        return verdict


def worker(kind: ProbeKind, status: PodStatus | None = None, asks: Probe | None = None, **fields: Any) -> Worker:
    """For the only container of a pod that never restarts; it began with the agent."""
    (spec,) = workers_of(pod_of(container(kind, asks, **fields)))
    return Worker(spec, status)


def sidecar_worker(kind: ProbeKind, status: ContainerStatus, asks: Probe | None = None) -> Worker:
    (spec,) = workers_of(pod_of(Container(name="main"), sidecar=container(kind, asks, restart_policy="Always")))
    return Worker(spec, PodStatus(phase="Running", init_container_statuses=(status,)))


def in_turn(kind: ProbeKind, **fields: Any) -> PodStatus:
    """The container runs, and it is the turn of this kind of probe."""
    return status_of(running(started=kind is not STARTUP, **fields))
