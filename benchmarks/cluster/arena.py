"""Everything that runs while it is measured: a runtime for the bare clients, and an API server with a node.

The node's agent is a process as a person would start it, with a kubeconfig; the API server is the tests', in a process
of its own, reached by TCP and TLS, or one that runs already. The bare clients have a runtime of the same kind for
themselves: an agent ends pods that it was not told of.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from benchmarks.agent_process import NODE_NAME, PATIENCE, interruptible_once, running_agent
from benchmarks.cluster.api_server import ADMIN_KUBECONFIG, node_kubeconfig
from benchmarks.cluster.contestants import BEHAVIOUR, BareClient, ClusterNode
from benchmarks.cluster.steps import Measurements
from benchmarks.manifest_agents import Runtime
from benchmarks.termination.floor import BareCalls, record
from benchmarks.termination.kubelets import IMAGES, MOST_PODS, Process, containerd, other_kubelet, served_runtime
from benchmarks.termination.pods import PodPlan
from benchmarks.termination.watch import ContainerdEyes, EmbeddedEyes
from tests.apiserver.cluster import TestCluster
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.dialing import open_access
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack

    from benchmarks.cluster.contestants import Contestant
    from benchmarks.termination.watch import Eyes

API_SERVER_PATIENCE: Final = 30.0
PEER_NODE: Final = f"{NODE_NAME}-peer"


@attrs.frozen
class Settings:
    """What is measured."""

    pods: int
    rounds: int
    grace: int
    settle: float
    """Seconds from when all pods run until they are asked to end."""
    rest: float = 0.0
    """Seconds in which an agent is watched that has no pods, and then that has all of them; 0: neither."""


@attrs.frozen
class Arena:
    """What runs."""

    kind: str
    folder: Path
    floor: Runtime
    runtime: Path
    """The agent's: its socket, or the folder of its embedded runtime."""
    agent: int
    """Its pid."""
    admin: Path
    """A kubeconfig."""
    peer: tuple[Process, Path] | None = None
    """Another kubelet, and its runtime's socket."""

    @property
    def signs(self) -> Path:
        """Of the node's pods."""
        return self.folder / "agent" / "sign"


@contextmanager
def arena(kind: str, folder: Path, kubelet: Path | None = None, kubeconfigs: Path | None = None) -> Iterator[Arena]:
    """Start everything but an API server whose kubeconfigs are given. Nothing is left of it but the nodes there."""
    with interruptible_once() as stack:
        if kubeconfigs is None:
            kubeconfigs = stack.enter_context(running_api_server(folder / "api", [NODE_NAME, PEER_NODE]))
        yield _start(kind, folder, stack, kubelet, kubeconfigs)


def _start(kind: str, folder: Path, stack: ExitStack, kubelet: Path | None, kubeconfigs: Path) -> Arena:
    floor: Runtime
    if kind == "containerd":
        floor = stack.enter_context(containerd(folder / "floor", 0))
        node = stack.enter_context(containerd(folder / "ours", 1))
        endpoint, runtime = node.endpoint, node.socket
    else:
        floor = stack.enter_context(served_runtime(folder / "floor"))
        endpoint, runtime = "embedded", folder / "agent" / "root" / "runtime"
    peer = None if kubelet is None else _start_peer(kind, folder / "peer", stack, kubelet, kubeconfigs)
    (folder / "agent" / "sign").mkdir(parents=True)
    flags = [
        f"--kubeconfig={node_kubeconfig(kubeconfigs, NODE_NAME)}",
        f"--max-pods={MOST_PODS}",
        "--host-image",
        "--pod-network=host",
    ]
    agent = stack.enter_context(running_agent(folder / "agent", endpoint, flags))
    agent.wait_until_it_listens()
    return Arena(kind, folder, floor, runtime, agent.process.pid, kubeconfigs / ADMIN_KUBECONFIG, peer)


def _start_peer(kind: str, folder: Path, stack: ExitStack, kubelet: Path, kubeconfigs: Path) -> tuple[Process, Path]:
    runtime: Runtime
    if kind == "containerd":
        runtime = stack.enter_context(containerd(folder.with_name("theirs"), 2))
    else:
        runtime = stack.enter_context(served_runtime(folder.with_name("theirs")))
    kubeconfig = node_kubeconfig(kubeconfigs, PEER_NODE)
    process = stack.enter_context(other_kubelet(folder, kubelet, runtime, node=PEER_NODE, kubeconfig=kubeconfig))
    return process, runtime.socket


