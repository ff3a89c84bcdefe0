"""The floor: a bare client that ends pods with the calls that a kubelet makes, and does nothing else.

Its pods are what an agent would have made of the manifests: an agent inside this process is told of one pod of each
behaviour, and its configurations are kept. Its calls for the end of a pod are StopContainer for every container, all at
once (sidecars after the others, each after those that started later; a preStop hook first), then StopPodSandbox.
"""

from __future__ import annotations

import shutil
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.manifest_agents import PATIENCE, ManifestFolder, agent_inside
from benchmarks.termination.phases import FLOOR, Phase
from benchmarks.termination.pods import HOOK, HOOK_SECONDS, LEAST_GRACE, SIGN, STARTED, Behaviour, PodPlan
from benchmarks.termination.watch import Eyes, wait_for_signs
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from benchmarks.manifest_agents import Runtime
    from benchmarks.termination.watch import WatchedPod

POD_NAME: Final = "io.kubernetes.pod.name"
POD_UID: Final = "io.kubernetes.pod.uid"


@attrs.frozen
class Recorded:
    """How an agent makes a pod."""

    sandbox: v1.PodSandboxConfig
    containers: tuple[v1.ContainerConfig, ...]
    """In the order of their starts."""

    def of(self, plan: PodPlan, logs: Path, signs: Path) -> Recorded:
        """The same for another pod, whose logs and signs go into these folders."""
        sandbox = v1.PodSandboxConfig.FromString(bytes(self.sandbox))
        containers = tuple(v1.ContainerConfig.FromString(bytes(container)) for container in self.containers)
        sandbox.metadata.name = sandbox.hostname = plan.name
        sandbox.metadata.uid = plan.uid
        sandbox.log_directory = str(logs / plan.name)
        for labels in (sandbox.labels, *(container.labels for container in containers)):
            labels[POD_NAME], labels[POD_UID] = plan.name, plan.uid
        for container in containers:
            container.command = list(plan.command(container.metadata.name))
            for mount in container.mounts:
                if mount.container_path == SIGN:
                    mount.host_path = str(signs)
            (Path(sandbox.log_directory) / container.log_path).parent.mkdir(parents=True, exist_ok=True)
        return Recorded(sandbox, containers)


async def record(folder: Path, node: Runtime, image: str, behaviours: Sequence[Behaviour]) -> dict[Behaviour, Recorded]:
    """Let an agent start one pod of each behaviour, and keep what it asked of the runtime. Nothing of it is left."""
    signs = folder / "sign"
    signs.mkdir(parents=True)
    manifests = ManifestFolder(folder, signs)
    plans = {one: PodPlan(f"recorded-{one}", one, grace=1) for one in behaviours}
    async with agent_inside(folder, node, manifests) as (_, runtime):
        manifests.put({plan.name: plan.manifest(image, str(signs)) for plan in plans.values()})
        started = frozenset[str]().union(*(plan.signs(STARTED) for plan in plans.values()))
        await wait_for_signs(signs, started, PATIENCE)
    sandboxes = {config.metadata.uid: config for config in runtime.sandboxes}
    recorded = {}
    for behaviour, plan in plans.items():
        containers = tuple(config for sandbox, config in runtime.containers if sandbox.metadata.uid == plan.uid)
        for config in containers:
            _keep_files(config, folder / "root", folder / "files" / plan.name / config.metadata.name)
        recorded[behaviour] = Recorded(sandboxes[plan.uid], containers)
    async with open_unix_channel(node.socket) as channel:
        await _remove_everything(RuntimeClient(channel))
    return recorded


def _keep_files(config: v1.ContainerConfig, root: Path, kept: Path) -> None:
    """Mount copies of the files that the agent made, which it removes with its pod."""
    kept.mkdir(parents=True)
    for mount in config.mounts:
        if Path(mount.host_path).is_relative_to(root):
            copy = kept / mount.container_path.replace("/", "_")
            shutil.copy(mount.host_path, copy)
            mount.host_path = str(copy)


async def _remove_everything(runtime: RuntimeClient) -> None:
    for sandbox in await runtime.list_pod_sandboxes():
        await runtime.stop_pod_sandbox(sandbox.id)
        await runtime.remove_pod_sandbox(sandbox.id)


