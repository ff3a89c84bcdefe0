"""Agents that are killed between two steps of setting up and taking down a pod's volumes, and those that come after.

    python -m tests.volumes.killed_mount <folder> <first> <stride> <pod>…

For each pod and step number `first`, `first + stride`, …: a process sets up all volumes, binds sub paths, writes as a
container does, shows a changed ConfigMap, starts the container again and takes everything down, and sends itself
SIGKILL just before that step. Then this process, which knows nothing of it, has an agent find what is there: once with
the pod still wanted, so it must become ready and show what it should; once with the pod gone, so nothing may be left.
It ends when a process comes to its end unharmed, and prints what each step was.

Steps are Python's audit events for files that change something, and the agent's own for mounts. A file that is made
counts twice: before, and when it is there and empty. Everything is in a mount namespace of its own, in memory. Those
that are killed are forks, which cost milliseconds; no threads, and an order that can be repeated.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from tests.patience import PATIENCE
from tests.volumes.csi.stage import NAME, csi_driver
from tests.volumes.real_kinds import KnownObjects, OneToken, running_manager
from tests.volumes.stage import FakeStorage, add_claim, claimed, empty_dir
from tests.volumes.stage import pod as pod_with
from trikubelet.api import PersistentVolume, Pod, PodSecurityContext, from_dict, set_pod_defaults, to_dict
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.logs import configure_logging
from trikubelet.volumes.csi.drivers import Driver, Drivers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from trikubelet.volumes.manager import VolumeManager

CHANGES: Final = frozenset(
    {
        *(f"os.{name}" for name in ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink")),
        *("os.truncate", "os.utime", "os.setxattr", "shutil.rmtree", "socket.connect", "trikubelet.mount"),
    }
)
WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
FAR: Final = datetime(2999, 1, 1, tzinfo=UTC)
GROUP: Final = 4321
OLD, NEW = {"a": "1", "b": "1"}, {"a": "2", "b": "2", "c": "2"}
SUB_PATHS: Final = {"disk": "sub", "memory": "sub", "config": "a", "data": "sub"}
CONTENT_NAMES: Final = frozenset({"config", "api", "secret", "labels", "again"})
DATA: Final = frozenset({"disk", "memory"})
"""Volumes that a container writes into."""
SHARED: Final = ("pods", "plugins", "plugins/kubernetes.io", "plugins/kubernetes.io/csi")
"""Folders that belong to no pod and no volume."""
DATA_WRITTEN, RELEASED = "data written", "released"
"""What a process tells of how far it came."""

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS: Final = 0x20000
MS_PRIVATE_EVERYWHERE: Final = 0x4000 | (1 << 18)
PR_SET_PDEATHSIG: Final = 1


@attrs.frozen
class World:
    """What outlives an agent. `root` is the agent's."""

    folder: Path
    pod: Pod

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @contextlib.asynccontextmanager
    async def agent(self, config: dict[str, str]) -> AsyncIterator[tuple[VolumeManager, KnownObjects]]:
        objects = KnownObjects({"settings": dict(config)}, {"password": {"password": b"hunter2"}})
        storage = FakeStorage()
        add_claim(storage)
        known = to_dict(storage.volumes["pv-1"])
        known["spec"]["csi"] = {"driver": NAME, "volumeHandle": "vol/1"}
        storage.volumes["pv-1"] = from_dict(PersistentVolume, known)
        modes = ("Persistent", "Ephemeral")
        storage.drivers[NAME] = csi_driver(attach_required=False, volume_lifecycle_modes=modes)
        drivers = Drivers(timeout=PATIENCE)
        drivers.add(Driver(NAME, str(self.folder / "csi.sock"), "1.0.0"))
        with trio.fail_after(PATIENCE):
            async with running_manager(
                self.root, objects=objects, credentials=OneToken("token", FAR), storage=storage, drivers=drivers
            ) as manager:
                yield manager, objects

    @property
    def volumes(self) -> frozenset[str]:
        """Names of the pod's volumes that are the agent's to make."""
        return frozenset(volume.name for volume in self.pod.spec.volumes if volume.host_path is None)


