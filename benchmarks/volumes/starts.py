"""Pods of a node in a cluster, with volumes and without: from their creation until a watch tells that they are ready.

The agent and the API server are processes of their own, as in `benchmarks.cluster`. All objects are there before, and
no pod but the one that is timed refers to them, so that the agent has to ask for each. Between two pods there is a rest
in which the agent's limit of calls fills up again: it is meant for crowds.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.agent_process import NODE_NAME, PATIENCE, interruptible_once, running_agent
from benchmarks.cluster.api_server import ADMIN_KUBECONFIG, node_kubeconfig
from benchmarks.cluster.arena import running_api_server
from benchmarks.cluster.contestants import BEHAVIOUR, ClusterNode
from benchmarks.cluster.steps import Step
from benchmarks.termination.kubelets import IMAGES, containerd
from benchmarks.termination.watch import ContainerdEyes, EmbeddedEyes
from benchmarks.volumes.kinds import MOST_VOLUMES, NAMESPACE, Kind, VolumePlan, config_map, secret
from tests.apiserver.cluster import TestCluster
from trikubelet.api import ObjectMeta, ServiceAccount
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.dialing import open_access
from trikubelet.kube_client.errors import ApiStatusError
from trikubelet.kube_client.types import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from benchmarks.termination.watch import Eyes
    from trikubelet.kube_client.client import HttpApiClient

GRACE: Final = 5
CALLS_PER_SECOND: Final = 40
"""The agent may make more of them: `kubeAPIQPS`."""


@attrs.frozen
class Node:
    """What runs."""

    runtime_kind: str
    runtime: Path
    """Its socket, or the folder of the embedded runtime."""
    folder: Path
    agent: int
    """Its pid."""
    admin: Path
    """A kubeconfig."""


@contextmanager
def running_node(runtime_kind: str, folder: Path) -> Iterator[Node]:
    """Start everything. Nothing is left of it."""
    with interruptible_once() as stack:
        yield _start(runtime_kind, folder, stack)


def _start(runtime_kind: str, folder: Path, stack: ExitStack) -> Node:
    endpoint, runtime = "embedded", folder / "agent" / "root" / "runtime"
    if runtime_kind == "containerd":
        node = stack.enter_context(containerd(folder / "runtime", 0))
        endpoint, runtime = node.endpoint, node.socket
    kubeconfigs = stack.enter_context(running_api_server(folder / "api"))
    (folder / "agent" / "sign").mkdir(parents=True)
    flags = [f"--kubeconfig={node_kubeconfig(kubeconfigs, NODE_NAME)}", "--host-image", "--pod-network=host"]
    agent = stack.enter_context(running_agent(folder / "agent", endpoint, flags))
    agent.wait_until_it_listens()
    return Node(runtime_kind, runtime, folder / "agent", agent.process.pid, kubeconfigs / ADMIN_KUBECONFIG)


@attrs.frozen
class Started:
    """One pod that came and went."""

    seconds: float
    """From its creation until it was ready."""
    cpu: float
    """Seconds of the agent, from its creation until nothing was left, with whatever else the agent did then."""


class Starts:
    """Starts one pod after the other. Use `open_starts`."""

    def __init__(self, node: ClusterNode, settle: float) -> None:
        self._node = node
        self._settle = settle
        self._number = 0

    async def time(self, kind: Kind, count: int) -> Started:
        """When this returns, nothing is left of the pod."""
        self._number += 1
        plan = VolumePlan(f"pod-{self._number}", BEHAVIOUR, GRACE, kind, count)
        batch = await self._node.run([plan], self._settle)
        if kind.asks_api_server:
            await trio.sleep(count / CALLS_PER_SECOND)
        seconds = batch.pods[0].after(Step.READY)
        assert seconds is not None
        assert batch.cpu is not None
        return Started(seconds, batch.cpu)


async def open_starts(node: Node, stack: AsyncExitStack, settle: float) -> Starts:
    """Everything that pods refer to is there, and the node is ready. `settle`: seconds for which each pod runs."""
    client = await stack.enter_async_context(open_client(open_access(node.admin, environment={})))
    await _make_objects(client)
    eyes: Eyes
    if node.runtime_kind == "embedded":
        eyes = EmbeddedEyes(node.runtime)
    else:
        eyes = ContainerdEyes(RuntimeClient(await stack.enter_async_context(open_unix_channel(node.runtime))))
    cluster = TestCluster(client, namespace=NAMESPACE, patience=PATIENCE)
    await cluster.until_ready(NODE_NAME)
    signs = node.folder / "sign"
    return Starts(ClusterNode(cluster, IMAGES[node.runtime_kind], signs, eyes.is_empty, node.agent), settle)


async def _make_objects(client: HttpApiClient) -> None:
    for number in range(MOST_VOLUMES):
        await client.create(CONFIG_MAPS, config_map(number))
        await client.create(SECRETS, secret(number))
    try:
        await client.create(SERVICE_ACCOUNTS, ServiceAccount(metadata=ObjectMeta(name="default", namespace=NAMESPACE)))
    except ApiStatusError as error:
        if error.reason != "AlreadyExists":
            raise
