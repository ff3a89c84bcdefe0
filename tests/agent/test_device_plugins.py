"""Device plugins and a whole agent, on the simulated runtime: what becomes of pods that ask for devices."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from grpclib import GRPCError, Status

from tests.agent.sim_node import SimNode, clock_without_threads, static_pod
from tests.device_plugin import Brick, ToyPlugin
from tests.node.devices.plugin_sockets import PluginSockets
from trikubelet.agent.devices import DeviceFolderError
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node.devices.endpoint import ALLOCATE_SECONDS
from trikubelet.node.devices.server import FOLDER
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.node.devices.manager import DeviceManager

BRICK = "toy.example.com/brick"


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


@attrs.frozen
class PluginNode(SimNode):
    """A simulated node that takes device plugins."""

    plugins: PluginSockets

    @property
    def manager(self) -> DeviceManager:
        assert self.agent.devices.manager is not None
        return self.agent.devices.manager

    async def register(self, plugin: ToyPlugin) -> None:
        await self.plugins.register(self.manager, plugin)

    def amounts(self) -> tuple[str | None, str | None]:
        """What the node object says of bricks: capacity and allocatable."""
        status = self.agent.node.cached().status
        capacity, allocatable = status.capacity.get(BRICK), status.allocatable.get(BRICK)
        return None if capacity is None else str(capacity), None if allocatable is None else str(allocatable)

    def bricks(self, pod: Pod) -> str:
        """Those that the pod's container was told of."""
        [container] = self.sim.running_containers(pod.metadata.uid)
        return next((one.value.decode() for one in container.config.envs if one.key == "BRICKS"), "")

    def refusal(self, pod: Pod) -> tuple[str, str]:
        status = self.status(pod)
        assert status.phase == "Failed"
        return status.reason, status.message

    def health(self, pod: Pod) -> dict[str, str]:
        """What the status of the pod's container tells of its bricks."""
        [container] = self.status(pod).container_statuses
        return {
            one.resource_id: one.health
            for resource in container.allocated_resources_status
            if resource.name == BRICK
            for one in resource.resources
        }


@asynccontextmanager
async def plugin_node(
    folder: Path, sim: SimulatedRuntime, source: ScriptedSource, gates: dict[str, bool] | None = None
) -> AsyncIterator[PluginNode]:
    """Leaving it ends the agent as `kill -9` would, with its connections to plugins."""
    async with trio.open_nursery() as nursery:
        plugins = PluginSockets(nursery, folder / "root" / FOLDER)
        async with simulated_node(
            sim,
            sources={source.name: source},
            folder=folder,
            configuration=KubeletConfiguration(feature_gates=gates or {}),
            connect_plugins=plugins.connect,
        ) as node:
            yield PluginNode(node.agent, sim, source, node.targets, plugins)
        nursery.cancel_scope.cancel()


def brick_pod(name: str, bricks: int = 1, **spec: Any) -> Pod:
    limits = {"limits": {BRICK: str(bricks)}, "requests": {BRICK: str(bricks)}}
    return static_pod(name, containers=[{"name": "main", "image": "test:1", "resources": limits}], **spec)


async def test_the_life_of_a_plugin(mock_clock: MockClock, tmp_path: Path) -> None:
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    plugin = ToyPlugin(BRICK, ["a", "b"], pre_start=True)
    early, first, too_many, second, late = (brick_pod(name) for name in ("early", "first", "many", "second", "late"))
    too_many = brick_pod("many", bricks=2)
    async with plugin_node(tmp_path, sim, source) as node:
        source.put(early)
        await node.until_running(early)
        assert node.bricks(early) == "", "nobody knows of bricks yet, so they may be somebody else's business"
        assert node.amounts() == (None, None)
        source.remove(early)
        await node.until_gone(early)

        await node.register(plugin)
        assert node.amounts() == ("2", "2")
        source.put(first)
        await node.until_running(first)
        assert node.bricks(first) == "a"
        assert plugin.calls[2:] == [("Allocate", ("a",)), ("PreStartContainer", ("a",))]
        assert node.health(first) == {"a": "Healthy"}

        source.put(too_many)
        await node.until_phase(too_many, "Failed")
        problem = f"requested number of devices unavailable for {BRICK}. Requested: 2, Available: 1"
        message = f"Pod was rejected: Allocate failed due to {problem}, which is unexpected"
        assert node.refusal(too_many) == ("UnexpectedAdmissionError", message)

        plugin.tell([Brick("a", healthy=False), Brick("b")])
        await node.until(lambda: node.health(first) == {"a": "Unhealthy"}, within=2)
        assert node.amounts() == ("2", "1")
        assert node.status(first).phase == "Running"

        node.plugins.kill(plugin)
        await node.until(lambda: node.amounts() == ("2", "0"), within=2)
        source.put(second)
        await node.until_phase(second, "Failed")
        assert node.refusal(second)[0] == "UnexpectedAdmissionError"

        restarted = ToyPlugin(BRICK, ["a", "b"])
        await node.register(restarted)
        assert node.amounts() == ("2", "2")
        await node.until(lambda: node.health(first) == {"a": "Healthy"}, within=2)
        source.put(late)
        await node.until_running(late)
        assert node.bricks(late) == "b"
        node.plugins.kill(restarted)
        await trio.sleep(301)
        assert node.amounts() == ("0", "0"), "the node says that it has none any more"
        assert node.status(late).phase == "Running"


