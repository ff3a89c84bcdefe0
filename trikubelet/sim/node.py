"""A simulated node: the whole agent on the simulated runtime, with pod sources that a script writes to.

    def main() -> ...:
        return run_deterministically(script, seed=7)

    async def script() -> ...:
        async with simulated_node(SimulatedRuntime(seed=7)) as node:
            node.source("file").put(pod)
            ...

The agent is the real one: its sync loop, workers, PLEG, runtime manager and gRPC channel. What differs is at its edges:
no disk (`memory`), no kernel (exits are reported by the simulated runtime instead of pidfds), and one seed in the place
of everything that is left to chance. Disk and pidfds can be had too, by tests of just those.
"""

from __future__ import annotations

import errno
import random
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio
import trio.testing

from trikubelet.agent.agent import Agent
from trikubelet.agent.node import MachineView
from trikubelet.agent.options import AgentOptions, runtime_options
from trikubelet.agent.overrides import Overrides
from trikubelet.broadcast import Broadcast
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.formats.values import define, frozen
from trikubelet.linux.machine import Machine
from trikubelet.node.address_choice import HostAddresses
from trikubelet.pleg.pidfd import PidfdWatchers, ProcessEnd, WatchedProcess
from trikubelet.pods.registry import PodWorkerRegistry
from trikubelet.probes.asking import NetworkAndExec
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.sim import machine as simulated
from trikubelet.sim.memory import MemoryMounts, MemoryPodFiles, memory_allocations
from trikubelet.sim.probing import SimulatedTargets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from trikubelet.admission.types import Admission
    from trikubelet.agent.tracing import Tracing
    from trikubelet.api import Pod
    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.node.eviction.model import UsageSource
    from trikubelet.node.shutdown.interface import Logind
    from trikubelet.pleg.exits import ExitTracker
    from trikubelet.pods.registry import OnMove
    from trikubelet.rpc.cri.caller import CallChannel
    from trikubelet.rpc.grpc import Channel
    from trikubelet.sim.runtime import SimulatedRuntime
    from trikubelet.sources.mux import SendPods


async def _no_name_server(_name: str) -> None:
    await trio.lowlevel.checkpoint()


CALL_SECONDS: Final = 0.002
"""What a simulated call takes at least: without it, causes and effects would fall into one instant."""

MOST_PODS: Final = 20_000
SIMULATED_MACHINE: Final = MachineView(
    machine=Machine(cpus=1000, memory=2**42, storage=2**44, kernel_version="6.18.0"),
    host=lambda: HostAddresses(preferred=(IPv4Address("127.0.0.1"),)),
    lookup=_no_name_server,
    kernel_log=None,
)
"""Its pods never lack room."""

T = TypeVar("T")


class ScriptedSource:
    """A pod source: what is put into it is what the node should run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pods: dict[str, Pod] = {}
        self._changed: Broadcast[None] = Broadcast()

    @property
    def name(self) -> str:
        return self._name

    @property
    def pods(self) -> dict[str, Pod]:
        """The pods that are wanted, by UID."""
        return self._pods

    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send all pods at first, and after every change."""
        task_status.started()
        with self._changed.subscribe() as changes:
            while True:
                await send(tuple(self._pods.values()))
                await changes.receive()

    def put(self, *pods: Pod) -> None:
        """Want these pods, in the place of those with the same UID."""
        for pod in pods:
            self._pods[pod.metadata.uid] = pod
        self._changed.send(None)

    def remove(self, *pods: Pod | str) -> None:
        """Do not want these pods any more; a UID does for a pod."""
        for pod in pods:
            self._pods.pop(pod if isinstance(pod, str) else pod.metadata.uid, None)
        self._changed.send(None)


class SimulatedExits(PidfdWatchers):
    """Tells of the ends of simulated processes as pidfds do of real ones."""

    def __init__(self, sim: SimulatedRuntime, client: RuntimeClient, ends: ExitTracker) -> None:
        super().__init__(client, ends)
        self._sim = sim

    async def _open(self, process: WatchedProcess) -> ProcessEnd | None:
        machine = self._sim.machine
        container, sandbox = machine.containers.get(process.id), machine.sandboxes.get(process.id)
        if container is None and sandbox is None:
            return None
        if self._sim.refuses_watches:
            raise OSError(errno.EMFILE, "simulated: too many open files")
        return SimulatedEnd(machine, container or sandbox)


@frozen
class SimulatedEnd:
    """Implements `ProcessEnd`."""

    machine: simulated.Machine
    whose: simulated.Container | simulated.Sandbox | None

    async def wait(self) -> None:
        if isinstance(self.whose, simulated.Container):
            await self.machine.wait_ended(self.whose)
        elif self.whose is not None:
            await self.whose.stopped.wait()

    def close(self) -> None:
        pass


@define
class SimulatedNode:
    """One agent's life on a simulated runtime. A new agent on the same runtime is a new node."""

    agent: Agent
    sim: SimulatedRuntime
    sources: dict[str, ScriptedSource]
    targets: SimulatedTargets
    """What the agent's probes ask."""

    def source(self, name: str = "file") -> ScriptedSource:
        return self.sources[name]


