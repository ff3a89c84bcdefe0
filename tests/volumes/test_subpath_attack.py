"""A container swaps folders, files and links of its volume while the agent binds sub paths of it and others use them.

What must never happen is an access to something outside of the volume: neither what was bound may be it, nor may what
is read or written through that arrive there. At night the attack lasts a minute.
"""

from __future__ import annotations

import itertools
import os
import random
import stat
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from tests.examples import IS_NIGHT
from tests.patience import PATIENCE
from tests.volumes import link_swapper
from tests.volumes.stage import empty_dir
from tests.volumes.stage import pod as pod_with
from trikubelet.agent.plugins import AgentPlugins
from trikubelet.agent.volumes import VolumeParts
from trikubelet.api import Pod
from trikubelet.clock import SystemClock
from trikubelet.linux import safe_path
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.manager import VolumeManager
from trikubelet.volumes.mount_labels import MountLabels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SECONDS: Final = 60.0 if IS_NIGHT else 1.0
"""Of each attack; there are two. One goes on until all of `WANTED` was seen."""
WANTED: Final = frozenset({"bound", "refused", "read", "written"})
CONTAINERS: Final = 3
CANARY: Final = "outside"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@attrs.define
class Battle:
    """`counts`: how often a sub path was bound or refused, and what containers did with what was bound."""

    manager: VolumeManager
    pod: Pod
    volume: Path
    outside: Path
    forbidden: frozenset[tuple[int, int]]
    """Devices and inodes of what is outside."""
    counts: Counter[str] = attrs.field(factory=Counter)

    async def container(self, name: str, deadline: float) -> None:
        """Starts again and again, with another sub path each time."""
        for number in itertools.count():
            if trio.current_time() > (deadline if set(self.counts) >= WANTED else deadline + PATIENCE):
                return
            sub_path = _sub_path(number)
            try:
                bound = await self.manager.bind_subpath(self.pod, name, number % 2, "cache", sub_path)
            except (OSError, ValueError) as error:
                self.counts["refused"] += 1
                self.counts["named"] += CANARY in str(error)
                continue
            self.counts["bound"] += 1
            await trio.to_thread.run_sync(self.use, bound, f"{name}-{number}")

    def use(self, bound: Path, mark: str) -> None:
        """As a process in a container does, for which every link leads to somewhere in the container."""
        info = bound.lstat()
        assert (info.st_dev, info.st_ino) not in self.forbidden, f"{bound} is outside"
        if stat.S_ISREG(info.st_mode):
            self.read_and_write(os.open(bound, os.O_RDWR | os.O_NOFOLLOW), mark)
            return
        top = os.open(bound, _FOLDER)
        try:
            info = os.fstat(top)
            assert (info.st_dev, info.st_ino) not in self.forbidden, f"{bound} is outside"
            for name in os.listdir(top):  # noqa: PTH208  (by descriptor)
                assert name != "canary"
                self.look_into(top, name, mark)
        finally:
            os.close(top)

    def look_into(self, top: int, name: str, mark: str) -> None:
        try:
            found = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=top)
        except OSError:
            self.counts["folder or link"] += 1
            return
        self.read_and_write(found, mark)

    def read_and_write(self, file: int, mark: str) -> None:
        """Closes the file."""
        try:
            info = os.fstat(file)
            assert (info.st_dev, info.st_ino) not in self.forbidden
            text = os.pread(file, 6, 0)
            self.counts["read"] += 1
            assert text == b"inside", text
            os.pwrite(file, mark.encode(), 6)
            self.counts["written"] += 1
        finally:
            os.close(file)


