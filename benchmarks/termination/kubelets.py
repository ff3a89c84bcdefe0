"""Who takes part: our agent and kubelets as processes on runtimes of their own, told of pods by their manifest folders.

Each has a runtime for itself, of the same kind and configuration: an agent ends pods that it was not told of.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from benchmarks.agent_process import COMMAND, NODE_NAME, PATIENCE, running_agent, write_configuration
from benchmarks.manifest_agents import ManifestFolder
from benchmarks.termination.phases import OURS, Phase
from benchmarks.termination.pods import LEAST_GRACE, Behaviour
from benchmarks.termination.watch import Eyes
from tests.containerd_node import TEST_IMAGE, ContainerdNode
from trikubelet.linux.shared_folder import unshare_folder
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.manifest_agents import Runtime
    from benchmarks.termination.pods import PodPlan
    from benchmarks.termination.watch import WatchedPod

MOST_PODS: Final = 1000
REMOVAL_PATIENCE: Final = 60.0
"""Seconds that our agent may take to remove what is left of pods."""
KUBELET_REMOVAL_PATIENCE: Final = 2.0
"""A kubelet does that once a minute: it is not waited for."""
START_TROUBLES: Final = 2.0
"""Seconds within which a kubelet that does not like its configuration ends."""
IMAGES: Final = {"containerd": TEST_IMAGE, "embedded": "localhost/host"}


class Contestant(Protocol):
    """Somebody who starts and ends pods."""

    @property
    def name(self) -> str: ...

    @property
    def eyes(self) -> Eyes: ...

    @property
    def signs(self) -> Path:
        """Where the containers leave files."""

    @property
    def pod_folders(self) -> Path | None:
        """Where it has a folder for each pod that its worker removes at last."""

    @property
    def pid(self) -> int | None:
        """Of the process whose CPU time counts."""

    async def start(self, plans: Sequence[PodPlan]) -> None:
        """Bring pods; they need not run yet."""

    async def ask(self, pods: Sequence[WatchedPod]) -> dict[str, float]:
        """Have pods ended; when each was asked to end, by its name."""

    async def clear(self, plans: Sequence[PodPlan]) -> None:
        """Have what is left of ended pods removed."""


@attrs.define
class ManifestKubelet:
    """A contestant that reads manifests."""

    name: str
    manifests: ManifestFolder
    image: str
    eyes: Eyes
    signs: Path
    pid: int | None
    pod_folders: Path | None
    removal_patience: float

    async def start(self, plans: Sequence[PodPlan]) -> None:
        await trio.lowlevel.checkpoint()
        self._put(plans)

    async def ask(self, pods: Sequence[WatchedPod]) -> dict[str, float]:
        plans = [pod.plan for pod in pods]
        if plans[0].behaviour is Behaviour.GRACE_SHORTENED:
            self._put(plans, deletion_grace=plans[0].grace)
            while not all(Phase.FIRST_SIGNAL in pod.moments for pod in pods):  # noqa: ASYNC110 - not timed
                await trio.sleep(0.01)
            asked = time.monotonic()
            self._put(plans, deletion_grace=LEAST_GRACE)
            return {plan.name: asked for plan in plans}
        times = {}
        for plan in plans:
            times[plan.name] = time.monotonic()
            self.manifests.remove([plan.name])
        return times

    async def clear(self, plans: Sequence[PodPlan]) -> None:
        for plan in plans:
            (self.manifests.path / f"{plan.name}.json").unlink(missing_ok=True)
        with trio.move_on_after(self.removal_patience):
            while not await self.eyes.is_empty():  # noqa: ASYNC110 - not timed
                await trio.sleep(0.1)

    def _put(self, plans: Sequence[PodPlan], deletion_grace: int | None = None) -> None:
        self.manifests.put(
            {plan.name: plan.manifest(self.image, str(self.signs), deletion_grace=deletion_grace) for plan in plans}
        )


# Runtimes


@attrs.frozen
class ServedRuntime:
    """The embedded runtime in a process of its own, for clients that are not our agent."""

    root: Path

    @property
    def socket(self) -> Path:
        return self.root.with_name("cri.sock")

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"


@contextmanager
def served_runtime(folder: Path) -> Iterator[ServedRuntime]:
    """Nothing is left of it."""
    folder.mkdir(parents=True)
    runtime = ServedRuntime(folder / "runtime")
    command = [*COMMAND, "runtime", "serve", f"--listen={runtime.endpoint}", f"--root={runtime.root}", "--host-image"]
    with (folder / "runtime.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(runtime.socket, process, folder / "runtime.log")
        yield runtime
        trio.run(_remove_everything, runtime.socket)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        keeper = _keeper(runtime.root)
        shutil.rmtree(runtime.root, ignore_errors=True)  # which ends the keeper, with whatever still runs
        _wait_for_end(keeper)


@contextmanager
def containerd(folder: Path, number: int) -> Iterator[ContainerdNode]:
    """The `number`-th of this process, with its images. Nothing is left of it."""
    node = ContainerdNode(folder, f"br-end{number}-{os.getpid() % 10000}", network=number)
    with ExitStack() as stack:
        stack.callback(node.stop)
        node.start()
        node.import_images()
        yield node


# Agents


@attrs.frozen
class Process:
    """A kubelet that runs on `folder/manifests`."""

    name: str
    folder: Path
    pid: int
    pod_folders: Path | None
    removal_patience: float

    def contestant(self, image: str, eyes: Eyes) -> ManifestKubelet:
        signs = self.folder / "sign"
        return ManifestKubelet(
            name=self.name,
            manifests=ManifestFolder(self.folder, signs),
            image=image,
            eyes=eyes,
            signs=signs,
            pid=self.pid,
            pod_folders=self.pod_folders,
            removal_patience=self.removal_patience,
        )


@contextmanager
def our_agent(folder: Path, endpoint: str) -> Iterator[Process]:
    """Our agent. At the end it drains."""
    (folder / "sign").mkdir(parents=True)
    with running_agent(folder, endpoint) as agent:
        agent.wait_until_it_listens()
        yield Process(OURS, folder, agent.process.pid, agent.root / "pods", REMOVAL_PATIENCE)


@contextmanager
def other_kubelet(
    folder: Path, program: Path, runtime: Runtime, *, node: str = NODE_NAME, kubeconfig: Path | None = None
) -> Iterator[Process]:
    """A kubelet, without an API server if there is no kubeconfig. What it leaves in the runtime is left."""
    for name in ("sign", "manifests", "plugins", "certificates"):
        (folder / name).mkdir(parents=True)
    settings = standalone_configuration(folder, runtime.endpoint) | {"registerNode": kubeconfig is not None}
    configuration = write_configuration(folder, **settings)
    command = [
        str(program),
        f"--config={configuration}",
        f"--root-dir={folder / 'root'}",
        f"--cert-dir={folder / 'certificates'}",
        f"--hostname-override={node}",
        *([] if kubeconfig is None else [f"--kubeconfig={kubeconfig}"]),
    ]
    with (folder / "kubelet.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(START_TROUBLES)
            raise RuntimeError(f"{program} does not start: {(folder / 'kubelet.log').read_text()[-2000:]}")
        yield Process(program.name, folder, process.pid, None, KUBELET_REMOVAL_PATIENCE)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(REMOVAL_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        unshare_folder(folder / "root")


def standalone_configuration(folder: Path, endpoint: str) -> dict[str, Any]:
    """A kubelet's settings for this: static pods only, no server, no cgroups or evictions of its own."""
    return {
        "staticPodPath": str(folder / "manifests"),
        "containerRuntimeEndpoint": endpoint,
        "volumePluginDir": str(folder / "plugins"),
        "enableServer": False,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "registerNode": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "contentType": "application/json",  # all that the API server of the tests knows
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "maxPods": MOST_PODS,
    }


async def _remove_everything(socket: Path) -> None:
    async with open_unix_channel(socket) as channel:
        runtime = RuntimeClient(channel)
        for sandbox in await runtime.list_pod_sandboxes():
            await runtime.remove_pod_sandbox(sandbox.id)


def _keeper(root: Path) -> int | None:
    """A pidfd of the runtime's keeper, if it runs."""
    try:
        return os.pidfd_open(int(json.loads((root / "keeper.json").read_text())["pid"]))
    except (OSError, ValueError, KeyError):
        return None


def _wait_for_end(pidfd: int | None) -> None:
    if pidfd is not None:
        select.select([pidfd], [], [], REMOVAL_PATIENCE)
        os.close(pidfd)


def _wait_for(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the runtime does not start: {log.read_text()[-2000:]}")
        time.sleep(0.01)
