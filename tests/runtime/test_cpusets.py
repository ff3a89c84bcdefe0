"""Containers that run are moved when the CPUs change that they may use."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio
from grpclib.const import Status

from tests.allocation.pods import cpu_pod
from tests.allocation.test_managers import Node, exclusive, shared
from trikubelet.allocation.cpus.state import CpuState
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.broadcast import Broadcast
from trikubelet.container.model import ContainerID, ContainerState, ContainerStatus, PodRuntimeStatus
from trikubelet.pleg.cache import PodStatusCache
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.cpusets import CpusetReconciler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.rpc.cri import v1
    from trikubelet.rpc.cri.client import RuntimeClient

PERIOD = 10.0
RUNNING = ContainerState.RUNNING


@attrs.define
class Stage:
    """A runtime that notes what it is told, the node's managers, and what PLEG has seen."""

    node: Node = attrs.field(factory=lambda: Node(None))
    told: list[tuple[str, str]] = attrs.field(factory=list)
    failing: set[str] = attrs.field(factory=set)
    odd: set[str] = attrs.field(factory=set)
    """Containers about which the runtime says what nobody thought of."""
    cache: PodStatusCache = attrs.field(factory=lambda: PodStatusCache(lambda _uid, _at: None))
    observed: Broadcast[PodRuntimeStatus] = attrs.field(factory=Broadcast)

    async def update_container_resources(self, container_id: str, linux: v1.LinuxContainerResources) -> None:
        await trio.sleep(0.01)
        if container_id in self.failing:
            raise CRIError("UpdateContainerResources", Status.UNAVAILABLE, "away")
        if container_id in self.odd:
            raise RuntimeError("nobody thought of that")
        self.told.append((container_id, linux.cpuset_cpus))

    def runs(self, pod: Pod, run: int = 1, state: ContainerState = ContainerState.RUNNING) -> None:
        uid = pod.metadata.uid
        (container,) = pod.spec.containers
        one = ContainerStatus(id=ContainerID("sim", f"{uid}-{run}"), name=container.name, state=state)
        status = PodRuntimeStatus(uid=uid, name=uid, namespace="default", container_statuses=(one,))
        self.cache.publish(uid, status, trio.current_time())
        self.observed.send(status)

    async def start(self, pod: Pod, run: int = 1) -> None:
        """As the agent starts it."""
        self.node.admit(pod)
        await self.node.managers.affinity(pod, pod.spec.containers[0])
        self.runs(pod, run)


@asynccontextmanager
async def staged(stage: Stage | None = None, told_before: dict[str, int] | None = None) -> AsyncIterator[Stage]:
    """`told_before`: which CPUs containers were moved to last, by their ids."""
    stage = stage or Stage()
    reconciler = CpusetReconciler(
        cast("RuntimeClient", stage), stage.node.managers, stage.cache, stage.observed, period=PERIOD
    )
    reconciler._applied.update(told_before or {})
    async with trio.open_nursery() as nursery:
        await nursery.start(reconciler.run)
        yield stage
        nursery.cancel_scope.cancel()


