"""System call filters and no_new_privs in real containers: as root, in a user namespace, and without either."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio
from grpclib import GRPCError

from tests.captured_logs import capture_logs
from tests.embedded.confined import PYTHON, probe
from tests.embedded.runtime_node import mounts_with, running_node
from tests.embedded.test_unprivileged import IN_USER_NAMESPACE, WITHOUT_NAMESPACES
from trikubelet.embedded import selinux
from trikubelet.embedded.seccomp.syscalls import X86
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root  # to take privileges away reliably

REFUSED = {"keyctl": 1, "unshare": 1, "mount": 1, "clone": 1, "clone3": 38, "personality": 1, "mkdirat": 14}
OPEN = {"keyctl": 0, "unshare": 0, "mount": 14, "clone": 0, "clone3": 22, "personality": 0, "mkdirat": 14}
NO_SPACE = {"unshare": 28, "clone": 28}
"""What the kernel itself answers where user namespaces are used up."""
MODES = {
    "root": ["sh", "-c", "exec "],
    "user-namespace": [*IN_USER_NAMESPACE, "exec "],
    "plain": [*IN_USER_NAMESPACE, WITHOUT_NAMESPACES],
}
KINDS = v1.SecurityProfileProfileType
DEFAULT = v1.SecurityProfile(profile_type=KINDS.RuntimeDefault)


@pytest.mark.parametrize("mode", MODES)
async def test_containers_and_their_commands_are_confined_as_asked(mode: str, tmp_path: Path) -> None:
    *before, prefix = MODES[mode]
    scenario = shlex.join([sys.executable, "-m", "tests.embedded.confined", str(tmp_path)])
    with trio.fail_after(60):
        result = await trio.run_process(
            [*before, prefix + scenario], capture_stdout=True, stderr=subprocess.DEVNULL, check=False
        )
    line = next(line for line in result.stdout.decode().splitlines() if line.startswith("outcome="))
    found: dict[str, Any] = json.loads(line.removeprefix("outcome="))
    assert found["mode"] == mode
    plain = mode == "plain"
    free = {**OPEN, **(NO_SPACE if plain else {}), "Seccomp": "0"}
    # Without CAP_SYS_ADMIN the kernel takes a filter only together with no_new_privs.
    implied = "1" if plain else "0"
    assert_answers(found["silent"], {**free, "NoNewPrivs": "0"})
    assert_answers(found["unconfined"], {**free, "NoNewPrivs": "0"})
    assert_answers(found["no new privileges"], {**free, "NoNewPrivs": "1"})
    assert_answers(found["default"], {**REFUSED, "Seccomp": "2", "NoNewPrivs": implied})
    assert_answers(found["exec"], {**REFUSED, "Seccomp": "2", "NoNewPrivs": implied})
    assert_answers(found["default, no new privileges"], {**REFUSED, "Seccomp": "2", "NoNewPrivs": "1"})
    assert_answers(found["localhost"], {**free, "mkdirat": 99, "Seccomp": "2", "NoNewPrivs": implied})
    if plain:
        assert found["read-only root"] == ["refused"] * 5 + ["done"] * 5
    assert mounts_with(str(tmp_path)) == []


def assert_answers(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {name: found[name] for name in expected} == expected


async def answers(node: Node, sandbox: str, **security: Any) -> dict[str, Any]:
    ended = await node.run(sandbox, probe(), security=v1.LinuxContainerSecurityContext(**security))
    assert ended.exit_code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


async def test_a_user_without_rights_keeps_none_of_what_loads_the_filter(node: Node) -> None:
    sandbox = await node.sandbox()

    async def status(**security: Any) -> dict[str, str]:
        context = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=65534), seccomp=DEFAULT, **security)
        ended = await node.run(sandbox, ["cat", "/proc/self/status"], security=context)
        return {name: value.strip() for name, _, value in (line.partition(":") for line in ended.out.splitlines())}

    nothing = f"{0:016x}"
    found = await status()
    assert_answers(found, {"Seccomp": "2", "NoNewPrivs": "0", "CapPrm": nothing, "CapInh": nothing, "CapAmb": nothing})
    ambient = v1.Capability(add_ambient_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"])
    found = await status(capabilities=ambient)
    assert found["CapPrm"] == found["CapEff"] == found["CapAmb"] == found["CapBnd"] == f"{1 << 12:016x}"


async def test_capabilities_open_what_belongs_to_them_and_privileged_containers_are_not_filtered(node: Node) -> None:
    sandbox = await node.sandbox()
    admin = v1.Capability(add_capabilities=["SYS_ADMIN"])
    found = await answers(node, sandbox, seccomp=DEFAULT, capabilities=admin)
    assert_answers(found, {**OPEN, "keyctl": 1, "personality": 1, "Seccomp": "2"})
    assert_answers(await answers(node, sandbox, seccomp=DEFAULT, privileged=True), {**OPEN, "Seccomp": "0"})


OLD_CALL = """
import ctypes, mmap, sys
number, argument = map(int, sys.argv[1:])
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
parts = b"\\x53\\xb8", number.to_bytes(4, "little"), b"\\xbb", argument.to_bytes(4, "little"), b"\\xcd\\x80\\x5b\\xc3"
page.write(b"".join(parts))
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""
"""Calls the kernel as a 32-bit program does: push rbx; eax = number; ebx = argument; int 0x80; pop rbx; ret."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="about the ways into an x86-64 kernel")
async def test_programs_of_32_bits_do_not_get_around_the_filter(node: Node, tmp_path: Path) -> None:
    sandbox = await node.sandbox()
    getpid, unshare = X86.numbers["getpid"], X86.numbers["unshare"]

    async def answer(number: int, argument: int, **security: Any) -> str:
        command = [PYTHON, "-c", OLD_CALL, str(number), str(argument)]
        ended = await node.run(sandbox, command, security=v1.LinuxContainerSecurityContext(**security))
        return ended.out.strip() or f"exit code {ended.exit_code}"

    unconfined = await answer(unshare, 0x10000000)
    if unconfined == "exit code 139":
        pytest.skip("this kernel runs no programs of 32 bits")
    assert unconfined == "0"
    assert await answer(getpid, 0, seccomp=DEFAULT) == "1"
    assert await answer(unshare, 0x10000000, seccomp=DEFAULT) == "-1"
    only_64_bits = tmp_path / "64.json"
    only_64_bits.write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    profile = v1.SecurityProfile(profile_type=KINDS.Localhost, localhost_ref=str(only_64_bits))
    assert await answer(getpid, 0, seccomp=profile) == "exit code 159"


async def test_a_profile_needs_to_allow_only_what_the_program_does(node: Node, tmp_path: Path) -> None:
    profile = tmp_path / "strict.json"
    calls = "execve brk arch_prctl access openat read pread64 newfstatat fstat mmap mprotect munmap close exit_group"
    more = "write set_tid_address set_robust_list rseq prlimit64 getrandom futex fadvise64 lseek"
    allowed = [*calls.split(), *more.split()]
    rules = [{"names": allowed, "action": "SCMP_ACT_ALLOW"}]
    strict = v1.SecurityProfile(profile_type=KINDS.Localhost, localhost_ref=str(profile))
    sandbox = await node.sandbox()
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_KILL_PROCESS", "syscalls": rules}))
    security = v1.LinuxContainerSecurityContext(seccomp=strict, run_as_user=v1.Int64Value(value=65534))
    ended = await node.run(sandbox, ["cat", "/etc/os-release"], security=security)
    assert (ended.exit_code, bool(ended.out)) == (0, True)
    # It ends as the profile says, here by SIGSYS.
    assert (await node.run(sandbox, ["mkdir", "/x"], security=security)).exit_code == 128 + 31
    allowed.remove("execve")
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules}))
    with pytest.raises(GRPCError, match=r"exec /usr/bin/cat: operation not permitted"):
        await node.run(sandbox, ["cat"], security=security)


async def test_a_profile_that_cannot_be_read_is_named_before_anything_is_made(node: Node, tmp_path: Path) -> None:
    missing = v1.SecurityProfile(profile_type=KINDS.Localhost, localhost_ref=str(tmp_path / "none.json"))
    security = v1.LinuxContainerSecurityContext(seccomp=missing)
    with pytest.raises(GRPCError, match=r"cannot load seccomp profile .*/none.json: No such file"):
        await node.create(await node.sandbox(), ["true"], security=security)


@pytest.mark.skipif(selinux.is_enabled(), reason="containers have labels on this kernel")
async def test_where_selinux_is_enforcing_the_runtime_says_what_it_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selinux, "is_enforcing", lambda: True)
    with capture_logs() as told:
        async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
            (note,) = [each for each in node.cri.capabilities()["notIsolated"] if "SELinux" in each]
            assert note == "no SELinux labels: SELinux is not enabled on this machine"
            relabelled = v1.Mount(container_path="/mnt", host_path=str(tmp_path), selinux_relabel=True)
            assert (await node.run(await node.sandbox(), ["ls", "/mnt"], mounts=[relabelled])).exit_code == 0
            await node.remove_everything()
            assert await node.runtime.shutdown()
    (line,) = [line for line in told if "SELinux is enforcing" in line["event"]]
    assert line["reason"] == "SELinux is not enabled on this machine"
