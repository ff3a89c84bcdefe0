"""Processes of the node that get groups of their own."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.captured_logs import capture_logs
from tests.cgroups.fake_v2 import FakeKernel
from tests.cgroups.programs import SLEEP, running
from trikubelet.cgroups.daemons import PERIOD, DaemonCgroups
from trikubelet.cgroups.files_v2 import V2Files
from trikubelet.cgroups.hierarchy import Hierarchies

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.cgroups.files_v1 import V1Files
    from trikubelet.cgroups.names import CgroupName

INIT, KERNEL, SHELL, DAEMON, AGENT = 1, 2, 30, 40, 50


class MovingKernel(FakeKernel):
    """Processes are in one group each; those in `born` appear in the root group when another one is moved."""

    def __init__(self, root: Path, *pids: int) -> None:
        super().__init__(root)
        self.born: list[int] = []
        self.stuck: set[int] = set()
        self._put(str(root), list(pids))

    def write(self, path: str, text: str) -> None:
        if not path.endswith("cgroup.procs"):
            super().write(path, text)
            return
        pid = int(text)
        if pid in self.stuck:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        for folder in self.below(str(self.root)):
            self._put(folder, [one for one in self.processes(folder) if one != pid])
        folder = path.removesuffix("/cgroup.procs")
        self._put(folder, [*self.processes(folder), pid])
        if self.born:
            self._put(str(self.root), [*self.processes(str(self.root)), self.born.pop()])

    def _put(self, folder: str, pids: list[int]) -> None:
        (Path(folder) / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def at(self, name: str) -> list[int]:
        return self.processes(f"{self.root}{name}")


@pytest.fixture
def kernel(tmp_path: Path) -> MovingKernel:
    (tmp_path / "cgroup").mkdir()
    for pid in (INIT, SHELL, DAEMON, AGENT):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "exe").symlink_to("/bin/sh")
    return MovingKernel(tmp_path / "cgroup", INIT, KERNEL, SHELL, DAEMON, AGENT)


def daemons(kernel: MovingKernel, agent: str = "", system: str = "") -> DaemonCgroups:
    driver = V2Files(Hierarchies(2, {}, kernel.root), kernel=kernel)
    return DaemonCgroups(driver, agent=agent, system=system, pid=AGENT, proc=kernel.root.parent / "proc")


async def test_all_processes_without_a_group_get_the_systems(kernel: MovingKernel) -> None:
    await daemons(kernel, system="/system").ensure()
    assert kernel.at("/system") == [SHELL, DAEMON, AGENT]
    assert kernel.at("") == [INIT, KERNEL], "the first one and the kernel's own stay"


async def test_the_agent_has_a_group_of_its_own_beside_it(kernel: MovingKernel) -> None:
    await daemons(kernel, agent="/kube/agent", system="/system").ensure()
    assert kernel.at("/system") == [SHELL, DAEMON]
    assert kernel.at("/kube/agent") == [AGENT]


async def test_nothing_is_written_when_all_is_in_its_place(kernel: MovingKernel) -> None:
    moving = daemons(kernel, agent="/agent", system="/system")
    await moving.ensure()
    before = {name: kernel.at(name) for name in ("", "/agent", "/system")}
    kernel.stuck = {INIT, SHELL, DAEMON, AGENT}
    with capture_logs() as lines:
        await moving.ensure()
    assert lines == []
    assert {name: kernel.at(name) for name in before} == before


async def test_what_is_born_meanwhile_is_moved_too(kernel: MovingKernel) -> None:
    for pid in (60, 61):
        (kernel.root.parent / "proc" / str(pid)).mkdir()
        (kernel.root.parent / "proc" / str(pid) / "exe").symlink_to("/bin/sh")
        kernel.born.append(pid)
    await daemons(kernel, system="/system").ensure()
    assert sorted(kernel.at("/system")) == [SHELL, DAEMON, AGENT, 60, 61]


async def test_what_cannot_be_moved_is_said_and_tried_again(kernel: MovingKernel) -> None:
    kernel.stuck = {DAEMON}
    moving = daemons(kernel, system="/system")
    with capture_logs() as lines:
        await moving.ensure()
    (line,) = lines
    assert (line["event"], line["group"]) == ("failed to ensure state", "/system")
    assert "could not move processes: Invalid argument" in line["error"]
    assert kernel.at("/system") == [SHELL, AGENT], "the others are moved all the same"
    kernel.stuck = set()
    await moving.ensure()
    assert sorted(kernel.at("/system")) == [SHELL, DAEMON, AGENT]


async def test_it_is_looked_at_every_minute(
    kernel: MovingKernel, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    looks: list[float] = []
    moving = daemons(kernel, system="/system")

    async def look() -> None:
        await trio.lowlevel.checkpoint()
        looks.append(trio.current_time())

    monkeypatch.setattr(moving, "ensure", look)
    with trio.move_on_after(2.5 * PERIOD):
        await moving.run()
    assert [round(time - looks[0]) for time in looks] == [0, 60, 120]


def test_the_root_is_no_group_for_the_system(kernel: MovingKernel) -> None:
    with pytest.raises(ValueError, match="cannot be the one of the system"):
        daemons(kernel, system="/")


@pytest.mark.root
async def test_a_process_is_moved_in_every_hierarchy_of_version_1(v1: V1Files, own_root: CgroupName) -> None:
    with running(v1, (), SLEEP) as process:
        path = f"/{own_root[0]}/agent"
        await DaemonCgroups(v1, agent=path, pid=process.pid).ensure()
        places = dict(line.split(":")[1:] for line in Path(f"/proc/{process.pid}/cgroup").read_text().split())
        assert {places[name] for name in ("cpu", "memory", "devices", "cpuset", "name=systemd")} == {path}
        with capture_logs() as lines:
            await DaemonCgroups(v1, agent=path, pid=process.pid).ensure()
        assert lines == []


@pytest.mark.root
async def test_a_process_is_moved_on_version_2(v2: V2Files, own_root: CgroupName) -> None:
    with running(v2, (), SLEEP) as process:
        await DaemonCgroups(v2, agent=f"/{own_root[0]}/agent", pid=process.pid).ensure()
        assert f"0::/{own_root[0]}/agent" in Path(f"/proc/{process.pid}/cgroup").read_text().split()
