"""What tests want of a simulated node: pods for it, waiting for what becomes of them, and a clock that suits a disk."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.testing import MockClock

from trikubelet.agent.agent import Agent
from trikubelet.api import Pod, PodStatus, pod_from_dict, set_pod_defaults
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node
from trikubelet.sim.probing import SimulatedTargets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest


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
    """A simulated node with one source of pods."""

    agent: Agent
    sim: SimulatedRuntime
    source: ScriptedSource
    targets: SimulatedTargets
    """Whom the agent's probes ask."""

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
    folder: Path | None = None,
    sim: SimulatedRuntime | None = None,
    source: ScriptedSource | None = None,
    feature_gates: dict[str, bool] | None = None,
    pull_progress: Callable[[str], str] = lambda image: "",
) -> AsyncIterator[SimNode]:
    """A running agent. Leaving it ends the agent as `kill -9` would: pods stay as they are in `sim`.

    With a folder it has its files on the disk and looks for pidfds, as on a foreign runtime that hides its processes;
    without one it has neither a disk nor a kernel.
    """
    sim = sim or SimulatedRuntime(seed=1)
    source = source or ScriptedSource("file")
    async with simulated_node(
        sim,
        sources={source.name: source},
        folder=folder,
        sees_exits=folder is None,
        configuration=KubeletConfiguration(feature_gates=feature_gates or {}),
        pull_progress=pull_progress,
    ) as node:
        yield SimNode(node.agent, sim, source, node.targets)
