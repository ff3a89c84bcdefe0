"""Two agents without a cluster beside what a kubelet has on the machine, on both runtimes: nothing foreign is touched.

Both agents name the same cgroup root and log folder, in which the kubelet's pods are too, so they run by turns.
"""

from __future__ import annotations

import random
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.conftest import RUNTIMES, node_on
from tests.sim.building import container_config, sandbox_config
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.agent.private_cgroups import PrivateCgroups
    from tests.agent.real_node import RealNode
    from tests.containerd_node import ContainerdNode

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
FOREIGN = ("kubepods/besteffort/pod1111-1", "kubepods/burstable/pod1111-2", "kubepods/pod1111-3", "others/pod1111-4")
STEPS = 8


@pytest.fixture(params=RUNTIMES)
def nodes(
    request: pytest.FixtureRequest, tmp_path: Path, cgroups: PrivateCgroups
) -> Iterator[tuple[RealNode, RealNode]]:
    """Two nodes on one runtime where that is not embedded, one tree of cgroups and one log folder."""
    pair = node_on(request, tmp_path / "a"), node_on(request, tmp_path / "b")
    for node in pair:
        node.configure(**cgroups.fields, podLogsDir=str(tmp_path / "logs"))
    try:
        yield pair
    finally:
        for node in pair:
            node.clean()


def test_nothing_foreign_is_touched_while_agents_come_and_go(
    nodes: tuple[RealNode, RealNode], cgroups: PrivateCgroups, tmp_path: Path
) -> None:
    rng = random.Random(1)
    logs = [tmp_path / "logs" / f"default_{name}_1111-{name}" / "main" / "0.log" for name in ("web", "gone")]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_text("foreign\n")
    with ExitStack() as stack:
        strangers = [stack.enter_context(cgroups.leftover(name)) for name in FOREIGN]
        strangers.append(stack.enter_context(cgroups.leftover("kubepods/pod1111-5", "/var/lib/kubelet")))
        mount = stack.enter_context(foreign_mount(tmp_path / "kubelet" / "pods" / "1111-web" / "volumes"))
        containers = stack.enter_context(foreign_pods(nodes[0].containerd))

        def check(told: str) -> None:
            assert [each.poll() for each in strangers] == [None] * 5, told
            assert all(cgroups.exists(name) for name in (*FOREIGN, "kubepods/pod1111-5")), told
            assert all(log.read_text() == "foreign\n" for log in logs), told
            assert (mount / "file").read_text() == "foreign", told
            assert containers() == [v1.ContainerState.CONTAINER_RUNNING] * 2, told

        for step in range(STEPS):
            node, other = rng.sample(nodes, 2)
            name = f"pod-{step % 2}"
            kept = pods_of(other)
            node.run(name, node.container(SLEEP, f"{name}-{node.folder.name}"), terminationGracePeriodSeconds=1)
            node.start()
            node.until_running(name)
            ended = rng.choice(("drain", "kill", "stop"))
            code = node.stop() if ended == "drain" else node.stop(signal.SIGKILL)
            assert code == (0 if ended == "drain" else -signal.SIGKILL)
            if ended == "stop":
                flags = (f"--runtime-endpoint={node.endpoint}", f"--config={node.folder / 'config.json'}")
                result = node.cli("stop", *flags)
                assert result.returncode == 0, result.stderr
            check(f"{ended} of {node.folder.name}")
            assert pods_of(other) == kept, "nor is the other agent's"
            if ended != "kill":
                assert pods_of(node) == set()
        for node in nodes:
            node.start()
            assert node.stop() == 0
            check("the last ends")
        assert cgroups.pods() == {*FOREIGN[:3], "kubepods/pod1111-5"}


def pods_of(node: RealNode) -> set[int]:
    """The processes of the node's containers."""
    marks = (f"pod-{number}-{node.folder.name}" for number in range(2))
    return {pid for mark in marks if (pid := node.process(mark)) is not None}


@contextmanager
def foreign_mount(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "foreign", folder], check=True)
    try:
        (folder / "file").write_text("foreign")
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def foreign_pods(containerd: ContainerdNode | None) -> Iterator[Callable[[], list[v1.ContainerState]]]:
    """Two pods of a kubelet in containerd, one with the mark of another agent. Yields what tells their states."""
    if containerd is None:
        yield lambda: [v1.ContainerState.CONTAINER_RUNNING] * 2
        return
    node = containerd
    ids: list[str] = []
    sandboxes: list[str] = []

    async def start() -> None:
        async with open_unix_channel(node.socket) as channel:
            runtime = RuntimeClient(channel)
            for name, owner in (("foreign", ""), ("marked", "/var/lib/kubelet")):
                config = sandbox_config(name, host_network=True)
                config.annotations = {"io.trikubelet.owner": owner} if owner else {}
                sandbox = await runtime.run_pod_sandbox(config)
                sandboxes.append(sandbox)
                one = container_config(image="localhost/test:1")
                one.command, one.labels, one.log_path = ["sh", "-c", SLEEP], {**one.labels, **config.labels}, ""
                one.annotations = config.annotations
                ids.append(await runtime.create_container(sandbox, one, config))
                await runtime.start_container(ids[-1])

    async def states() -> list[v1.ContainerState]:
        async with open_unix_channel(node.socket) as channel:
            runtime = RuntimeClient(channel)
            return [(await runtime.container_status(one)).status.state for one in ids]

    async def remove() -> None:
        async with open_unix_channel(node.socket) as channel:
            runtime = RuntimeClient(channel)
            for sandbox in sandboxes:
                await runtime.stop_pod_sandbox(sandbox)
                await runtime.remove_pod_sandbox(sandbox)

    try:
        trio.run(start)
        yield lambda: trio.run(states)
    finally:
        trio.run(remove)