LABELS: Final = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
SOURCES: Final[list[dict[str, Any]]] = [
    {"serviceAccountToken": {"path": "token"}},
    {"configMap": {"name": "settings", "items": [{"key": "a", "path": "deep/a"}]}},
    {"secret": {"name": "password"}},
    {"downwardAPI": {"items": [LABELS]}},
]
FOLDERS: Final = (empty_dir("disk"), {"name": "memory", "emptyDir": {"medium": "Memory"}})
CONTENT: Final[tuple[dict[str, Any], ...]] = (
    {"name": "config", "configMap": {"name": "settings"}},
    {"name": "api", "projected": {"sources": SOURCES}},
)
MORE: Final[tuple[dict[str, Any], ...]] = (
    {"name": "secret", "secret": {"secretName": "password", "defaultMode": 0o400}},
    {"name": "labels", "downwardAPI": {"items": [LABELS]}},
    {"name": "own", "csi": {"driver": NAME}},
    {"name": "second", "emptyDir": {}},
    {"name": "again", "configMap": {"name": "settings", "defaultMode": 0o400}},
    {"name": "host", "hostPath": {"path": "/tmp", "type": "Directory"}},
)
PODS: Final = {
    "folders": FOLDERS,
    "content": CONTENT,
    "csi": (claimed("data"),),
    "all": (*FOLDERS, *CONTENT, claimed("data"), *MORE),
}
"""Small ones, each with volumes that are made in one way, and a large one whose volumes are given to a group."""


def make_pod(name: str) -> Pod:
    pod = pod_with("web", *PODS[name], labels={"app": "web"})
    if name == "all":
        pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, security_context=PodSecurityContext(fs_group=GROUP)))
    return set_pod_defaults(pod)


# Lives


async def live_and_die(world: World, tell: Callable[[str], None]) -> None:
    """From nothing to nothing."""
    async with world.agent(OLD) as (manager, objects):
        await set_up(manager, world)
        for name in DATA & world.volumes:
            (_path(manager, world.pod, name) / "sub" / "mine").write_text("precious")
        tell(DATA_WRITTEN)
        objects.put("settings", NEW)
        while not _shows(manager, world, NEW):
            await trio.sleep(0.001)
        await set_up(manager, world)
        tell(RELEASED)
        await manager.release(world.pod.metadata.uid)


async def go_on(world: World, told: list[str]) -> None:
    """The pod is wanted: it gets its volumes, and later ends."""
    async with world.agent(NEW) as (manager, _):
        await set_up(manager, world)
        check(world, manager)
        if told == [DATA_WRITTEN]:
            for name in DATA & world.volumes:
                assert (_path(manager, world.pod, name) / "sub" / "mine").read_text() == "precious", name
        await manager.release(world.pod.metadata.uid)
        assert left(world) == []


async def clean_up(world: World, told: list[str]) -> None:
    """The pod is gone: what is left of it goes, too."""
    async with world.agent(NEW) as (manager, _):
        for uid in await manager.pod_uids():
            await manager.remove(uid)
        with trio.move_on_after(PATIENCE):
            while left(world):  # what no pod's folder tells of
                await trio.sleep(0.005)
        assert left(world) == []


async def set_up(manager: VolumeManager, world: World) -> None:
    await manager.prepare(world.pod)
    for index, (volume, path) in enumerate(SUB_PATHS.items()):
        if volume in world.volumes:
            await manager.bind_subpath(world.pod, "main", index, volume, path)


def check(world: World, manager: VolumeManager) -> None:
    """Everything that the pod's containers see."""
    own = world.volumes
    path = {name: _path(manager, world.pod, name) for name in own}
    mounts = [mount.point for mount in MountTable.read().below(world.root / "pods")]
    volumes = [point for point in mounts if "volume-subpaths" not in point.parts]
    mounted = own & {"memory", "api", "secret", "labels", "data", "own"}
    assert sorted(volumes) == sorted(path[name] for name in mounted), "each is mounted once"
    assert len(mounts) - len(volumes) == len(SUB_PATHS.keys() & own), mounts
    assert _shows(manager, world, NEW)
    for name in own & CONTENT_NAMES:
        hidden = [entry.name for entry in path[name].iterdir() if entry.name.startswith("..")]
        assert sorted(hidden) == sorted(["..data", str((path[name] / "..data").readlink())]), hidden
    if "api" in own:
        shown = {name: (path["api"] / name).read_text() for name in ("token", "password", "labels")}
        assert shown == {"token": "token", "password": "hunter2", "labels": 'app="web"'}
    for name in own & DATA:
        assert path[name].stat().st_mode & 0o777 == 0o777, name
    if "config" in own:
        subs = world.root / "pods" / world.pod.metadata.uid / "volume-subpaths"
        assert (subs / "config" / "main" / "2").read_text() == "2"
    if "secret" in own:
        for name in own - {"data", "own"}:
            assert path[name].stat().st_gid == GROUP, name
        assert (path["secret"] / "password").stat().st_mode & 0o777 == 0o440


