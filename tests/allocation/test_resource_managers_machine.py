"""Agents with their files, whatever happens to pods and to them: who runs keeps what he was started with.

Hypothesis chooses each step: pods are admitted, with devices or none, started container by container, asked about
again, and end, with a word or without one. And the agent is killed: each of its files then says what it said when a
container was last started, or what it was to say at any step since, and the unfinished one beside it may be whole or
cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import attrs
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.allocation.pods import pod_with
from tests.allocation.test_managers import running
from tests.allocation.test_resource_manager_properties import Node, check_cpus, check_memory, nodes, pods
from trikubelet.allocation.cpus.topology import union
from trikubelet.allocation.demands import all_containers, ends_before_others
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.memory.state import Blocks
from trikubelet.allocation.topology.admit import POD_SCOPE, NothingToGive
from trikubelet.allocation.topology.hints import AllocationError, Hints, TopologyHint
from trikubelet.allocation.topology.policy import SINGLE_NUMA_NODE
from trikubelet.formats.cpu_list import set_of
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod


@frozen
class Cards:
    """Devices of NUMA nodes: each container gets one."""

    free: Mapping[int, int]
    """How many, by node."""
    given: frozenset[str] = frozenset()

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return container.name in self.given

    def hints(self, pod: Pod, container: Container) -> Hints:
        return {"card": [TopologyHint(1 << node, preferred=True) for node, count in self.free.items() if count]}

    def pod_hints(self, pod: Pod) -> Hints:
        wanted = len(all_containers(pod))
        return {
            "card": [TopologyHint(1 << node, preferred=True) for node, count in self.free.items() if count >= wanted]
        }

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Self:
        here = [node for node, count in self.free.items() if count and (hint.nodes is None or hint.nodes & 1 << node)]
        anywhere = [node for node, count in self.free.items() if count]
        if not anywhere:
            raise AllocationError("no card is left")
        node = (here or anywhere)[0]
        free = {**self.free, node: self.free[node] - 1}
        return attrs.evolve(self, free=free, given=self.given | {container.name})

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Self:
        after = self
        for container in all_containers(pod):
            after = after.allocate(pod, container, hint)
        return after


@frozen
class Start:
    """What a container was started with."""

    cpus: int
    memory: Blocks


class ManagersWithFiles(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.known: dict[str, Pod] = {}
        """All pods that there ever were."""
        self.wanted: dict[str, Pod] = {}
        self.started: dict[str, dict[str, Start]] = {}
        """The containers that run, or have run, by the pod's UID."""
        self.unwritten: dict[Path, list[bytes]] = {}
        """What each file was to say since a container was last started."""

    @initialize(node=nodes())
    def first_agent(self, node: Node) -> None:
        cpus, memory = node.managers
        self.settings = ManagerSettings(
            topology=node.topology, scope=node.scope, cpus=cpus.policy, memory=memory.policy, pod_level=node.pod_level
        )
        self.begin([])

    def begin(self, asked: Sequence[str]) -> None:
        """`asked`: the pods that are wanted, in the order in which the agent is told of them."""
        self.ready = False
        self.managers = ResourceManagers(
            self.settings, self.folder, needed=lambda uid: uid in self.wanted, sources_ready=lambda: self.ready
        )
        self.unwritten = {file.path: [] for file in self.managers._files}
        for uid in asked:
            if not self.admitted(self.wanted[uid]):
                assert uid not in self.started, "it runs"
                del self.wanted[uid]
        self.ready = True

    def admitted(self, pod: Pod, devices: Cards | None = None) -> bool:
        before = self.has(pod.metadata.uid)
        try:
            self.managers.admit(pod, devices or NothingToGive())
        except AllocationError:
            assert self.has(pod.metadata.uid) == before
            return False
        finally:
            self.changed()
        return True

    def has(self, uid: str) -> Any:
        cpus, memory = self.managers._cpus, self.managers._memory
        assert cpus is not None
        assert memory is not None
        return [(state.containers.get(uid), state.pods.get(uid)) for state in (cpus.state, memory.state)]

    def changed(self) -> None:
        for file in self.managers._files:
            self.unwritten[file.path].append(file._snapshot()())

    @rule(row=pods(), free=st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def admit(self, row: dict[str, Any], free: list[int] | None) -> None:
        uid = f"pod-{len(self.known)}"
        pod = self.known[uid] = pod_with({"uid": uid, **row})
        here = self.settings.topology.nodes
        cards = None if free is None else Cards({node: count for node, count in enumerate(free) if node in here})
        self.wanted[uid] = pod  # it is held, so it is wanted already
        if not self.admitted(pod, cards):
            del self.wanted[uid]

    @rule(choice=st.integers(0, 99))
    def ask_again(self, choice: int) -> None:
        if (uid := self.chosen(choice)) is None:
            return
        before = self.has(uid)
        assert self.admitted(self.wanted[uid])
        assert self.has(uid) == before

    @rule(choice=st.integers(0, 99), count=st.integers(1, 4))
    def start(self, choice: int, count: int) -> None:
        """The next containers of a pod."""
        if (uid := self.chosen(choice)) is None:
            return
        starts = self.started.setdefault(uid, {})

        async def start_them() -> None:
            pod = self.wanted[uid]
            async with running(self.managers):
                for container in [one for one in all_containers(pod) if one.name not in starts][:count]:
                    for other in pod.spec.init_containers:
                        if other.name in starts and ends_before_others(pod, other):
                            starts[other.name] = attrs.evolve(starts[other.name], memory=())
                    affinity = await self.managers.affinity(pod, container)
                    memory = self.managers.memory(uid, container.name)
                    starts[container.name] = Start(self.managers.exclusive_cpus(uid, container.name), memory)
                    nodes = 0
                    for block in memory:
                        nodes |= block.nodes
                    assert affinity.nodes == nodes

        trio.run(start_them)
        for later in self.unwritten.values():
            later.clear()

    @rule(choice=st.integers(0, 99))
    def end(self, choice: int) -> None:
        """Also one that a plugin refuses devices."""
        if (uid := self.chosen(choice)) is None:
            return
        del self.wanted[uid]
        self.started.pop(uid, None)
        self.managers.forget(uid)
        self.changed()
        assert self.has(uid) == [(None, None), (None, None)]

    @rule(choice=st.integers(0, 99))
    def lose(self, choice: int) -> None:
        """It is gone, and nobody has said so."""
        if (uid := self.chosen(choice)) is None:
            return
        del self.wanted[uid]
        self.started.pop(uid, None)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        for path, later in self.unwritten.items():
            written = data.draw(st.integers(0, len(later)))
            if written:
                path.write_bytes(later[written - 1])
            unfinished = path.with_name(f".{path.name}.tmp")
            unfinished.unlink(missing_ok=True)
            if written < len(later):
                content = later[data.draw(st.integers(written, len(later) - 1))]
                unfinished.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
        self.begin(data.draw(st.permutations(sorted(self.wanted))))

    def chosen(self, choice: int) -> str | None:
        """One of those that are wanted."""
        return sorted(self.wanted)[choice % len(self.wanted)] if self.wanted else None

    @invariant()
    def nothing_is_given_twice(self) -> None:
        assert self.managers._cpus is not None
        assert self.managers._memory is not None
        check_cpus(self.managers._cpus, self.known)
        check_memory(self.managers._memory, self.known)

    @invariant()
    def all_is_on_one_node_where_that_is_promised(self) -> None:
        settings = self.settings
        assert settings.cpus is not None
        # The agent refuses both together.
        if settings.topology.name != SINGLE_NUMA_NODE or settings.cpus.options.align_socket:
            return
        for pod in self.wanted.values():
            own = [self.nodes_of(pod, one) for one in all_containers(pod)]
            for where in [union(own)] if settings.scope == POD_SCOPE else own:
                assert where.bit_count() <= 1, pod.metadata.uid

    def nodes_of(self, pod: Pod, container: Container) -> int:
        """The NUMA nodes of what the container has."""
        assert self.settings.cpus is not None
        cpus = self.managers.exclusive_cpus(pod.metadata.uid, container.name)
        nodes = set_of(node for node, its in self.settings.cpus.topology.nodes.items() if its & cpus)
        return nodes | union(block.nodes for block in self.managers.memory(pod.metadata.uid, container.name))

    @invariant()
    def who_runs_keeps_what_he_was_started_with(self) -> None:
        for uid, starts in self.started.items():
            for name, start in starts.items():
                assert self.managers.exclusive_cpus(uid, name) == start.cpus
                assert self.managers.memory(uid, name) == start.memory

    def teardown(self) -> None:
        if hasattr(self, "managers"):
            cpus, memory = self.managers._cpus, self.managers._memory
            assert cpus is not None
            assert memory is not None
            for uid in {*cpus.state.containers, *memory.state.containers}:
                self.managers.forget(uid)
            assert self.managers._cpus == attrs.evolve(cpus, state=cpus.policy.start(type(cpus.state)()))
            assert self.managers._memory == attrs.evolve(memory, state=memory.policy.start(type(memory.state)()))
        self.temporary.cleanup()


TestManagersWithFiles = ManagersWithFiles.TestCase
TestManagersWithFiles.settings = settings(stateful_step_count=25)
