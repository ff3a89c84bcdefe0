"""A runtime manager on a real containerd, and short ways to play a pod on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
import yaml

from tests.containerd_node import TEST_IMAGE, ContainerdNode
from tests.patience import PATIENCE, pauses
from tests.runtime.conftest import FakeMounts, make_container
from tests.runtime.objects import FakeObjects
from trikubelet.api import pod_from_dict, set_pod_defaults, validate_pod
from trikubelet.clock import SystemClock
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.container.model import ContainerState
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.runtime.containers.container import Extras, no_extras
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.state import RuntimeState
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.api import Container, Pod
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
    from trikubelet.runtime.images.credentials.lookup import Credentials
    from trikubelet.runtime.images.pull_records.records import PullRecords
    from trikubelet.runtime.results import PodSyncResult

POLL: Final = 0.02


@attrs.define
class ContainerdStage:
    """One manager; everything of its pods that is not in the runtime is in `folder`."""

    containerd: ContainerdNode
    folder: Path
    manager: RuntimeManager
    options: RuntimeOptions
    mounts: FakeMounts
    objects: FakeObjects
    recorder: EventRecorder
    abilities: Callable[[], RuntimeAbilities]
    nursery: trio.Nursery

    async def status(self, pod: Pod) -> PodRuntimeStatus:
        return await self.manager.get_pod_status(pod.metadata.uid, pod.metadata.name, pod.metadata.namespace)

    async def sync(self, pod: Pod) -> PodSyncResult:
        """One sync on a fresh status."""
        return await self.sync_seen(pod, await self.status(pod))

    async def sync_seen(self, pod: Pod, status: PodRuntimeStatus) -> PodSyncResult:
        return await self.manager.sync_pod(pod, status, self.manager.containers_of_pod(self.nursery))

    async def start(self, pod: Pod) -> None:
        """One sync, without any failure."""
        result = await self.sync(pod)
        assert result.error is None, result.error

    async def until_running(self, pod: Pod, container: str = "main") -> ContainerStatus:
        """Sync until a container runs."""
        with trio.fail_after(PATIENCE):
            while True:
                found = (await self.status(pod)).find_container(container)
                if found is not None and found.state is ContainerState.RUNNING:
                    return found
                await self.start(pod)
                await trio.sleep(POLL)

    async def ended(self, pod: Pod, container: str = "main") -> ContainerStatus:
        """Wait for the end of a container's last run, and of its log: containerd tells of the first on its own."""
        logs = f"{self.log_folder(pod) / container}/"
        looks = pauses()
        with trio.fail_after(PATIENCE):
            written = False
            while True:
                found = (await self.status(pod)).find_container(container)
                if found is not None and found.state is ContainerState.EXITED:
                    if written:
                        return found  # asked for after the last line: it may be in the message
                    written = not any(path.startswith(logs) for path in self.containerd.open_files())
                await trio.sleep(next(looks))

    async def output(self, pod: Pod, container: str = "main") -> list[str]:
        """Run a pod whose container ends by itself, and remove it; the lines that it wrote."""
        await self.start(pod)
        await self.ended(pod, container)
        lines = self.lines(pod, container)
        await self.destroy(pod)
        return lines

    async def until_line(self, pod: Pod, line: str, container: str = "main") -> None:
        with trio.fail_after(PATIENCE):
            looks = pauses()
            while line not in self.lines(pod, container):
                await trio.sleep(next(looks))

    def log_folder(self, pod: Pod) -> Path:
        metadata = pod.metadata
        return self.folder / "logs" / f"{metadata.namespace}_{metadata.name}_{metadata.uid}"

    def lines(self, pod: Pod, container: str = "main") -> list[str]:
        """What the first run wrote, without times and streams; parts of a line are put together."""
        text = ""
        for line in (self.log_folder(pod) / container / "0.log").read_text().splitlines():
            _, _, flag, part = line.split(" ", 3)
            text += part + ("\n" if flag == "F" else "")
        return text.replace("\r", "").splitlines()

    def said(self, pod: Pod) -> list[tuple[str, str]]:
        """The events of a pod: reason and message."""
        return [(event.reason, event.message) for event in self.recorder.events_of(pod.metadata.uid)]

    async def destroy(self, pod: Pod) -> None:
        """End a pod; nothing of it may be left."""
        running = (await self.status(pod)).as_running_pod(self.manager.runtime_name)
        await self.manager.kill_pod(running, pod, deadline=trio.current_time() + 2)
        await self.manager.garbage_collect(all_sources_ready=True, is_pod_removed=lambda uid: uid == pod.metadata.uid)
        await self.manager.release(pod.metadata.uid)
        left = await self.status(pod)
        assert (left.container_statuses, left.sandbox_statuses) == ((), ())


@asynccontextmanager
async def stage_on(
    containerd: ContainerdNode,
    folder: Path,
    *,
    credentials: Credentials | None = None,
    pull_records: PullRecords | None = None,
    extras: Extras = no_extras,
    **options: Any,
) -> AsyncIterator[ContainerdStage]:
    """A manager with a volume called `shared`. `options` are more of RuntimeOptions."""
    clock = SystemClock()
    mounts = FakeMounts(folder)
    mounts.paths["shared"] = folder / "shared"
    mounts.paths["shared"].mkdir(exist_ok=True)
    objects = FakeObjects()
    recorder = EventRecorder(clock)
    told = RuntimeOptions(
        **{
            "root_dir": folder / "root",
            "machine": MachineFacts.read(),
            "pod_logs_dir": folder / "logs",
            "legacy_log_symlinks_dir": folder / "containers",
            "node_name": "node-1",
            "host_ips": ("192.168.0.1",),
            **options,
        }
    )
    async with open_unix_channel(containerd.socket) as channel, trio.open_nursery() as nursery:
        runtime = RuntimeClient(channel)
        state = RuntimeState(runtime)
        await nursery.start(state.run)
        manager = RuntimeManager(
            runtime,
            ImageClient(channel),
            RuntimeContext(
                recorder=recorder,
                clock=clock,
                options=told,
                mounts=mounts,
                objects=objects,
                abilities=lambda: state.abilities,
                credentials=credentials,
                pull_records=pull_records,
                extras=extras,
            ),
        )
        await manager.connect()
        await nursery.start(manager.run)
        yield ContainerdStage(
            containerd, folder, manager, told, mounts, objects, recorder, lambda: state.abilities, nursery
        )
        nursery.cancel_scope.cancel()


def shell(name: str, script: str, **fields: Any) -> Container:
    """A container of the test image that runs a script."""
    fields.setdefault("image", TEST_IMAGE)
    fields.setdefault("image_pull_policy", "Never")
    return make_container(name, command=("sh", "-c", script), **fields)


def manifest(name: str, spec: str, script: str = "", *, labels: dict[str, str] | None = None) -> Pod:
    """A valid pod from the YAML of its spec, which ends by itself.

    Containers have the test image; those without a command run `script`.
    """
    content = yaml.safe_load(dedent(spec))
    for container in (*content.get("initContainers", ()), *content["containers"]):
        container.setdefault("image", TEST_IMAGE)
        container.setdefault("imagePullPolicy", "Never")
        container.setdefault("command", ["sh", "-c", script])
    content.setdefault("restartPolicy", "Never")
    content.setdefault("dnsPolicy", "Default")
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels or {}}
    pod = set_pod_defaults(pod_from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": content}))
    assert validate_pod(pod) == []
    return pod
