"""What a cluster hears of the devices of a node's plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import clock_without_threads
from tests.device_plugin import Brick, ToyPlugin
from tests.node.devices.plugin_sockets import PluginSockets
from tests.scenarios.stage import NODE, cluster_stage
from trikubelet.node.devices.server import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from tests.scenarios.stage import Stage

BRICK = "toy.example.com/brick"
STALE = {BRICK: "7", "others.com/dongle": "2"}


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def amounts(stage: Stage, resource: str = BRICK) -> tuple[str | None, str | None]:
    """What the API server's node says: capacity and allocatable."""
    status = stage.admin.get("nodes", NODE)["status"]
    return status["capacity"].get(resource), status["allocatable"].get(resource)


async def test_the_cluster_hears_of_devices(mock_clock: MockClock, tmp_path: Path) -> None:
    limits = {"limits": {BRICK: "1"}, "requests": {BRICK: "1"}}
    container = {"name": "main", "image": "test:1", "resources": limits}
    async with trio.open_nursery() as nursery:
        plugins = PluginSockets(nursery, tmp_path / "root" / FOLDER)
        plugin = ToyPlugin(BRICK, ["a", "b"])
        async with cluster_stage(start=False, folder=tmp_path, connect_plugins=plugins.connect) as stage:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            stage.admin.create({**node, "status": {"capacity": STALE, "allocatable": STALE}})
            await stage.start_agent()
            await stage.until_node_ready()
            assert amounts(stage) == ("0", "0"), "a new machine: what the object says is about another one"
            assert amounts(stage, "others.com/dongle") == ("0", "0")

            assert stage.agent.devices.manager is not None
            await plugins.register(stage.agent.devices.manager, plugin)
            assert await stage.until(lambda: amounts(stage) == ("2", "2"), 5, "the node has no bricks") < 2
            stage.create_pod("web", containers=[container])
            await stage.until_ready("web")
            plugin.tell([Brick("a", healthy=False), Brick("b")])
            assert await stage.until(lambda: amounts(stage) == ("2", "1"), 5, "one is ill") < 2

            def told() -> list[str]:
                [status] = stage.admin.get("pods", "web")["status"]["containerStatuses"]
                return [one["health"] for one in status["allocatedResourcesStatus"][0]["resources"]]

            assert await stage.until(lambda: told() == ["Unhealthy"], 5, "the pod's status tells of it") < 2

            plugins.kill(plugin)
            await stage.restart_agent()
            await stage.until(lambda: amounts(stage) == ("0", "0"), 5, "its plugin has not come back yet")
            assert stage.agent.devices.manager is not None
            await plugins.register(stage.agent.devices.manager, plugin)
            await stage.until(lambda: amounts(stage) == ("2", "1"), 5, "the node has no bricks")
            await stage.until_ready("web")
            assert plugin.asked("Allocate") == [("a",)]
        nursery.cancel_scope.cancel()