async def test_an_agent_that_was_killed_knows_who_has_what(mock_clock: MockClock, tmp_path: Path) -> None:
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    plugin = ToyPlugin(BRICK, ["a", "b"])
    first, second, third = (brick_pod(name) for name in ("first", "second", "third"))
    async with plugin_node(tmp_path, sim, source) as node:
        assert node.agent.devices.reset_extended
        await node.register(plugin)
        source.put(first)
        await node.until_running(first)
    [container] = sim.running_containers(first.metadata.uid)

    again = ScriptedSource("file")
    again.put(first)
    async with plugin_node(tmp_path, sim, again) as node:
        assert not node.agent.devices.reset_extended
        await node.until_running(first)
        assert node.amounts() == ("0", "0"), "its plugin has not come back yet"
        again.put(first, second)
        await node.until_phase(second, "Failed")
        problem = f"no healthy devices present; cannot allocate unhealthy devices {BRICK}"
        message = f"Pod was rejected: Allocate failed due to {problem}, which is unexpected"
        assert node.refusal(second) == ("UnexpectedAdmissionError", message)
        await node.register(plugin)
        again.put(third)
        await node.until_running(third)
        assert (node.bricks(first), node.bricks(third)) == ("a", "b")
        assert sim.running_containers(first.metadata.uid) == [container]
        assert plugin.asked("Allocate") == [("a",), ("b",)]
        again.remove(first)
        await node.until_gone(first)
        await node.until_running(second)
        assert node.bricks(second) == "a", "free again, and the rejected one is judged again"


async def test_a_plugin_that_hangs_holds_nobody_else(mock_clock: MockClock, tmp_path: Path) -> None:
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    plugin = ToyPlugin(BRICK, ["a", "b"])
    plugin.hanging.add("Allocate")
    waiting, deleted, other, after = brick_pod("waiting"), brick_pod("deleted"), static_pod("other"), brick_pod("after")
    async with plugin_node(tmp_path, sim, source) as node:
        await node.register(plugin)
        source.put(deleted)
        await plugin.hung.wait()
        source.put(waiting, other)
        assert await node.until_running(other) < 5
        assert set(node.agent.admitting.held) == {deleted.metadata.uid, waiting.metadata.uid}
        source.remove(deleted)
        await node.until(lambda: len(plugin.asked("Allocate")) == 2, within=2)
        assert plugin.asked("Allocate") == [("a",), ("a",)], "what nobody waits for is free"
        assert await node.until_phase(waiting, "Failed", within=70) > ALLOCATE_SECONDS - 5
        reason, message = node.refusal(waiting)
        assert reason == "UnexpectedAdmissionError"
        assert message.startswith("Pod was rejected: Allocate failed due to rpc error: code = DeadlineExceeded desc = ")
        plugin.hanging.clear()
        source.put(after)
        await node.until_running(after)
        assert sim.running_containers(deleted.metadata.uid) == []


async def test_a_container_waits_for_the_preparation_of_its_devices(mock_clock: MockClock, tmp_path: Path) -> None:
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    plugin = ToyPlugin(BRICK, ["a"], pre_start=True)
    plugin.failing["PreStartContainer"] = GRPCError(Status.INTERNAL, "too hot")
    pod = brick_pod("web")
    async with plugin_node(tmp_path, sim, source) as node:
        await node.register(plugin)
        source.put(pod)

        def waits() -> bool:
            status = node.agent.statuses.get_pod_status(pod.metadata.uid)
            return (
                status is not None
                and any(one.state.waiting for one in status.container_statuses)
                and bool(plugin.asked("PreStartContainer"))
            )

        await node.until(waits)
        await trio.sleep(60)
        [container] = node.status(pod).container_statuses
        assert container.state.waiting is not None
        assert (container.state.waiting.reason, container.state.waiting.message) == (
            "CreateContainerConfigError",
            "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = too hot",
        )
        tries = len(plugin.asked("PreStartContainer"))
        assert 2 <= tries <= 12, "it is tried again, less and less often"
        plugin.failing.clear()
        await node.until_running(pod, within=120)
        sim.end_container(sim.running_containers(pod.metadata.uid)[0], 1)
        await node.until(lambda: len(plugin.asked("PreStartContainer")) == tries + 2)
        assert plugin.asked("Allocate") == [("a",)]


async def test_a_folder_that_cannot_be_used_is_told(mock_clock: MockClock, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / FOLDER).write_text("")
    with pytest.raises(BaseExceptionGroup) as raised:
        async with plugin_node(tmp_path, SimulatedRuntime(seed=1), ScriptedSource("file")):
            pass
    found = raised.value.split(DeviceFolderError)
    assert found[1] is None, "what the command line prints as one line"
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        [error] = error.exceptions
    text = str(error)
    assert text.startswith(
        f"device plugins cannot be served: [Errno 17] File exists: '{tmp_path}/root/{FOLDER}': make "
    )
    assert text.endswith("or give another --root-dir")


async def test_health_is_told_only_where_it_is_wanted(mock_clock: MockClock, tmp_path: Path) -> None:
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    pod, plugin = brick_pod("web"), ToyPlugin(BRICK, ["a"])
    async with plugin_node(tmp_path, sim, source, {"ResourceHealthStatus": False}) as node:
        await node.register(plugin)
        source.put(pod)
        await node.until_running(pod)
        plugin.tell([Brick("a", healthy=False)])
        await trio.sleep(5)
        assert node.health(pod) == {}
        assert node.amounts() == ("1", "0")


async def test_a_simulated_node_has_no_devices(mock_clock: MockClock) -> None:
    source = ScriptedSource("file")
    pod = brick_pod("web")
    async with simulated_node(SimulatedRuntime(seed=1), sources={"file": source}) as made:
        node = SimNode(made.agent, made.sim, source, made.targets)
        source.put(pod)
        await node.until_running(pod)
        assert made.agent.devices.manager is None
