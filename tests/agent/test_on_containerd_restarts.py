"""A real containerd that dies and comes back in the middle of what an agent asks of it.

The agent runs in the test, so that it can be said exactly where: its channel tells of each call, and holds one back.
Afterwards the pod runs, or is gone, and its process never ran twice at the same time: /proc is looked at all along.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.agent.real_node import NODE_NAME, RealNode, listens_to_sigterm
from tests.containerd_node import TEST_IMAGE, ContainerdNode
from tests.oci_image import OciImage, make_root_folder
from tests.patience import pauses
from tests.registry_node import RegistryNode, needs_registry
from trikubelet.agent.agent import Agent
from trikubelet.agent.options import AgentOptions
from trikubelet.api import POD_READY, PodStatus
from trikubelet.clock import SystemClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import Channel, open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.containerd, pytest.mark.root]

PATIENCE: Final = 30.0
POLL: Final = 0.05
LIFE: Final = """
    echo started >> /shared/story
    trap 'echo stopping >> /shared/story; sleep 0.5; echo ended >> /shared/story; exit 0' TERM
    while :; do sleep 0.05; done
    """


@attrs.define
class WatchedChannel:
    """Tells of the first call of each kind that is sent, and can hold calls back before that."""

    inner: Channel
    sent: dict[str, trio.Event] = attrs.field(factory=dict)
    before: dict[str, Callable[[], Any]] = attrs.field(factory=dict)
    """What to do, once, before a call goes out; by the call's name."""

    @asynccontextmanager
    async def request(self, name: str, *arguments: Any, **more: Any) -> AsyncIterator[Any]:
        rpc = name.rpartition("/")[2]
        if rpc in self.before:
            await self.before.pop(rpc)()
        async with self.inner.request(name, *arguments, **more) as stream:
            self.sending(rpc).set()
            yield stream

    def sending(self, rpc: str) -> trio.Event:
        return self.sent.setdefault(rpc, trio.Event())


@attrs.define
class Stage:
    """An agent on a containerd, and what its pods told of themselves."""

    node: RealNode
    containerd: ContainerdNode
    channel: WatchedChannel
    agent: Agent
    most_at_once: int = 0
    """Containers' first processes, of all pods."""

    async def watch(self) -> None:
        while True:
            self.most_at_once = max(self.most_at_once, len(self.processes()))
            await trio.sleep(POLL)

    async def restart_containerd(self, during: Callable[[], object] = lambda: None) -> None:
        """SIGKILL and a new one, which finds what the old one left; `during`: what happens while there is none."""
        await trio.to_thread.run_sync(self.containerd.kill)
        during()
        await trio.to_thread.run_sync(self.containerd.start)

    def processes(self) -> list[int]:
        return first_processes(self.node.marker("main"))

    def story(self) -> list[str]:
        path = self.node.shared / "story"
        return path.read_text().splitlines() if path.exists() else []

    def status(self, name: str) -> PodStatus:
        for pod in self.agent.pods.pods():
            if pod.metadata.name == f"{name}-{NODE_NAME}":
                return self.agent.statuses.get_pod_status(pod.metadata.uid) or PodStatus()
        return PodStatus()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        looks = pauses()
        with trio.move_on_after(PATIENCE):
            while not condition():
                await trio.sleep(next(looks))
            return
        statuses = [self.agent.statuses.get_pod_status(pod.metadata.uid) for pod in self.agent.pods.pods()]
        raise AssertionError(f"not so within {PATIENCE:g} s: {what}; {self.story()}; {statuses}")

    async def until_ready(self, name: str) -> None:
        """And until its container has told of its start and listens to SIGTERM: that it runs is known before."""

        def ready() -> bool:
            return any(one.type == POD_READY and one.status == "True" for one in self.status(name).conditions)

        await self.until(ready, f"{name} is ready")
        await self.until(lambda: any(map(listens_to_sigterm, self.processes())), f"{name} listens to SIGTERM")

    async def remove(self, name: str) -> None:
        """Delete a pod's manifest; nothing of it may be left."""
        self.node.delete(name)
        await self.until(lambda: not self.agent.pods.pods(), f"{name} is gone")
        await self.until(lambda: not self.leftovers(), "nothing is left of it")
        assert self.leftovers() == []

    def leftovers(self) -> list[str]:
        """But for what an agent that runs has: the socket that device plugins register at."""
        plugins = f"socket {self.node.root / 'device-plugins'}/"
        return [left for left in self.node.leftovers() if not left.startswith(plugins)]