@contextmanager
def running_api_server(folder: Path, nodes: Sequence[str] = (NODE_NAME,), tokens: int = 0) -> Iterator[Path]:
    """The test API server as a process; the folder of its kubeconfigs. So many users have tokens (`token-0`, …)."""
    folder.mkdir(parents=True)
    module = [sys.executable, "-m", "benchmarks.cluster.api_server"]
    command = [*module, str(folder), *(f"--node={node}" for node in nodes), f"--tokens={tokens}"]
    with (folder / "api.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + API_SERVER_PATIENCE
        while not (folder / ADMIN_KUBECONFIG).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the API server does not start: {(folder / 'api.log').read_text()[-2000:]}")
            time.sleep(0.01)
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


async def compete(
    arena: Arena, settings: Settings, at_once: Sequence[int], progress: Callable[[str], None]
) -> Measurements:
    """Let all take their turns. `progress` is told of what begins."""
    image = IMAGES[arena.kind]
    progress("recording what an agent asks of the runtime")
    recorded = (await record(arena.folder / "recorded", arena.floor, image, [BEHAVIOUR]))[BEHAVIOUR]
    bare = arena.folder / "bare"
    (bare / "sign").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        calls = BareCalls(RuntimeClient(await stack.enter_async_context(open_unix_channel(arena.floor.socket))))
        client = await stack.enter_async_context(open_client(open_access(arena.admin, environment={})))
        cluster = TestCluster(client, patience=PATIENCE)
        eyes: Eyes
        if arena.kind == "embedded":
            eyes = EmbeddedEyes(arena.runtime)
        else:
            channel = await stack.enter_async_context(open_unix_channel(arena.runtime))
            eyes = ContainerdEyes(RuntimeClient(channel))
        progress("waiting for the nodes")
        await cluster.until_ready(NODE_NAME)
        contestants: list[Contestant] = [BareClient(calls, number, recorded, bare) for number in at_once]
        nodes = [ClusterNode(cluster, image, arena.signs, eyes.is_empty, arena.agent)]
        if arena.peer is not None:
            process, socket = arena.peer
            runtime = RuntimeClient(await stack.enter_async_context(open_unix_channel(socket)))
            await cluster.until_ready(PEER_NODE)
            signs = process.folder / "sign"
            ended = partial(_has_ended_all, runtime)
            nodes.append(ClusterNode(cluster, image, signs, ended, process.pid, process.name, PEER_NODE))
        measured = Measurements()
        for node in nodes if settings.rest else ():
            progress(f"{node.name}: at rest without pods")
            measured.rests[node.name, 0] = await node.rest(settings.rest)
        await measure(settings, [*contestants, *nodes], measured, progress)
        for node in nodes if settings.rest else ():
            progress(f"{node.name}: at rest, pods: {settings.pods}")
            plans = [
                PodPlan(f"rest-{_slug(node.name)}-{pod}", BEHAVIOUR, settings.grace) for pod in range(settings.pods)
            ]
            rest = (await node.run(plans, settings.rest)).rest
            assert rest is not None
            measured.rests[node.name, settings.pods] = rest
        return measured


async def _has_ended_all(runtime: RuntimeClient) -> bool:
    """Other kubelets remove what has ended once a minute."""
    return all(one.state is not v1.PodSandboxState.SANDBOX_READY for one in await runtime.list_pod_sandboxes())


async def measure(
    settings: Settings, contestants: Sequence[Contestant], measured: Measurements, progress: Callable[[str], None]
) -> None:
    """A pod each to warm up, then rounds in which all have their turn, each time another one first."""
    plan = partial(PodPlan, behaviour=BEHAVIOUR, grace=settings.grace)
    for contestant in contestants:
        progress(f"{contestant.name}: warming up")
        await contestant.run([plan(f"warm-up-{_slug(contestant.name)}")], settings.settle)
    for number in range(settings.rounds):
        turn = number % len(contestants)
        for contestant in (*contestants[turn:], *contestants[:turn]):
            progress(f"{contestant.name}: round {number + 1} of {settings.rounds}")
            names = [f"{_slug(contestant.name)}-{number}-{pod}" for pod in range(settings.pods)]
            measured.add(contestant.name, await contestant.run([plan(name) for name in names], settings.settle))


def _slug(name: str) -> str:
    """A contestant's name as a part of its pods' names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
