"""Agents beside a kubelet and each other, on one runtime and one tree of cgroups: nothing foreign is touched."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, static_pod
from tests.cgroups.fake_driver import FakeDriver
from tests.examples import IS_NIGHT
from tests.sim.building import container_config, sandbox_config
from trikubelet.agent.options import ClusterOptions
from trikubelet.cgroups.names import CgroupName, from_cgroupfs
from trikubelet.cgroups.ownership import Ownership, own_cgroup_root
from trikubelet.cgroups.pods import PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions, CgroupSettings
from trikubelet.container.labels import OWNER
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.agent.options import AgentOptions

KUBELET: Final = "/var/lib/kubelet"
SEQUENCES: Final = 200 if IS_NIGHT else 24
STEPS: Final = 7
"""In a sequence: starts, ends and kills of agents, and changes of their pods."""


@attrs.define
class Machine:
    """A runtime and a tree of cgroups that everybody uses, with what a kubelet has on them."""

    sim: SimulatedRuntime
    driver: FakeDriver
    groups: dict[CgroupName, CgroupSettings] = attrs.field(factory=dict)
    """The foreign ones."""

    def add_foreign_group(self, *name: str, owner: str = "") -> None:
        self.groups[name] = CgroupSettings(cpu_shares=77)
        for depth in range(1, len(name)):
            self.driver.groups.setdefault(name[:depth], CgroupSettings())
        self.driver.groups[name] = self.groups[name]
        if owner:
            self.driver.owners[name] = owner

    def add_foreign_pod(self, name: str, *, owner: str = "", runs: bool = True) -> None:
        """A sandbox with a container of a kubelet, or of another agent."""
        machine, config = self.sim.machine, sandbox_config(name)
        marks = {OWNER: owner} if owner else {}
        config.annotations = marks
        sandbox = machine.run_sandbox(config, "")
        one = container_config()
        one.labels |= config.labels
        one.annotations = marks
        container = machine.create_container(sandbox, one)
        if runs:
            machine.start_container(container)
        else:
            machine.fail_sandbox(sandbox)

    def foreign(self) -> tuple[dict[Any, object], ...]:
        """What is to stay as it is."""
        machine = self.sim.machine
        return (
            {name: self.driver.groups.get(name) for name in self.groups},
            {each.id: each.ready for each in machine.sandboxes.values() if self._is_foreign(each.config.annotations)},
            {each.id: each.state for each in machine.containers.values() if self._is_foreign(each.config.annotations)},
        )

    def touched(self) -> set[CgroupName]:
        """Foreign groups that something was done with."""
        looks = ("exists", "missing", "read", "children")
        return {name for step, name in self.driver.steps if step not in looks} & self.groups.keys()

    def _is_foreign(self, annotations: dict[str, str]) -> bool:
        return not annotations.get(OWNER, "").startswith("/simulated/")


@attrs.define
class Neighbour:
    """An agent without a cluster, which comes and goes while its pods and its root folder stay."""

    name: str
    machine: Machine
    node: SimNode | None = None
    _source: ScriptedSource = attrs.field(factory=lambda: ScriptedSource("file"))
    _kill: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _pods: int = 0

    @property
    def root(self) -> Path:
        return Path(f"/simulated/{self.name}")

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the agent until it is ended, which ends it as `kill -9` would."""
        cgroup_root = from_cgroupfs(own_cgroup_root(self.root))
        keeper = PodCgroupManager(
            self.machine.driver,
            (*cgroup_root, "kubepods"),
            CgroupOptions(),
            active_pods=lambda: [] if self.node is None else self.node.agent.desired.active(),
            ownership=Ownership(mark=str(self.root), alone=True),
            earlier_root=("kubepods",),
        )
        await keeper.start()

        def options(given: AgentOptions) -> AgentOptions:
            return attrs.evolve(given, root_dir=self.root)

        async with (
            trio.open_nursery() as nursery,
            simulated_node(
                self.machine.sim, sources={"file": self._source}, change_options=options, cgroups=keeper
            ) as made,
        ):
            await nursery.start(keeper.run)
            self.node = SimNode(made.agent, self.machine.sim, self._source, made.targets)
            task_status.started()
            await self._kill.wait()
            nursery.cancel_scope.cancel()
        self.node = None
        self._ended.set()

    async def start(self, nursery: trio.Nursery) -> None:
        self._kill, self._ended = trio.Event(), trio.Event()
        await nursery.start(self.live)

    async def drain(self, _: trio.Nursery) -> None:
        assert self.node is not None
        assert await self.node.agent.drain() == frozenset()
        await self.kill()
        assert not self.containers(), "a drained agent leaves nothing of its own"
        assert not self.groups()

    async def kill(self, _: trio.Nursery | None = None) -> None:
        """Its pods run on."""
        self._kill.set()
        await self._ended.wait()

    async def put(self, _: trio.Nursery) -> None:
        self._pods += 1
        self._source.put(static_pod(f"{self.name}-{self._pods}", terminationGracePeriodSeconds=1))

    async def remove(self, _: trio.Nursery) -> None:
        self._source.remove(static_pod(f"{self.name}-{self._pods}"))

    def containers(self) -> frozenset[str]:
        running = self.machine.sim.running_containers()
        return frozenset(one.id for one in running if one.config.annotations.get(OWNER) == str(self.root))

    def groups(self) -> frozenset[CgroupName]:
        return frozenset(name for name, owner in self.machine.driver.owners.items() if owner == str(self.root))


