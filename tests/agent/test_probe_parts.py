"""What an agent's probes are made of, and what they cost an agent without any."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import trio

from trikubelet.agent_probes import ProbeParts
from trikubelet.api import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
    TCPSocketAction,
)
from trikubelet.clock import TrioClock
from trikubelet.cri.client import RuntimeClient
from trikubelet.events import EventRecorder
from trikubelet.pods.manager import PodManager
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeTarget
from trikubelet.runtime.plan import ProbeResult
from trikubelet.sim import SimulatedRuntime
from trikubelet.status.manager import StatusManager

if TYPE_CHECKING:
    from trio.testing import MockClock

HEAVY = ("h11", "trikubelet.probes.http", "trikubelet.probes.grpc_health", "trikubelet.probes.health_v1")


def test_an_agent_whose_pods_have_no_probes_loads_no_handlers_for_them() -> None:
    code = f"import sys, trikubelet.agent; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


async def test_an_asker_that_stands_in_is_asked_and_its_failures_are_told(autojump_clock: MockClock) -> None:
    probe = Probe(tcp_socket=TCPSocketAction(port=1), period_seconds=5, failure_threshold=2, success_threshold=1)
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u"),
        spec=PodSpec(containers=(Container(name="c", liveness_probe=probe),)),
    )
    asked = []

    async def asker(target: ProbeTarget, /) -> ProbeAnswer:
        asked.append(trio.current_time() - began)
        return ProbeAnswer(Outcome.FAILURE, "no")

    clock, pods = TrioClock(), PodManager((pod,))
    statuses, recorder = StatusManager(clock, pods), EventRecorder(clock)
    async with SimulatedRuntime().connect() as channel, trio.open_nursery() as nursery:
        began = trio.current_time()
        parts = ProbeParts(
            RuntimeClient(channel),
            statuses,
            recorder=recorder,
            clock=clock,
            rng=Random(0),
            newest=pods.pod_by_uid,
            asker=asker,
        )
        await trio.sleep(10)
        await nursery.start(parts.run)
        running = ContainerState(running=ContainerStateRunning(started_at=clock.now()))
        status = ContainerStatus(name="c", container_id="simulated://1", state=running, started=True)
        statuses.set_pod_status(pod, PodStatus(phase="Running", pod_ip="10.0.0.1", container_statuses=(status,)))
        parts.manager.add_pod(pod)
        update = await parts.receive()
        assert update.result is ProbeResult.FAILURE
        assert asked == [10, 15]
        assert [(one.message, one.count) for one in recorder.events_of("u")] == [("Liveness probe failed: no", 2)]
        nursery.cancel_scope.cancel()
