"""A whole agent on the simulated runtime, with a pod source that the test writes to. Time is Trio's mock clock."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.testing import MockClock

from trikubelet.agent import Agent, AgentOptions
from trikubelet.api import Pod, PodStatus, pod_from_dict, set_pod_defaults
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.cri.client import ImageClient, RuntimeClient
from trikubelet.sim import SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

CALL_SECONDS = 0.002
"""What a simulated call takes: without it, causes and effects would fall into one instant."""


@attrs.define
class TestSource:
    """A pod source: what is put into it is what the node should run."""

    __test__ = False

    name: str = "file"
    pods: dict[str, Pod] = attrs.field(factory=dict)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    async def run(
        self,
        send: trio.MemorySendChannel[tuple[Pod, ...]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        while True:
            await send.send(tuple(self.pods.values()))
            await self._changed.wait()
            self._changed = trio.Event()

    def put(self, *pods: Pod) -> None:
        self.pods.update({pod.metadata.uid: pod for pod in pods})
        self._changed.set()

    def remove(self, *pods: Pod) -> None:
        for pod in pods:
            del self.pods[pod.metadata.uid]
        self._changed.set()


def static_pod(name: str, *, uid: str | None = None, **spec: Any) -> Pod:
    """A static pod with one container `main`, as the file source would send it."""
    body = {"containers": [{"name": "main", "image": "test:1"}], **spec}
    metadata = {
        "name": f"{name}-node",
        "namespace": "default",
        "uid": uid or f"uid-of-{name}",
        "annotations": {"kubernetes.io/config.source": "file"},
    }
    return set_pod_defaults(pod_from_dict({"metadata": metadata, "spec": body, "status": {"phase": "Pending"}}))


@attrs.frozen
class SimNode:
    agent: Agent
    sim: SimulatedRuntime
    source: TestSource

    def status(self, pod: Pod) -> PodStatus:
        status = self.agent.statuses.get_pod_status(pod.metadata.uid)
        assert status is not None, f"no status of {pod.full_name}"
        return status

    async def until(self, condition: Callable[[], bool], within: float = 60.0) -> float:
        """Wait until the condition holds; the seconds that it took. Fails after `within` seconds."""
        began = trio.current_time()
        while not condition():
            waited = trio.current_time() - began
            assert waited < within, f"not so within {within} s"
            await trio.sleep(0.1)
        return trio.current_time() - began

    async def until_phase(self, pod: Pod, phase: str, within: float = 60.0) -> float:
        def reached() -> bool:
            status = self.agent.statuses.get_pod_status(pod.metadata.uid)
            return status is not None and status.phase == phase

        return await self.until(reached, within)

    async def until_running(self, pod: Pod, within: float = 60.0) -> float:
        """Wait until the pod is ready."""

        def ready() -> bool:
            status = self.agent.statuses.get_pod_status(pod.metadata.uid)
            return status is not None and any(one.type == "Ready" and one.status == "True" for one in status.conditions)

        return await self.until(ready, within)

    async def until_gone(self, pod: Pod, within: float = 60.0) -> float:
        """Wait until nothing of the pod runs and no worker knows it."""
        uid = pod.metadata.uid
        return await self.until(
            lambda: not self.sim.running_containers(uid) and self.agent.workers.states.phase(uid) is None, within
        )


def clock_without_threads(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """A clock that jumps whenever nothing can run, and file work done in place.

    With worker threads it would jump while they work, by as much as the thread takes.
    """

    async def run_sync(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    monkeypatch.setattr(trio.from_thread, "check_cancelled", lambda: None)
    return MockClock(autojump_threshold=0)


@asynccontextmanager
async def sim_node(
    folder: Path, sim: SimulatedRuntime | None = None, source: TestSource | None = None
) -> AsyncIterator[SimNode]:
    """A running agent. Leaving it ends the agent as `kill -9` would: pods stay as they are in `sim`."""
    if sim is None:
        sim = SimulatedRuntime(seed=1, clock=TrioClock())
        sim.delays["*"] = CALL_SECONDS
    source = source or TestSource()
    options = AgentOptions(
        configuration=attrs.evolve(KubeletConfiguration(), pod_logs_dir=str(folder / "logs")),
        root_dir=folder / "root",
        node_name="node",
        runtime_endpoint="unix:///simulated",
    )
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        agent = Agent(options, RuntimeClient(channel), ImageClient(channel), clock=sim.machine._clock, sources=[source])
        await nursery.start(agent.run)
        yield SimNode(agent, sim, source)
        nursery.cancel_scope.cancel()
