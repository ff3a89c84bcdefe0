"""A process on its way into a PID namespace with others has no more rights than its container, at no moment.

| hole | here |
|---|---|
| CVE-2016-9962 (runc, Docker) and its kin: a neighbour with SYS_PTRACE takes over what enters | \
`test_what_is_on_its_way_in_has_no_more_rights_and_files_than_a_container` |
| a filter that is loaded in there needs CAP_SYS_ADMIN in there | `test_a_strict_filter…`, `test_a_filter_that…` |
| procfs that is mounted in there needs it too | `test_an_ephemeral_container_…` |
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.embedded.escapes.attack import needs_isolation, start_fails
from tests.embedded.remote import TTY, executing
from tests.embedded.runtime_node import OWN_PID
from tests.patience import PATIENCE
from trikubelet.embedded.seccomp.early import EARLY_CALLS
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
# What busybox does to start, to look into a file and to sleep.
PROGRAM = (
    "access", "arch_prctl", "clock_nanosleep", "fcntl", "fstat", "getrandom", "getuid", "ioctl", "lseek", "mprotect",
    "nanosleep", "newfstatat", "open", "prctl", "read", "readlink", "readlinkat", "rseq", "sendfile",
    "set_robust_list", "set_tid_address", "setgid", "setuid", "writev",
)  # fmt: skip
STATUS = ["busybox", "grep", "-E", "NoNewPrivs|Seccomp:", "/proc/self/status"]
FREE, DENIED = "NoNewPrivs:\t0\nSeccomp:\t2\n", "NoNewPrivs:\t1\nSeccomp:\t2\n"


def in_namespace_of(container: str) -> v1.NamespaceOption:
    return v1.NamespaceOption(pid=v1.NamespaceMode.TARGET, target_id=container)


def filtered(profile: Path | None, **fields: Any) -> v1.LinuxContainerSecurityContext:
    kinds = v1.SecurityProfileProfileType
    seccomp = v1.SecurityProfile(profile_type=kinds.RuntimeDefault)
    if profile is not None:
        seccomp = v1.SecurityProfile(profile_type=kinds.Localhost, localhost_ref=str(profile))
    return v1.LinuxContainerSecurityContext(seccomp=seccomp, **fields)


def watch(root: Path) -> str:
    """Looks at every process until it is stopped: what one may do that a container may not, and see of the machine."""
    return f"""
import os, signal
rights, files, stopped = 0, False, []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("ready", flush=True)
while not stopped:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            files |= os.path.exists(f"/proc/{{pid}}/root{root}/keeper.sock")
            rights |= int(open(f"/proc/{{pid}}/status").read().split("CapPrm:")[1].split()[0], 16)
        except OSError:
            continue
own = int(open("/proc/self/status").read().split("CapBnd:")[1].split()[0], 16)
print(hex(rights & ~own), files)
"""


@pytest.mark.parametrize("what", ["command", "container", "ephemeral container"])
async def test_what_is_on_its_way_in_has_no_more_rights_and_files_than_a_container(node: Node, what: str) -> None:
    needs_isolation(node)
    few = v1.Capability(drop_capabilities=["ALL"], add_capabilities=["SYS_PTRACE", "DAC_READ_SEARCH"])
    pod = SHARED_PID if what == "container" else OWN_PID
    sandbox = await node.sandbox(options=pod)
    watcher = await node.launch(
        sandbox,
        ["python3", "-c", watch(node.runtime.root)],
        security=filtered(None, capabilities=few, namespace_options=pod),
    )
    await node.wait_for_output(watcher, "ready")
    options = in_namespace_of(watcher) if what == "ephemeral container" else pod
    with trio.move_on_after(1.5):
        while True:
            if what == "command":
                await node.exec(watcher, ["true"])
            else:
                await node.run(sandbox, ["true"], security=filtered(None, capabilities=few, namespace_options=options))
    await node.stop(watcher, int(PATIENCE))
    assert (await node.ended(watcher)).out.splitlines()[1:] == ["0x0 False"]


async def test_a_strict_filter_is_loaded_before_others_see_the_process(node: Node, tmp_path: Path) -> None:
    """One that lets through what is still to be done, no more, and kills for all else."""
    needs_isolation(node)
    rules: list[dict[str, Any]] = [{"names": PROGRAM, "action": "SCMP_ACT_ALLOW"}]
    for name, known in EARLY_CALLS:
        if name not in PROGRAM:
            arguments = [{"index": index, "value": value, "op": "SCMP_CMP_EQ"} for index, value in known.items()]
            rules.append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments})
    profile = tmp_path / "strict.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_KILL_PROCESS", "syscalls": rules}))
    sandbox = await node.sandbox(options=SHARED_PID)
    security = filtered(profile, namespace_options=SHARED_PID)
    assert (await node.run(sandbox, STATUS, security=security)).out == FREE
    container = await node.launch(sandbox, ["busybox", "sleep", "1000"], security=security)
    assert (await node.exec(container, STATUS)).stdout.decode() == FREE
    async with executing(node, container, STATUS, TTY) as client:
        pass
    assert client.out.decode() == FREE.replace("\n", "\r\n")


async def test_a_filter_that_forbids_what_is_still_to_be_done_denies_new_privileges(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    denying = {"names": ["capset"], "action": "SCMP_ACT_KILL_PROCESS"}
    profile = tmp_path / "denying.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [denying]}))
    sandbox = await node.sandbox(options=SHARED_PID)
    shared = await node.run(sandbox, STATUS, security=filtered(profile, namespace_options=SHARED_PID))
    assert shared.out == DENIED
    # Alone in a PID namespace there is nobody to take it over.
    alone = filtered(profile, namespace_options=OWN_PID)
    assert (await node.run(sandbox, STATUS, security=alone)).out == FREE
    container = await node.launch(sandbox, ["sleep", "1000"], security=alone)
    assert (await node.exec(container, STATUS)).stdout.decode() == DENIED


async def test_an_ephemeral_container_sees_the_processes_of_its_target(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox()
    target = await node.launch(sandbox, ["sleep", "1000"])
    look = ["sh", "-c", "cat /proc/1/comm; readlink /proc/self/ns/pid /proc/1/ns/pid | uniq | wc -l"]
    capabilities = v1.Capability(add_capabilities=["SYS_PTRACE"])
    security = v1.LinuxContainerSecurityContext(
        capabilities=capabilities, namespace_options=in_namespace_of(target), masked_paths=["/proc/keys"]
    )
    assert (await node.run(sandbox, look, security=security)).out == "sleep\n1\n"


async def test_an_ephemeral_container_takes_nothing_for_procfs_that_is_not(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    for name in ("1/ns/pid", "self/ns/pid"):
        (tmp_path / "volume" / name).parent.mkdir(parents=True)
        (tmp_path / "volume" / name).touch()
    sandbox = await node.sandbox()
    mounts = [v1.Mount(container_path="/proc", host_path=str(tmp_path / "volume"))]
    target = await node.launch(sandbox, ["sleep", "1000"], mounts=mounts)
    security = v1.LinuxContainerSecurityContext(namespace_options=in_namespace_of(target))
    await start_fails(node, await node.create(sandbox, ["true"], security=security), "its procfs at /proc")
