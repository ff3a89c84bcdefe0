"""What a run of the tests leaves on the machine is seen, and fails it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests import leftovers
from tests.own_machine import run, run_there
from tests.patience import PATIENCE
from trikubelet.embedded.network.bridge.names import Names
from trikubelet.linux.netlink import nftables
from trikubelet.linux.netlink.client import NETLINK_NETFILTER, NetlinkSocket

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

PROJECT = Path(__file__).parents[1]
TEST = """
from tests.test_leftovers import make

def test_that_leaves_nothing():
    pass

def test_that_leaves_something(tmp_path):
    for each in {left!r}:
        make(each)
"""
BRIDGE, PORT, TABLE = "tkb-left", "tvleft", "tkb-table"


def make(what: str) -> None:
    """Something that a runtime that was killed would leave."""
    if what == TABLE:
        make_table(what)
    else:
        run("ip", "link", "add", what, "type", "bridge")


def make_table(name: str) -> None:
    async def make() -> None:
        channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_NETFILTER)
        with NetlinkSocket(channel) as netfilter:
            await netfilter.transact(nftables.NFNL_SUBSYS_NFTABLES, nftables.replace_table(nftables.INET, name, name))

    trio.run(make)


@pytest.mark.night
@pytest.mark.together("leaving runs")  # in namespaces of their own
async def test_a_run_that_leaves_links_and_tables_fails_and_names_them(tmp_path: Path) -> None:
    await run_there(leaking_runs, tmp_path)


def leaking_runs(folder: Path) -> None:
    for shared in ("/run", "/sys/fs/cgroup"):  # with other runs, which make and remove things there meanwhile
        run("mount", "-t", "tmpfs", "none", shared)
    assert leftovers.tables() == []
    code, told = run_that_leaves(folder, [])
    assert code == 0, told
    assert "left on the machine" not in told
    code, told = run_that_leaves(folder, [BRIDGE, PORT, TABLE])
    assert code == pytest.ExitCode.TESTS_FAILED, told
    assert "2 passed" in told, told
    for line in (f"link {BRIDGE}", f"link {PORT}", f"nf_tables table {TABLE}"):
        assert line in told.splitlines(), told
    code, told = run_that_leaves(folder, [])
    assert code == 0, f"what was there before was not left by it: {told}"


def run_that_leaves(folder: Path, left: list[str]) -> tuple[int, str]:
    """Run the tests above in a process of their own: its exit code, what it says."""
    file = folder / "test_leaving.py"
    file.write_text(TEST.format(left=left))
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(PROJECT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'temp'}", str(file)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout + done.stderr


async def test_a_runtimes_network_is_known_and_removed(tmp_path: Path) -> None:
    await run_there(network_of_a_runtime, tmp_path)


def network_of_a_runtime(folder: Path) -> None:
    names = Names(str(folder))
    for each in (names.bridge, names.veth("a"), "tkb-other"):
        make(each)
    for table in (names.table, "tkb-others"):
        make_table(table)
    links = [f"link {names.bridge}", f"link {names.veth('a')}"]
    assert leftovers.of_runtime(folder) == [*links, f"nf_tables table {names.table}"]
    leftovers.remove_network(folder)
    assert leftovers.of_runtime(folder) == []
    assert leftovers.tables() == ["tkb-others"]
    assert "link tkb-other" in leftovers.outside()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A group such as keepers make."""
    hierarchies = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/freezer")]
    above = next(path for path in hierarchies if (path / "cgroup.procs").exists())
    made = above / f"{leftovers.KEEPERS}left{os.getpid()}"
    made.mkdir()
    yield made
    made.rmdir()


def test_cgroups_are_seen(cgroup: Path) -> None:
    assert f"cgroup {cgroup}" in leftovers.outside()


def test_mounts_and_processes_are_seen(tmp_path: Path) -> None:
    assert leftovers.below(tmp_path) == set()
    command = ["sh", "-c", "echo up; read line", f"{tmp_path}/left"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"up\n"
        assert leftovers.below(tmp_path) == {f"process {left.pid}"}
        left.kill()