@asynccontextmanager
async def battle(root: Path) -> AsyncIterator[Battle]:
    clock = SystemClock()
    recorder = EventRecorder(clock)
    parts = VolumeParts(
        root / "agent",
        cluster=None,
        plugins=AgentPlugins(root / "agent", random.Random(1)),
        allocatable=dict,
        recorder=recorder,
        clock=clock,
        rng=random.Random(1),
        containers_gone=lambda uid: True,
        usage_period=0.0,
        labels=MountLabels(),
    )
    (root / "agent").mkdir()
    pod = pod_with("web", empty_dir())
    outside = root / "outside"
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(parts.run)
            await parts.manager.prepare(pod)
            volume = parts.manager.host_path(pod, "cache")
            assert volume is not None
            link_swapper.prepare(volume, outside)
            (outside / "canary").write_text(CANARY)
            yield Battle(parts.manager, pod, volume, outside, _identities(outside, *volume.parents))
            await parts.manager.release(pod.metadata.uid)
            nursery.cancel_scope.cancel()
        assert MountTable.read().below(root) == []
        assert list((root / "agent" / "pods").iterdir()) == []
    finally:
        for mount in MountTable.read().below(root):
            Mounter().unmount(mount.point)


@contextmanager
def attacked(battle: Battle) -> Iterator[None]:
    """A process of one of the pod's containers swaps what is in the volume."""
    module = [sys.executable, "-m", "tests.volumes.link_swapper", str(battle.volume), str(battle.outside)]
    with subprocess.Popen(module, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == b"begun\n"
            yield
            assert attacker.poll() is None, "the attacker ended by itself"
        finally:
            attacker.kill()


@pytest.mark.root
@pytest.mark.parametrize("kernel", ["new", "without openat2"])
async def test_no_swap_lets_a_container_read_or_write_outside_of_its_volume(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kernel != "new":
        monkeypatch.setattr(safe_path, "open_beneath", _missing)
    async with battle(tmp_path) as fight:
        before = _fingerprint(fight.outside)
        with attacked(fight):
            deadline = trio.current_time() + SECONDS
            async with trio.open_nursery() as nursery:
                for number in range(CONTAINERS):
                    nursery.start_soon(fight.container, f"container-{number}", deadline)
        assert _fingerprint(fight.outside) == before
    with capsys.disabled():
        if SECONDS > 1:
            print(f"\n{kernel}, {SECONDS:.0f} s: {dict(sorted(fight.counts.items()))}, outside: 0")
    assert fight.counts["named"] == 0, "no message says where a link leads"
    assert set(fight.counts) >= WANTED


def test_the_attack_would_be_noticed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "volume").mkdir()
    link_swapper.prepare(tmp_path / "volume", outside)
    before = _fingerprint(outside)
    fight = Battle(None, None, tmp_path, outside, _identities(outside))  # type: ignore[arg-type]
    for path in (outside, outside / "inner", outside / "inner" / "file"):
        with pytest.raises(AssertionError):
            fight.use(path, "mark")
    (outside / "inner" / "made").mkdir()
    assert _fingerprint(outside) != before


def _sub_path(number: int) -> str:
    """What is there, what is a link now and then, and what is to be made."""
    choices = (
        "door/inner",
        "door/inner/file",
        "swapped-file",
        "maze/one/two/up/door/inner/file",
        "maze/one/two/up",
        "new/deep",
        f"door/made-{number % 64}",
        f"door/inner/made-{number % 64}/deep",
    )
    return choices[number % len(choices)]


def _identities(folder: Path, *others: Path) -> frozenset[tuple[int, int]]:
    infos = [path.lstat() for path in (folder, *folder.rglob("*"), *others)]
    return frozenset((info.st_dev, info.st_ino) for info in infos)


def _fingerprint(folder: Path) -> list[tuple[object, ...]]:
    """Changes with whatever is made, written or given away there. (A bind of it would change nothing.)"""
    found: list[tuple[object, ...]] = []
    for path in (folder, *sorted(folder.rglob("*"))):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        owner = (info.st_mode, info.st_uid, info.st_gid)
        found.append((path, info.st_ino, *owner, info.st_size, info.st_mtime_ns, info.st_ctime_ns, content))
    return found


def _missing(folder: int, path: str, flags: int) -> int:
    raise OSError(38, "missing", path)