@asynccontextmanager
async def simulated_node(
    sim: SimulatedRuntime,
    *,
    sources: dict[str, ScriptedSource] | None = None,
    rng: random.Random | None = None,
    sees_exits: bool = True,
    folder: Path | None = None,
    configuration: KubeletConfiguration = KubeletConfiguration(),  # noqa: B008 - frozen
    make_registry: Callable[[OnMove], PodWorkerRegistry] = PodWorkerRegistry,
    admission: Admission | None = None,
    api_client: ApiClient | None = None,
    machine: MachineView = SIMULATED_MACHINE,
    usage: UsageSource | None = None,
    change_options: Callable[[AgentOptions], AgentOptions] | None = None,
    prepare: Callable[[Agent], None] | None = None,
    connect_plugins: Callable[[Path], AbstractAsyncContextManager[Channel]] | None = None,
    logind: Logind | None = None,
    cgroups: PodCgroups = NoPodCgroups(),  # noqa: B008 - frozen
    tracing: Tracing | None = None,
    pull_progress: Callable[[str], str] = lambda image: "",
) -> AsyncIterator[SimulatedNode]:
    """A running agent. Leaving it ends the agent as `kill -9` would: pods stay as they are in `sim`.

    `sources`: by default one for static pods, `file`. `sees_exits`: whether it is notified when processes end;
    otherwise it looks for pidfds, and finds none. `folder`: the node has a disk, and all its files are in there. They
    are removed by worker threads, which on a mock clock have to be done without. `make_registry` makes what the pod
    workers drive. `admission` judges pods instead of the kubelet's rules. With an `api_client` it is a node of a
    cluster. `change_options` gets the options and gives what the agent gets instead. `prepare` is called with the agent
    before it runs. `logind` reports shutdowns of the machine, where the configuration gives pods time for them.
    `connect_plugins`: how device plugins are reached by their sockets; without it no plugin is connected. With `usage`,
    which measures the node, it evicts pods. `cgroups` are those of its pods. `tracing` makes traces of all it does.
    `pull_progress`: how far the pull of an image is, for people.
    """
    if sources is None:
        sources = {"file": ScriptedSource("file")}
    sim.delays.setdefault("*", CALL_SECONDS)
    options = _options(folder or Path("/simulated"), configuration)
    if change_options is not None:
        options = change_options(options)
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        calls: CallChannel = channel if tracing is None else tracing.channel(channel, options.runtime_endpoint)
        runtime = RuntimeClient(calls)
        targets = SimulatedTargets(sim.machine, NetworkAndExec(runtime))
        overrides = Overrides(
            sources=list(sources.values()),
            volumes=MemoryMounts(options.root_dir) if folder is None else None,
            pod_files=MemoryPodFiles(runtime_options(options)) if folder is None else None,
            diskless=True,
            cgroups=cgroups,
            make_pidfds=partial(SimulatedExits, sim) if sees_exits else PidfdWatchers,
            machine=machine,
            usage=usage,
            asker=targets,
            make_registry=make_registry,
            admission=admission,
            open_allocations=partial(memory_allocations, sim.checkpoints),
            rng=rng or random.Random(sim.seed),
            connect_plugins=connect_plugins,
            logind=logind,
        )
        agent = Agent(
            options,
            runtime,
            ImageClient(calls),
            clock=sim.clock,
            api_client=api_client,
            overrides=overrides,
            tracing=tracing,
            pull_progress=pull_progress,
        )
        if prepare is not None:
            prepare(agent)
        await nursery.start(agent.run)
        yield SimulatedNode(agent, sim, sources, targets)
        nursery.cancel_scope.cancel()


def _options(folder: Path, configuration: KubeletConfiguration) -> AgentOptions:
    return AgentOptions(
        configuration=attrs.evolve(configuration, pod_logs_dir=str(folder / "logs"), max_pods=MOST_PODS),
        root_dir=folder / "root",
        node_name="simulated",
        runtime_endpoint="unix:///simulated",
    )


@contextmanager
def fixed_choices(seed: int) -> Iterator[None]:
    """Within, Trio's scheduler and Python's own random source choose by the seed.

    Trio shuffles the tasks that can run with a random source of its own, in an order that also depends on memory
    addresses unless it is set to sort them first, as its tests do. The gRPC channel's jitter is Python's `random`.
    """
    from trio._core import _run as scheduler

    trios = random.Random()
    state, trios_state = random.getstate(), scheduler._r.getstate()
    deterministic = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(f"{seed}/random")
    trios.seed(f"{seed}/scheduler")
    scheduler._r.setstate(trios.getstate())
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    try:
        yield
    finally:
        random.setstate(state)
        scheduler._r.setstate(trios_state)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = deterministic  # type: ignore[misc]


def run_deterministically(script: Callable[[], Awaitable[T]], *, seed: int) -> T:
    """Run `script` on a mock clock that jumps, with every choice fixed by `seed`."""
    with fixed_choices(seed):
        return trio.run(script, clock=trio.testing.MockClock(autojump_threshold=0))