async def test_those_who_share_lose_what_another_one_gets_and_have_it_back(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        await stage.start(shared("a"))
        await stage.start(shared("b"))
        await trio.sleep(1)
        assert stage.told == [], "they were started with the right ones"
        own = exclusive("own")
        await stage.start(own)
        await trio.sleep(1)
        assert sorted(stage.told) == [("a-1", "0-1,4-7"), ("b-1", "0-1,4-7")]
        stage.told.clear()
        stage.runs(own, state=ContainerState.EXITED)
        stage.node.managers.forget("own")
        await trio.sleep(1)
        assert sorted(stage.told) == [("a-1", "0-7"), ("b-1", "0-7")]


async def test_who_was_being_started_meanwhile_is_moved_as_it_runs(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        pod = shared("a")
        stage.node.admit(pod)
        await stage.node.managers.affinity(pod, pod.spec.containers[0])
        await stage.start(exclusive("own"))
        await trio.sleep(1)
        assert stage.told == []
        stage.runs(pod)
        await trio.sleep(1)
        assert stage.told == [("a-1", "0-1,4-7")]


async def test_a_new_agent_tells_all_containers_once(autojump_clock: MockClock) -> None:
    """It does not know what they were told last."""
    async with staged() as stage:
        for pod in (exclusive("own"), shared("a")):
            stage.node.admit(pod)
            stage.runs(pod)
        await trio.sleep(3 * PERIOD)
        assert sorted(stage.told) == [("a-1", "0-1,4-7"), ("own-1", "2-3")]


async def test_what_fails_is_tried_again_and_keeps_nobody_waiting(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        await stage.start(shared("a"))
        await stage.start(shared("b"))
        stage.failing.add("a-1")
        await stage.start(exclusive("own"))
        await trio.sleep(1)
        assert stage.told == [("b-1", "0-1,4-7")]
        stage.failing.clear()
        await trio.sleep(PERIOD)
        assert stage.told[1:] == [("a-1", "0-1,4-7")]


async def test_a_fault_about_one_keeps_no_other_from_its_cpus(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        stage.odd.add("a-1")
        await stage.start(shared("a"))
        await stage.start(shared("b"))
        await stage.start(exclusive("own"))
        await trio.sleep(1)
        assert stage.told == [("b-1", "0-1,4-7")]
        stage.odd.clear()
        await trio.sleep(PERIOD + 1)
        assert stage.told == [("b-1", "0-1,4-7"), ("a-1", "0-1,4-7")]


async def test_who_does_not_run_is_left_alone(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        pod = shared("a")
        await stage.start(pod)
        stage.runs(pod, state=ContainerState.EXITED)
        await stage.start(exclusive("own"))
        await trio.sleep(2 * PERIOD)
        assert stage.told == []
        await stage.start(pod, run=2)
        await trio.sleep(2 * PERIOD)
        assert stage.told == [], "it starts with what is shared by then"


async def test_a_pod_that_was_refused_its_devices_took_nothing(autojump_clock: MockClock) -> None:
    async with staged() as stage:
        await stage.start(shared("a"))
        stage.node.managers.admit(exclusive("own"), NothingToGive())
        stage.node.managers.forget("own")
        await trio.sleep(2 * PERIOD)
        assert stage.told == []


@pytest.mark.parametrize(
    ("cpus", "seen", "fails", "told_before", "told"),
    [
        pytest.param(0b110, RUNNING, False, {}, [("a-1", "1-2")], id="no error"),
        pytest.param(0b110, None, False, {}, [], id="pod status not found"),
        pytest.param(0b110, "another", False, {}, [], id="container state not found"),
        pytest.param(0, RUNNING, False, {}, [], id="no CPUs"),
        pytest.param(0b110, RUNNING, True, {}, [], id="the runtime fails"),
        pytest.param(0b110, RUNNING, False, {"a-1": 0b110}, [], id="told before"),
        pytest.param(0b110, RUNNING, False, {"a-1": 0b11000}, [("a-1", "1-2")], id="told something else before"),
    ],
)
async def test_the_rows_of_the_kubelets_test(
    autojump_clock: MockClock,
    cpus: int,
    seen: ContainerState | str | None,
    fails: bool,
    told_before: dict[str, int],
    told: list[tuple[str, str]],
) -> None:
    """`TestReconcileState`. Init containers are seen as all others are; what is left of pods that are gone goes when
    the next one is admitted."""
    stage, pod = Stage(), exclusive("a")
    manager = stage.node.managers._cpus
    assert manager is not None
    state = CpuState(0b11111000, {"a": {"main": cpus}})
    stage.node.managers._set(attrs.evolve(manager, state=state))
    if fails:
        stage.failing.add("a-1")
    if seen == "another":
        stage.runs(cpu_pod({"uid": "a", "containers": [["another", "2", "2"]]}), state=ContainerState.UNKNOWN)
    elif isinstance(seen, ContainerState):
        stage.runs(pod, state=seen)
    async with staged(stage, told_before):
        await trio.sleep(2 * PERIOD)
        assert stage.told == told
        assert stage.node.managers._cpus == attrs.evolve(manager, state=state)