def machine_of_a_kubelet() -> Machine:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever())
    sim.images.pull("nginx")
    machine = Machine(sim, FakeDriver())
    own = from_cgroupfs(own_cgroup_root(Neighbour("a", machine).root))
    machine.add_foreign_group("kubepods", "besteffort", "pod1111-1")
    machine.add_foreign_group("kubepods", "burstable", "pod1111-2", owner=KUBELET)
    machine.add_foreign_group("kubepods", "pod1111-3")
    machine.add_foreign_group("libpod_parent", "podabc")
    machine.add_foreign_group(*own, "kubepods", "pod1111-4")
    machine.add_foreign_group(*own, "kubepods", "burstable", "pod1111-5", owner=KUBELET)
    machine.add_foreign_pod("web")
    machine.add_foreign_pod("marked", owner=KUBELET)
    machine.add_foreign_pod("ended", runs=False)
    return machine


@pytest.mark.parametrize("part", range(4))
async def test_nothing_foreign_is_touched_in_whatever_order_agents_come_and_go(
    autojump_clock: MockClock, part: int
) -> None:
    for seed in range(part, SEQUENCES, 4):
        await one_sequence(random.Random(seed))


async def one_sequence(rng: random.Random) -> None:
    machine = machine_of_a_kubelet()
    agents = [Neighbour("a", machine), Neighbour("b", machine)]
    before = machine.foreign()
    assert [len(part) for part in before] == [6, 3, 3]
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        for _ in range(STEPS):
            acting, other = rng.sample(agents, 2)
            kept = None if other.node is not None else (other.containers(), other.groups())
            step = rng.choice(("start",) if acting.node is None else ("drain", "kill", "put", "put", "remove"))
            told.append(f"{step} {acting.name}")
            await getattr(acting, step)(nursery)
            await trio.sleep(rng.choice((0, 1, 5, 70)))
            assert machine.foreign() == before, told
            assert machine.touched() == set(), told
            if kept is not None:
                assert (other.containers(), other.groups()) == kept, told
        nursery.cancel_scope.cancel()


async def test_in_a_cluster_pods_without_a_mark_are_the_nodes(autojump_clock: MockClock) -> None:
    """A kubelet's pods that nobody wants any more go, as after a kubelet; those of another agent stay."""
    machine = machine_of_a_kubelet()
    sandboxes = machine.sim.machine.sandboxes

    def options(given: AgentOptions) -> AgentOptions:
        return attrs.evolve(given, cluster=ClusterOptions(kubeconfig=Path("/kubeconfig"), cert_dir=Path("/pki")))

    async with simulated_node(machine.sim, sources={"file": ScriptedSource("file")}, change_options=options) as made:
        node = SimNode(made.agent, machine.sim, ScriptedSource("file"), made.targets)
        await node.until(lambda: {one.config.metadata.name for one in sandboxes.values()} == {"marked"}, 120)
        await trio.sleep(120)
    running = machine.sim.running_containers()
    assert [one.sandbox.config.metadata.name for one in running] == ["marked"]