@attrs.define
class BareCalls:
    """The calls for pods, and nothing else."""

    runtime: RuntimeClient
    _running: dict[str, tuple[str, dict[str, str]]] = attrs.field(factory=dict, init=False)
    """By the name of the pod: the ids of its sandbox, and of its containers by their names."""

    async def start(self, plan: PodPlan, config: Recorded) -> None:
        sandbox = await self.runtime.run_pod_sandbox(config.sandbox)
        containers = {}
        for container in config.containers:
            made = await self.runtime.create_container(sandbox, container, config.sandbox)
            await self.runtime.start_container(made)
            containers[container.metadata.name] = made
        self._running[plan.name] = (sandbox, containers)

    async def end(self, plan: PodPlan) -> None:
        """With its grace period."""
        sandbox, containers = self._running[plan.name]
        async with trio.open_nursery() as nursery:
            for name, container in containers.items():
                if name not in plan.behaviour.sidecars:
                    nursery.start_soon(self._stop, plan, container)
        for name in reversed(plan.behaviour.sidecars):
            await self.runtime.stop_container(containers[name], plan.grace)
        await self.runtime.stop_pod_sandbox(sandbox)

    async def hurry(self, plan: PodPlan, signalled: Callable[[], bool], hurrying: Callable[[], None]) -> None:
        """With its whole grace period at first, and with the least one when it got its signal; then `hurrying`."""
        sandbox, containers = self._running[plan.name]
        async with trio.open_nursery() as nursery:
            for container in containers.values():
                nursery.start_soon(self.runtime.stop_container, container, plan.grace)
            while not signalled():  # noqa: ASYNC110 - not timed
                await trio.sleep(0.01)
            hurrying()
            for container in containers.values():
                await self.runtime.stop_container(container, LEAST_GRACE)
            await self.runtime.stop_pod_sandbox(sandbox)
            nursery.cancel_scope.cancel()

    async def remove(self, plan: PodPlan) -> None:
        await self.runtime.remove_pod_sandbox(self._running.pop(plan.name)[0])

    async def _stop(self, plan: PodPlan, container: str) -> None:
        grace = plan.grace
        if plan.behaviour is Behaviour.PRE_STOP:
            await self.runtime.exec_sync(container, list(HOOK), grace)
            grace = max(grace - int(HOOK_SECONDS), LEAST_GRACE)
        await self.runtime.stop_container(container, grace)


@attrs.define
class BareClient:
    """A contestant that is told of its pods by this benchmark, and works on so many of them at a time."""

    calls: BareCalls
    at_once: int
    eyes: Eyes
    signs: Path
    recorded: dict[Behaviour, Recorded]
    logs: Path
    pod_folders: Path | None = None
    pid: int | None = None

    @property
    def name(self) -> str:
        return f"{FLOOR}, {self.at_once} at once"

    async def start(self, plans: Sequence[PodPlan]) -> None:
        limiter = trio.CapacityLimiter(self.at_once)

        async def start(plan: PodPlan) -> None:
            config = self.recorded[plan.behaviour].of(plan, self.logs, self.signs)
            async with limiter:
                await self.calls.start(plan, config)

        async with trio.open_nursery() as nursery:
            for plan in plans:
                nursery.start_soon(start, plan)

    async def ask(self, pods: Sequence[WatchedPod]) -> dict[str, float]:
        """End these pods; when each was asked to end. Returns when all calls have."""
        limiter = trio.CapacityLimiter(self.at_once)
        asked = {pod.plan.name: time.monotonic() for pod in pods}

        async def end(plan: PodPlan) -> None:
            async with limiter:
                await self.calls.end(plan)

        async def hurry(pod: WatchedPod) -> None:
            def hurrying() -> None:
                asked[pod.plan.name] = time.monotonic()

            await self.calls.hurry(pod.plan, lambda: Phase.FIRST_SIGNAL in pod.moments, hurrying)

        async with trio.open_nursery() as nursery:
            for pod in pods:
                if pod.plan.behaviour is Behaviour.GRACE_SHORTENED:
                    nursery.start_soon(hurry, pod)
                else:
                    nursery.start_soon(end, pod.plan)
        return asked

    async def clear(self, plans: Sequence[PodPlan]) -> None:
        """Remove what is left of these pods."""
        for plan in plans:
            await self.calls.remove(plan)


@asynccontextmanager
async def bare_clients(
    node: Runtime, eyes: Eyes, folder: Path, recorded: dict[Behaviour, Recorded], at_once: Sequence[int]
) -> AsyncIterator[list[BareClient]]:
    """One for each number of pods at a time, all on one runtime."""
    signs = folder / "sign"
    signs.mkdir(parents=True)
    async with open_unix_channel(node.socket) as channel:
        calls = BareCalls(RuntimeClient(channel))
        yield [BareClient(calls, number, eyes, signs, recorded, folder / "logs") for number in at_once]
