"""Devices of plugins, CPUs and a topology policy in a whole agent, on the simulated runtime."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.sim_node import clock_without_threads, static_pod
from tests.agent.test_device_plugins import BRICK, PluginNode
from tests.device_plugin import Brick, ToyPlugin
from tests.node.devices.plugin_sockets import PluginSockets
from trikubelet.agent.metrics import agent_metrics
from trikubelet.agent.view import LocalView
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode
from trikubelet.metrics.health_checks import HealthChecks
from trikubelet.node.devices.server import FOLDER
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import SIMULATED_MACHINE, ScriptedSource, simulated_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod

GIB: Final = 2**30
MACHINE: Final = MachineTopology(
    (NumaNode(0, (Core(0, (0,)), Core(0, (1,))), 4 * GIB), NumaNode(1, (Core(1, (2,)), Core(1, (3,))), 4 * GIB))
)


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def pod_with(name: str, *, cpu: str, **spec: Any) -> Pod:
    """With one brick."""
    amounts = {BRICK: "1", "cpu": cpu, "memory": "64Mi"}
    resources = {"limits": amounts, "requests": amounts}
    return static_pod(name, containers=[{"name": "main", "image": "test:1", "resources": resources}], **spec)


async def test_bricks_and_cpus_are_of_one_numa_node(mock_clock: MockClock, tmp_path: Path) -> None:
    async with _node(tmp_path, SimulatedRuntime(seed=1), policy="single-numa-node") as node:
        source = node.source
        assert node.agent.managers is not None
        devices = [Brick("a", numa_nodes=(0,)), Brick("b", numa_nodes=(1,)), Brick("c", numa_nodes=(1,))]
        await node.register(ToyPlugin(BRICK, devices))
        far, near, none = pod_with("far", cpu="2"), pod_with("near", cpu="1"), pod_with("none", cpu="1")
        source.put(far)
        source.put(near)  # before the first one has its bricks
        await node.until_running(far)
        await node.until_running(near)
        assert (node.bricks(far), node.bricks(near)) == ("b", "a")
        assert node.agent.managers.exclusive_cpus(far.metadata.uid, "main") == 0b1100
        assert node.agent.managers.exclusive_cpus(near.metadata.uid, "main") == 0b0010
        source.put(none)
        await node.until_phase(none, "Failed")
        assert node.refusal(none)[0] == "TopologyAffinityError"
        metrics = agent_metrics(node.agent, HealthChecks(LocalView(node.agent).health))
        text = (await metrics.expose("metrics")).body.decode()
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "manager_" in sample.name
        }
        assert found["kubelet_topology_manager_admission_requests_total"] == 3
        assert found["kubelet_topology_manager_admission_errors_total"] == 1
        assert found["kubelet_cpu_manager_exclusive_cpu_allocation_count"] == 3


async def test_a_removed_pod_keeps_what_it_has_until_it_has_ended(mock_clock: MockClock, tmp_path: Path) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever(sigterm=None), container="main")
    ending = pod_with("ending", cpu="2", terminationGracePeriodSeconds=60)
    amounts = {"cpu": "2", "memory": "64Mi"}
    resources = {"limits": amounts, "requests": amounts}
    of_cpus = static_pod("of-cpus", containers=[{"name": "main", "image": "test:1", "resources": resources}])
    async with _node(tmp_path, sim) as node:
        managers, uid = node.agent.managers, ending.metadata.uid
        assert managers is not None
        await node.register(ToyPlugin(BRICK, [Brick("a")]))
        node.source.put(ending)
        await node.until_running(ending)
        had = managers.exclusive_cpus(uid, "main")
        assert had.bit_count() == 2
        node.source.remove(ending)
        await trio.sleep(10)
        others = (of_cpus, pod_with("of-bricks", cpu="1"))
        for other in others:
            node.source.put(other)
            await node.until_phase(other, "Failed")
        node.source.remove(*others)  # or they would begin when there is room
        assert node.bricks(ending) == "a", "it still runs"
        assert managers.exclusive_cpus(uid, "main") == had
        await node.until_gone(ending, within=120)
        last = pod_with("last", cpu="2")
        node.source.put(last)
        await node.until_running(last)
        assert managers.exclusive_cpus(last.metadata.uid, "main") == had
        assert node.bricks(last) == "a"


@asynccontextmanager
async def _node(folder: Path, sim: SimulatedRuntime, policy: str = "best-effort") -> AsyncIterator[PluginNode]:
    source = ScriptedSource("file")
    configuration = KubeletConfiguration(
        cpu_manager_policy="static", reserved_system_cpus="0", topology_manager_policy=policy
    )
    async with trio.open_nursery() as nursery:
        plugins = PluginSockets(nursery, folder / "root" / FOLDER)
        async with simulated_node(
            sim,
            sources={source.name: source},
            folder=folder,
            configuration=configuration,
            connect_plugins=plugins.connect,
            machine=attrs.evolve(SIMULATED_MACHINE, topology=MACHINE),
        ) as simulated:
            yield PluginNode(simulated.agent, sim, source, simulated.targets, plugins)
        nursery.cancel_scope.cancel()
