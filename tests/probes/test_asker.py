"""Who asks the probed containers, and what probes cost an agent without any."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import trio

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
from trikubelet.container.probe_results import ProbeResult
from trikubelet.pods.manager import PodManager
from trikubelet.probes.manager import ProbeManager
from trikubelet.probes.prober import Prober
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeTarget
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from trio.testing import MockClock

HEAVY = ("h11", "trikubelet.probes.http", "trikubelet.probes.grpc_health", "trikubelet.rpc.health.v1")


def test_an_agent_whose_pods_have_no_probes_loads_no_handlers_for_them() -> None:
    code = f"import sys, trikubelet.agent.agent; print([name for name in {HEAVY} if name in sys.modules])"
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
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        manager = ProbeManager(Prober(asker, recorder), statuses, clock=clock, rng=Random(0), newest=pods.pod_by_uid)
        await trio.sleep(10)
        running = ContainerState(running=ContainerStateRunning(started_at=clock.now()))
        status = ContainerStatus(name="c", container_id="simulated://1", state=running, started=True)
        statuses.set_pod_status(pod, PodStatus(phase="Running", pod_ip="10.0.0.1", container_statuses=(status,)))
        with manager.of_pod("u", nursery) as probes:
            probes.add(pod)
            nursery.start_soon(probes.run, "c")
            update = await manager.receive()
        assert update.result is ProbeResult.FAILURE
        assert asked == [10, 15]
        assert [(one.message, one.count) for one in recorder.events_of("u")] == [("Liveness probe failed: no", 2)]
        nursery.cancel_scope.cancel()