def left(world: World) -> list[str]:
    """What is below the root folder, but for folders of nobody in particular; and all mounts."""
    found = [Path(top, name) for top, folders, files in os.walk(world.root) for name in folders + files]
    allowed = {*SHARED, f"{SHARED[-1]}/{NAME}"}
    inline = [path.name for path in (world.folder / "storage" / "volumes").glob("csi-*")]
    mounts = [str(mount.point) for mount in MountTable.read().below(world.root)]
    names = {str(path.relative_to(world.root)) for path in found}
    return sorted(names - allowed) + mounts + inline


def _path(manager: VolumeManager, pod: Pod, volume: str) -> Path:
    path = manager.host_path(pod, volume)
    assert path is not None, f"{volume} is not there"
    return path


def _shows(manager: VolumeManager, world: World, data: dict[str, str]) -> bool:
    """Whether the volumes have what is in the ConfigMap."""
    if "config" not in world.volumes:
        return True
    folder = _path(manager, world.pod, "config")
    shown = {entry.name: entry.read_text() for entry in folder.iterdir() if not entry.name.startswith("..")}
    return shown == data and (_path(manager, world.pod, "api") / "deep" / "a").read_text() == data["a"]


# Processes


class Killer:
    """Ends this process before its step of a number, counted from 0."""

    def __init__(self, step: int, tell: Callable[[str], None]) -> None:
        self._left = step
        self._tell = tell
        self._ended = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._ended:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not isinstance(flags, int) or not flags & WRITES:
                return
            self._count(f"open {path}")
            if flags & os.O_CREAT:
                self._count(f"write {path}", partial(os.open, path, flags, 0o600))
        elif event in CHANGES:
            self._count(" ".join([event, *map(str, arguments[:2])]))

    def _count(self, what: str, first: Callable[[], object] = int) -> None:
        if self._left == 0:
            self._ended = True
            first()
            self._tell(f"step {what}")
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def killed_life(world: World, step: int) -> tuple[bool, list[str]]:
    """Live in a fork, which is killed before a step. Whether it was, and what it told: the last is the step."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)

            def tell(text: str) -> None:
                os.write(writing, text.encode() + b"\0")

            sys.addaudithook(Killer(step, tell))
            try:
                live(live_and_die, world, tell)
                status = 0
            except BaseException:  # noqa: BLE001  told to the parent
                tell(traceback.format_exc())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read().decode().split("\0")[:-1]
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or status == 0, f"before step {step}: " + "\n".join(told)
    return killed, told


def live(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """The life of an agent. The order in which its tasks run is always the same."""
    trio._core._run._r = random.Random(0)
    trio.run(work, *arguments)


def kill_everywhere(world: World, steps: Iterator[int]) -> dict[int, str]:
    """What was killed at which step. Raises AssertionError when something was not repaired."""
    seen: dict[int, str] = {}
    for step in steps:
        for repair in (go_on, clean_up):
            killed, told = killed_life(world, step)
            if not killed:
                assert left(world) == []
                return seen
            *phases, seen[step] = told
            try:
                live(repair, world, phases)
            except BaseException as error:
                there = left(world)
                raise AssertionError(f"{repair.__name__} after {step}, {seen[step]}, {phases}: {there}") from error
    return seen


def own_namespace(folder: Path) -> None:
    """Nobody else sees, or keeps, what is mounted from now on."""
    if _libc.unshare(CLONE_NEWNS) or _libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_PRIVATE_EVERYWHERE), None):
        raise OSError(ctypes.get_errno(), "expected root, to have a mount namespace")
    Mounter().tmpfs(folder, size=None, mode=0o755, group=None, noswap=False)
    (folder / "root").mkdir()


def start_driver(folder: Path) -> subprocess.Popen[bytes]:
    """A CSI driver that outlives the agents, and ends with this process."""
    paths = ["--socket", str(folder / "csi.sock"), "--storage", str(folder / "storage")]
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.csi_driver", *paths],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"ready\n"
    return driver


def main(arguments: list[str]) -> None:
    folder, first, stride = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    with contextlib.redirect_stderr(io.StringIO()):
        configure_logging("json", 0)
    trio.from_thread.check_cancelled = lambda: None  # there are no threads
    own_namespace(folder)
    worlds = {name: World(folder, make_pod(name)) for name in arguments[3:]}
    with start_driver(folder) as driver:
        try:
            for world in worlds.values():
                live(live_and_die, world, lambda _: None)  # all modules are there from now on
            gc.freeze()
            gc.disable()  # it would touch, and so copy, the memory that forks share
            seen = {name: kill_everywhere(world, count(first, stride)) for name, world in worlds.items()}
        finally:
            driver.kill()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1:])