@asynccontextmanager
async def agent_on(containerd: ContainerdNode, folder: Path) -> AsyncIterator[Stage]:
    node = RealNode(folder / "node", TEST_IMAGE, containerd)
    options = AgentOptions(
        configuration=KubeletConfiguration(
            pod_logs_dir=str(node.folder / "logs"),
            cgroups_per_qos=False,
            enforce_node_allocatable=(),
            fail_cgroup_v1=False,
            eviction_hard={"memory.available": "0%"},
        ),
        root_dir=node.root,
        node_name=NODE_NAME,
        runtime_endpoint=containerd.endpoint,
        manifests=node.manifests,
    )
    try:
        async with open_unix_channel(containerd.socket) as inner, trio.open_nursery() as nursery:
            channel = WatchedChannel(inner)
            agent = Agent(options, RuntimeClient(channel), ImageClient(channel), clock=SystemClock())
            await nursery.start(agent.run)
            stage = Stage(node, containerd, channel, agent)
            nursery.start_soon(stage.watch)
            yield stage
            assert stage.most_at_once == 1
            nursery.cancel_scope.cancel()
    finally:
        if containerd.process is None:
            with trio.CancelScope(shield=True):  # which has a deadline of its own
                await trio.to_thread.run_sync(containerd.start)
        node.clean()


@needs_registry
async def test_a_containerd_that_dies_during_a_pull_pulls_again(
    containerd: ContainerdNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.runtime.backoff.IMAGE_INITIAL", 1.0)
    registry = RegistryNode(tmp_path / "registry", protected=False)
    registry.start()
    try:
        made = OciImage.from_folder(make_root_folder(tmp_path / "rootfs"), {"Labels": {"of": tmp_path.name}})
        image = registry.push("restarts:1", made)
        async with agent_on(containerd, tmp_path) as stage:
            registry.freeze()
            stage.node.run("web", {**stage.node.container(LIFE), "image": image, "imagePullPolicy": "Always"})
            with trio.fail_after(PATIENCE):
                await stage.channel.sending("PullImage").wait()
            await stage.restart_containerd(registry.resume)
            await stage.until_ready("web")
            await stage.remove("web")
            assert stage.story().count("started") == 1
            assert stage.story()[-1] == "ended"
        containerd.ctr("images", "remove", image, made.id)
    finally:
        registry.stop()


async def test_a_containerd_that_dies_between_create_and_start_starts_one(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    async with agent_on(containerd, tmp_path) as stage:
        stage.channel.before["StartContainer"] = stage.restart_containerd
        stage.node.run("web", stage.node.container(LIFE))
        await stage.until_ready("web")
        assert stage.story() == ["started"]
        await stage.remove("web")
        assert stage.story().count("started") == 1
        assert stage.story()[-1] == "ended"


async def test_a_containerd_that_dies_while_a_container_starts_starts_one(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    async with agent_on(containerd, tmp_path) as stage:
        stage.node.run("web", stage.node.container(LIFE))
        with trio.fail_after(PATIENCE):
            await stage.channel.sending("StartContainer").wait()
        await stage.restart_containerd()
        await stage.until_ready("web")
        await stage.remove("web")
        # What runs although nobody heard of its start may be ended and started again, one after the other.
        assert stage.story().count("started") in (1, 2)
        assert stage.story()[-1] == "ended"


async def test_a_containerd_that_dies_during_a_stop_ends_the_pod(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with agent_on(containerd, tmp_path) as stage:
        stage.node.run("web", stage.node.container(LIFE))
        await stage.until_ready("web")
        stage.node.delete("web")
        await stage.until(lambda: "stopping" in stage.story(), "the container was asked to end")
        await stage.restart_containerd()
        await stage.until(lambda: not stage.agent.pods.pods(), "the pod is gone")
        await stage.until(lambda: not stage.leftovers(), "nothing is left of it")
        assert stage.story().count("started") == 1
        assert "ended" in stage.story()


def first_processes(marker: str) -> list[int]:
    """The first process of each container that runs a command with this word in it: those whose parent has it not."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                # runc has the command too, for a moment
                if marker.encode() in words and words.startswith(b"sh\0") and status[0] != "Z":
                    parents[int(entry.name)] = int(status[1])
    return [pid for pid, parent in parents.items() if parent not in parents]
