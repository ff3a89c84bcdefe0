"""Thousands of static pods come, are rejected, and go: no step of the event loop handles more than a slice of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.agent.sim_node import static_pod
from tests.captured_logs import capture_logs
from trikubelet.admission.admit import NodeAdmission
from trikubelet.pods import registry as registry_module
from trikubelet.pods.registry import KnownPods, PodWorkerRegistry
from trikubelet.pods.sync_handler import SyncHandler
from trikubelet.pods.sync_loop import MOST_NAMED, SLICE
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import SIMULATED_MACHINE, SimulatedNode, simulated_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.agent.node import MachineView
    from trikubelet.api import Pod

PODS: Final = 1500
CPUS: Final = 2
"""Of the node; each pod wants nearly one."""


class WorkOfSteps(trio.abc.Instrument):
    """Counts calls in each step of the event loop."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """The most calls in one step, by name."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._calls.clear()

    def counted(self, owner: type[Any], name: str, patch: pytest.MonkeyPatch) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls[name] += 1
            self.most[name] = max(self.most[name], self._calls[name])
            return original(*arguments, **named)

        patch.setattr(owner, name, call)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> WorkOfSteps:
    work = WorkOfSteps()
    for name in ("add_pod", "update_pod", "remove_pod"):
        work.counted(SyncHandler, name, monkeypatch)
    work.counted(NodeAdmission, "admit", monkeypatch)
    return work


def small_machine() -> MachineView:
    machine = SIMULATED_MACHINE.machine
    assert machine is not None
    return attrs.evolve(SIMULATED_MACHINE, machine=attrs.evolve(machine, cpus=CPUS))


def wants_a_processor(name: str, image: str = "test:1") -> Pod:
    main = {"name": "main", "image": image, "resources": {"requests": {"cpu": "900m"}}}
    return static_pod(name, containers=[main], terminationGracePeriodSeconds=1)


def running(node: SimulatedNode) -> set[str]:
    return {container.pod_uid for container in node.sim.running_containers()}


def test_no_step_handles_more_than_a_slice_of_them(work: WorkOfSteps) -> None:
    async def live() -> None:
        pods = [wants_a_processor(f"p{number}") for number in range(PODS)]
        async with simulated_node(SimulatedRuntime(seed=1), machine=small_machine()) as node:
            source = node.source()
            source.put(*pods)
            await trio.sleep(10)
            first = running(node)
            assert len(first) == CPUS
            assert work.most["admit"] == SLICE
            work.most.clear()
            source.remove(first.pop())
            await trio.sleep(10)
            assert len(running(node)) == CPUS, "one that was rejected runs in its place"
            assert work.most["admit"] == SLICE
            work.most.clear()
            source.put(*[wants_a_processor(f"p{number}", "test:2") for number in range(PODS)])
            await trio.sleep(10)
            source.remove(*source.pods)
            await trio.sleep(20)
            assert running(node) == set()
            assert node.agent.workers.states.phases() == {}
            assert max(work.most.values()) == SLICE

    with capture_logs() as lines:
        trio.run(live, clock=MockClock(autojump_threshold=0), instruments=[work])
    assert not [line for line in lines if line["log_level"] == "error"]
    [added] = [line for line in lines if line["event"] == "pods add" and "more" in line]
    assert (len(added["pods"]), added["more"]) == (MOST_NAMED, PODS - MOST_NAMED)


def test_other_events_wait_until_a_batch_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what ends in the middle of a batch could make room for a pod that comes after those that are still to be
    judged."""
    order: list[str] = []
    add_pod, admit_again = SyncHandler.add_pod, SyncHandler.admit_rejected_again

    def added(handler: SyncHandler, pod: Pod, *more: Any) -> None:
        order.append("add")
        add_pod(handler, pod, *more)

    def admitted(handler: SyncHandler, pods: Any) -> None:
        order.append("admit")
        admit_again(handler, pods)

    monkeypatch.setattr(SyncHandler, "add_pod", added)
    monkeypatch.setattr(SyncHandler, "admit_rejected_again", admitted)

    async def live() -> None:
        async with simulated_node(SimulatedRuntime(seed=1), machine=small_machine()) as node:
            source = node.source()
            source.put(*[wants_a_processor(f"a{number}") for number in range(CPUS + 1)])
            await trio.sleep(10)
            order.clear()
            node.agent.workers.finished.send("some")
            source.put(*[wants_a_processor(f"b{number}") for number in range(5 * SLICE)])
            for _ in range(100):
                node.agent.workers.finished.send("some")
                await trio.lowlevel.checkpoint()
            await trio.sleep(10)

    with capture_logs():
        trio.run(live, clock=MockClock(autojump_threshold=0))
    assert order.count("add") == 5 * SLICE
    first = order.index("add")
    assert order[first : first + 5 * SLICE] == ["add"] * 5 * SLICE
    assert "admit" in order


def test_an_agent_that_ends_its_pods_in_the_middle_of_a_batch_takes_in_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def live() -> int:
        async with simulated_node(SimulatedRuntime(seed=1), machine=small_machine()) as node:
            original = SyncHandler.add_pod

            def add_pod(handler: SyncHandler, pod: Pod, *more: Any) -> None:
                node.agent.sync_loop.stop_starting()
                original(handler, pod, *more)

            monkeypatch.setattr(SyncHandler, "add_pod", add_pod)
            node.source().put(*[wants_a_processor(f"p{number}") for number in range(3 * SLICE)])
            await trio.sleep(10)
            return len(node.agent.pods.pods())

    with capture_logs():
        assert trio.run(live, clock=MockClock(autojump_threshold=0)) == SLICE


def test_thousands_of_finished_pods_are_forgotten_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    sync = PodWorkerRegistry.sync_known_pods

    def sync_known_pods(registry: PodWorkerRegistry, desired: Any, now: float) -> KnownPods:
        before = len(registry.phases)
        known = sync(registry, desired, now)
        assert known.workers.keys() == registry.phases.keys()
        assert known.faults == ()
        forgotten.append(before - len(registry.phases))
        return known

    monkeypatch.setattr(PodWorkerRegistry, "sync_known_pods", sync_known_pods)
    monkeypatch.setattr(registry_module, "MOST_PURGED", 40)

    async def live() -> None:
        async with simulated_node(SimulatedRuntime(seed=1), machine=small_machine()) as node:
            source = node.source()
            source.put(*[wants_a_processor(f"p{number}") for number in range(100)])
            await trio.sleep(10)
            source.remove(*source.pods)
            await trio.sleep(20)
            assert node.agent.workers.states.phases() == {}

    with capture_logs():
        trio.run(live, clock=MockClock(autojump_threshold=0))
    assert sum(forgotten) == 100
    assert max(forgotten) == 40
