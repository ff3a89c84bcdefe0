"""The session keyring of a container is its own: there is no key of the login or unit that the agent was started in.

| hole | here |
|---|---|
| CVE-2014-9529 and others (kernel): errors in keyrings | the kernel's; profiles like `RuntimeDefault` forbid `keyctl` |
| keys of the agent's session are in every container | `test_a_key_of_the_agents_session…` |
| a container finds the keys of another one | `test_a_container_and_its_commands…` |
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import own_machine
from tests.embedded.escapes.attack import needs_isolation, start_fails
from tests.embedded.runtime_node import Node, running_node
from trikubelet.embedded.keeper import linux
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.root

PLANTED = b"planted-by-a-login"
SESSION = -3
ADD_KEY = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
DESCRIBE, SEARCH = 6, 10
SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
# Adds keys if it is told names, then prints its session keyring and which of two keys it finds.
LOOK = f"""
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
name = ctypes.create_string_buffer(200)
libc.syscall({linux._SYS_KEYCTL}, {DESCRIBE}, {SESSION}, name, 200)
for added in sys.argv[1:]:
    libc.syscall({ADD_KEY}, b"user", added.encode(), b"x", 1, {SESSION})
print(name.value.decode().split(";")[4])
for key in ({PLANTED!r}, b"added"):
    print(libc.syscall({linux._SYS_KEYCTL}, {SEARCH}, {SESSION}, b"user", key, 0) > 0)
"""


def add_key(name: bytes) -> bool:
    """To this process's session keyring. False if the user may have no more."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(ADD_KEY, b"user", name, b"secret", ctypes.c_size_t(6), SESSION) > 0)


def look(*added: str) -> Sequence[str]:
    return ["python3", "-c", LOOK, *added]


async def started_in_a_session_with_a_key(folder: Path) -> None:
    linux.join_session_keyring("a-login")
    assert add_key(PLANTED)
    async with running_node(folder / "runtime", folder / "logs") as node:
        try:
            sandbox = await node.sandbox()
            ended = await node.run(sandbox, look())
            assert ended.out.split()[1:] == ["False", "False"], ended
            container = await node.launch(sandbox, ["sleep", "1000"])
            assert (await node.exec(container, look())).stdout.split()[1:] == [b"False", b"False"]
            shared = await node.sandbox("shared", options=SHARED_PID)
            assert (await node.run(shared, look())).out.split()[1:] == ["False", "False"]
        finally:
            await node.remove_everything()
            assert await node.runtime.shutdown()


ON_A_MACHINE = pytest.mark.skipif(
    Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"], reason="needs the machine's root"
)


@ON_A_MACHINE
async def test_a_key_of_the_agents_session_is_in_no_container(tmp_path: Path) -> None:
    await own_machine.run_there(started_in_a_session_with_a_key, tmp_path)


async def test_a_container_and_its_commands_have_a_keyring_and_others_have_another(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox()
    first, second = [await node.launch(sandbox, ["sleep", "1000"]) for _ in range(2)]
    said = [
        (await node.exec(container, look(*keys))).stdout.decode().split()
        for container, keys in (
            (first, ["added"]),
            (first, []),
            (second, []),
        )
    ]
    assert said == [
        [f"_ses.{first}", "False", "True"],
        [f"_ses.{first}", "False", "True"],
        [f"_ses.{second}", "False", "False"],
    ]


def be_another_user(user: int) -> Path:
    """As one who may have 200 keys, in a login with one. Returns a folder of that user."""
    let_others_reach(Path(sys.base_prefix))
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    linux.join_session_keyring("a-login")
    assert add_key(PLANTED)
    return folder


def let_others_reach(path: Path) -> None:
    """In this mount namespace, where it is below a folder of root alone: the interpreter may be."""
    closed = [folder for folder in path.parents if not folder.stat().st_mode & 0o1]
    if closed:
        aside = tempfile.mkdtemp()
        own_machine.run("mount", "--bind", str(path), aside)
        own_machine.run("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(closed[-1]))
        path.mkdir(parents=True)
        own_machine.run("mount", "--move", aside, str(path))
        Path(aside).rmdir()


def use_quota_up() -> None:
    number = 0
    while add_key(b"%d" % number):
        number += 1
    assert 0 < number < 200


@asynccontextmanager
async def node_of_user(folder: Path) -> AsyncIterator[Node]:
    try:
        async with running_node(folder / "runtime", folder / "logs") as node:
            try:
                yield node
            finally:
                await node.remove_everything()
                assert await node.runtime.shutdown()
    finally:
        shutil.rmtree(folder)


async def quota_is_used_up_later(_: Path) -> None:
    async with node_of_user(be_another_user(54_321)) as node:
        sandbox = await node.sandbox()
        use_quota_up()
        ended = await node.run(sandbox, look())
        assert ended.out.split() == ["_ses", "False", "False"], ended


async def quota_is_used_up_before(_: Path) -> None:
    folder = be_another_user(54_322)
    use_quota_up()
    async with node_of_user(folder) as node:
        assert node.lifecycle.abilities is not None
        assert any("session keyring" in problem for problem in node.lifecycle.abilities.problems)
        sandbox = await node.sandbox()
        container = await node.create(sandbox, look())
        await start_fails(node, container, "session keyring: ")


@ON_A_MACHINE
async def test_without_a_keyring_of_its_own_a_container_has_the_keepers_empty_one(tmp_path: Path) -> None:
    await own_machine.run_there(quota_is_used_up_later, tmp_path)


@ON_A_MACHINE
async def test_where_the_keeper_gets_none_either_no_container_starts_with_the_logins(tmp_path: Path) -> None:
    await own_machine.run_there(quota_is_used_up_before, tmp_path)
