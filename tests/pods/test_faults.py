"""A fault of the agent in the middle of work on one pod: that pod is taken up again, and no other notices."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, sim_node
from tests.pods.test_tree import PROBE, deleted, life_of, make_pod
from trikubelet.api import PodStatus
from trikubelet.pods.machine import IllegalTransitionError
from trikubelet.pods.registry import PodWorkerRegistry
from trikubelet.pods.sync_handler import SyncHandler
from trikubelet.pods.syncer import AgentPodSyncer, SyncContext
from trikubelet.probes.manager import PodProbes
from trikubelet.probes.worker import Worker
from trikubelet.runtime.containers.life import ContainerLife
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import ScriptedSource

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.sim.machine import Container

SPEC: Final[dict[str, Any]] = {
    "containers": [{"name": "main", "image": "test:1", "readinessProbe": PROBE, "livenessProbe": PROBE}]
}
GOOD: Final = [make_pod(f"good-{number}", **SPEC) for number in range(3)]
BAD: Final = make_pod("bad", **SPEC)
UID: Final = BAD.metadata.uid


def runtime_error() -> Exception:
    return RuntimeError("nobody thought of that")


def illegal_transition() -> Exception:
    return IllegalTransitionError(UID, "Somehow", "anything")


@attrs.define
class Fault:
    """The first so many calls of a method that are about the bad pod raise."""

    method: Callable[..., Any]
    uid: Callable[..., str]
    """Of the pod that a call is about, by its arguments."""
    error: Callable[[], Exception]
    left: int = 0
    raised: int = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.left and self.uid(*arguments) == UID:
            self.left -= 1
            self.raised += 1
            if inspect.iscoroutinefunction(self.method):
                return self._fail_later()
            raise self.error()
        return self.method(*arguments, **options)

    async def _fail_later(self) -> None:
        await trio.lowlevel.checkpoint()
        raise self.error()


def _own(syncer: Any, *_: object) -> str:
    return str(syncer._uid)


def _second(_: object, uid: str, *__: object) -> str:
    return uid


def _of_request(_: object, request: Any, *__: object) -> str:
    pod = getattr(request, "pod", None)
    return "" if pod is None else str(pod.metadata.uid)


def _of_pod(_: object, pod: Pod, *__: object) -> str:
    return pod.metadata.uid


def _of_container(life: ContainerLife, *_: object) -> str:
    assert isinstance(life._probes, PodProbes)
    return life._probes._uid


def _of_worker(worker: Worker, *_: object) -> str:
    return worker.spec.key.pod_uid


PLACES: Final = [
    (AgentPodSyncer, "sync_pod", _own, runtime_error),
    (AgentPodSyncer, "sync_terminating_pod", _own, runtime_error),
    (AgentPodSyncer, "sync_terminated_pod", _own, runtime_error),
    (AgentPodSyncer, "shorten_grace", _own, runtime_error),
    (SyncContext, "open_pod", _second, runtime_error),
    *(
        (PodWorkerRegistry, name, uid, error)
        for name, uid in (("update_pod", _of_request), ("begin", _second), ("done", _second))
        for error in (runtime_error, illegal_transition)
    ),
    (ContainerLife, "live", _of_container, runtime_error),
    (ContainerLife, "_end", _of_container, runtime_error),
    (PodProbes, "_follow_status", _own, runtime_error),
    (Worker, "run", _of_worker, runtime_error),
    (Worker, "_inspect", _of_worker, runtime_error),
    *(
        pytest.param(SyncHandler, name, _of_pod, runtime_error)
        for name in ("add_pod", "update_pod", "remove_pod", "reconcile_pod")
    ),
]


@pytest.mark.parametrize(("place", "name", "uid", "error"), PLACES)
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.night), 3])
async def test_a_fault_in_one_pod_is_that_pods_alone(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    place: type[object],
    name: str,
    uid: Callable[..., str],
    error: Callable[[], Exception],
    times: int,
) -> None:
    fault = Fault(getattr(place, name), uid, error)
    monkeypatch.setattr(place, name, lambda *arguments, **options: fault(*arguments, **options))
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever(sigterm=3))
    source = ScriptedSource("api")
    async with sim_node(sim=sim, source=source) as node:
        source.put(*GOOD)
        for pod in GOOD:
            await node.until_running(pod)
        await trio.sleep(20)
        before = _running(node)

        fault.left = times
        source.put(BAD)
        await node.until(lambda: len(sim.running_containers(UID)) == 1, within=300)
        await node.until_running(BAD, within=300)
        await trio.sleep(10)
        changed = attrs.evolve(BAD, metadata=attrs.evolve(BAD.metadata, labels={"changed": "yes"}))
        source.put(changed)
        await trio.sleep(10)
        source.put(attrs.evolve(changed, status=PodStatus(phase="Running", message="seen")))
        await trio.sleep(10)
        assert len(sim.running_containers(UID)) == 1
        assert _running(node) == before
        source.put(deleted(node, changed, 20))
        await trio.sleep(1)
        source.put(deleted(node, changed, 10))
        await node.until(lambda: not sim.running_containers(UID), within=300)
        await node.until(lambda: node.agent.workers.states.should_pod_be_finished(UID), within=300)
        source.remove(BAD)
        await node.until_gone(BAD, within=300)
        assert fault.raised == times or (fault.raised > 0 and fault.left > 0 and times > 1)
        assert _running(node) == before

        # The others are looked after as ever.
        (first, *_) = before
        sim.end_container(first, 1)
        await node.until(lambda: len(_running(node)) == len(before), within=40)
        source.put(deleted(node, GOOD[1], 5))
        await node.until(lambda: not sim.running_containers(GOOD[1].metadata.uid), within=10)
        assert len(life_of(GOOD[2])) > 1


def _running(node: SimNode) -> list[Container]:
    """Of the good pods."""
    return [one for pod in GOOD for one in node.sim.running_containers(pod.metadata.uid)]
