"""What a container sees of the keeper's processes in its PID namespace: nothing that is not its own.

| hole | here |
|---|---|
| CVE-2016-9962, CVE-2022-2989 (runc, podman): a process on its way into a container is looked into | \
all tests, and `test_on_the_way_in.py` |
| CVE-2024-21626 (runc): a descriptor of the host's files stays open, also as working folder | \
`test_no_descriptor…`, `test_a_working_folder…` |
| CVE-2019-5736 (runc): the runtime's own program is overwritten through `/proc/PID/exe` | `test_the_program_of…` |
| a container that may trace takes a socket to the keeper, and sends what that fails on for ever | \
`test_what_a_container_tells…` |
| CVE-2022-29162, CVE-2022-24769 (runc, containerd): capabilities stay inheritable | \
`tests/embedded/test_containers.py` reads all sets |
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.escapes.attack import needs_isolation, start_fails
from tests.embedded.runtime_node import OWN_PID
from tests.examples import IS_NIGHT
from tests.patience import PATIENCE
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
SECRET = "of-another-pod-7d1f"
PRINTED = "said-by-another-pod-93bc"


def spying() -> v1.LinuxContainerSecurityContext:
    return v1.LinuxContainerSecurityContext(
        capabilities=v1.Capability(add_capabilities=["SYS_PTRACE"]), namespace_options=SHARED_PID
    )


# Everything that can be read of every process that is not this one's: descriptors, memory, environment.
LOOK = f"""
import json, os, time

def others():
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())]
    return {{pid: {{"argv": open(f"/proc/{{pid}}/cmdline").read().split("\\0")[:-1]}} for pid in pids}}

def is_there(about):
    return about["argv"][:1] == ["sleep"] or str(about["argv"]).startswith("['trikube-")

end = time.monotonic() + {PATIENCE / 2}
# The reaper of this container may still be on its way.
while not all(map(is_there, (found := others()).values())) and time.monotonic() < end:
    time.sleep(0.02)
for pid, about in found.items():
    for name in ("fd", "maps", "environ", "mem"):
        try:
            if name == "fd":
                about["fd"] = sorted(os.readlink(f"/proc/{{pid}}/fd/{{fd}}") for fd in os.listdir(f"/proc/{{pid}}/fd"))
            elif name == "mem":
                about["secret"] = False
                with open(f"/proc/{{pid}}/mem", "rb", 0) as memory:
                    for line in about["maps"].splitlines():
                        start, end = (int(part, 16) for part in line.split()[0].split("-"))
                        if line.split()[1][0] == "r" and "[v" not in line and end - start < 1 << 26:
                            memory.seek(start)
                            about["secret"] |= "{SECRET[:-4]}".encode() + b"{SECRET[-4:]}" in memory.read(end - start)
            else:
                about[name] = open(f"/proc/{{pid}}/{{name}}").read()
        except OSError as error:
            about[name] = f"{{type(error).__name__}}"
print(json.dumps(found))
"""


async def look(node: Node, sandbox: str) -> dict[str, dict[str, object]]:
    ended = await node.run(sandbox, ["python3", "-c", LOOK], security=spying())
    assert ended.exit_code == 0, ended.err
    found: dict[str, dict[str, object]] = json.loads(ended.out)
    return found


async def test_nothing_of_another_pod_is_in_the_memory_of_the_processes_that_reap(node: Node) -> None:
    needs_isolation(node)
    other = await node.sandbox("other")
    await node.launch(other, ["sleep", "1000"], env={"SECRET": SECRET})
    sandbox = await node.sandbox("pod", options=SHARED_PID)
    security = v1.LinuxContainerSecurityContext(namespace_options=SHARED_PID)
    await node.launch(sandbox, ["sleep", "1000"], security=security)
    found = await look(node, sandbox)
    reaping = {pid: about for pid, about in found.items() if about["argv"] != ["sleep", "1000"]}
    assert len(reaping) == 3, "the first process of the namespace, and a reaper for each container"
    for about in reaping.values():
        assert about["secret"] is not True
        assert "python" not in str(about["maps"])
        assert str(about["argv"]).startswith("['trikube-")


def spy(*secrets: str) -> str:
    """Stops every interpreter that comes into its PID namespace, and searches all that such a one can write to."""
    halves = [(secret[:-4], secret[-4:]) for secret in secrets]
    return f"""
import os, signal
secrets = [(first + last).encode() for first, last in {halves!r}]
looked, found = 0, set()
print("ready", flush=True)
while looked < 20:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid == str(os.getpid()):
            continue
        try:
            os.kill(int(pid), signal.SIGSTOP)
            try:
                maps = open(f"/proc/{{pid}}/maps").read()
                looked += "python" in maps
                with open(f"/proc/{{pid}}/mem", "rb", 0) as memory:
                    for line in maps.splitlines():
                        start, end = (int(part, 16) for part in line.split()[0].split("-"))
                        if line.split()[1][:2] == "rw" and end - start < 1 << 26:
                            memory.seek(start)
                            content = memory.read(end - start)
                            found |= {{secret.decode() for secret in secrets if secret in content}}
            finally:
                os.kill(int(pid), signal.SIGCONT)
        except OSError:
            continue
print(sorted(found), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("what", ["command", "container"])
async def test_nothing_of_another_pod_is_in_the_memory_of_a_process_on_its_way_in(node: Node, what: str) -> None:
    """Neither its environment nor its output, which the keeper knows: processes are not forked from that."""
    needs_isolation(node)
    other = await node.launch(
        await node.sandbox("other"), ["sh", "-c", f"echo {PRINTED}; sleep 1000"], env={"SECRET": SECRET}
    )
    await node.wait_for_output(other, PRINTED)
    options = OWN_PID if what == "command" else SHARED_PID
    sandbox = await node.sandbox("pod", options=options)
    security = v1.LinuxContainerSecurityContext(
        capabilities=v1.Capability(add_capabilities=["SYS_PTRACE"]), namespace_options=options
    )
    watcher = await node.launch(sandbox, ["python3", "-c", spy(SECRET, PRINTED)], security=security)
    await node.wait_for_output(watcher, "ready")
    with trio.fail_after(PATIENCE):
        while len(node.log(watcher)) < 2:
            if what == "command":
                await node.exec(watcher, ["true"])
            else:
                await node.run(sandbox, ["true"], security=security)
    assert [text for _, _, text in node.log(watcher)] == ["ready", "[]"]


async def test_no_descriptor_of_the_machines_is_left_to_the_processes_that_reap(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox("pod", options=SHARED_PID)
    security = v1.LinuxContainerSecurityContext(namespace_options=SHARED_PID)
    await node.launch(sandbox, ["sleep", "1000"], security=security)
    for about in (await look(node, sandbox)).values():
        for target in about["fd"] if isinstance(about["fd"], list) else []:
            assert target.startswith(("pipe:", "socket:", "/dev/null"))


async def test_no_descriptor_of_the_keeper_is_in_a_process_on_its_way_into_the_namespace(node: Node) -> None:
    """Seen by a neighbour that may look into every process, and looks again and again while commands come."""
    needs_isolation(node)
    sandbox = await node.sandbox("pod", options=SHARED_PID)
    watch = """
import os, signal
seen, stopped = set(), []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("ready", flush=True)
while not stopped:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                seen.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
print("\\n".join(sorted(seen)), flush=True)
"""
    watcher = await node.launch(sandbox, ["python3", "-c", watch], security=spying())
    await node.wait_for_output(watcher, "ready")
    with trio.move_on_after(5 if IS_NIGHT else 1.2):
        while True:
            await node.exec(watcher, ["true"])
            await node.run(sandbox, ["true"], security=v1.LinuxContainerSecurityContext(namespace_options=SHARED_PID))
    await node.stop(watcher, int(PATIENCE))
    seen = (await node.ended(watcher)).out.splitlines()[1:]
    root = str(node.runtime.root)
    own = ("/upper", "/work", "/rootfs", "/merged")
    leaked = [line for line in seen if "eventpoll" in line or (root in line and not line.endswith(own))]
    assert leaked == []


@pytest.mark.parametrize("folder", ["/proc/self/fd/3", "/proc/self/fd/7", "/proc/self/cwd", "/proc/thread-self/fd/5"])
async def test_a_working_folder_behind_a_descriptor_is_refused(node: Node, folder: str) -> None:
    needs_isolation(node)
    container = await node.create(await node.sandbox(), ["pwd"], working_dir=folder)
    await start_fails(node, container, "working directory")


async def test_the_program_of_the_processes_that_reap_cannot_be_changed(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox("pod", options=SHARED_PID)
    attack = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    if pid != str(os.getpid()):
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            try:
                print(os.write(os.open(f"/proc/{pid}/exe", flags), b"changed") and "changed")
            except OSError as error:
                print(type(error).__name__)
"""
    ended = await node.run(sandbox, ["python3", "-c", attack], security=spying())
    assert ended.exit_code == 0, ended.err
    assert "changed" not in ended.out
    assert ended.out
    # It still does what it is to do.
    assert (await node.run(sandbox, ["sh", "-c", "exit 3"], security=spying())).exit_code == 3


async def test_what_a_container_tells_in_the_place_of_a_reaper_harms_only_itself(node: Node) -> None:
    """It may take the reaper's socket: the keeper believes a wait status, and passes over all else."""
    needs_isolation(node)
    sandbox = await node.sandbox("pod", options=SHARED_PID)
    attack = """
import ctypes, os, signal
call = ctypes.CDLL(None, use_errno=True).syscall
pidfd_getfd = 438
reapers = []
while not reapers:  # it may still be on its way
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if open(f"/proc/{pid}/cmdline", "rb").read().startswith(b"trikube-reaper"):
            reapers.append(int(pid))
for pid in reapers:
    taken = call(pidfd_getfd, os.pidfd_open(pid), 0, 0)
    for lie in (b"x", b"\\x7f\\x13\\0\\0", b"not a status"):
        print(taken >= 0 and os.write(taken, lie) > 0, flush=True)
    os.kill(pid, signal.SIGKILL)
"""
    ended = await node.run(sandbox, ["python3", "-c", attack], security=spying())
    assert ended.out == "True\nTrue\nTrue\n", ended.err
    assert ended.exit_code == 137
    assert (await node.run(sandbox, ["sh", "-c", "exit 3"], security=spying())).exit_code == 3
    assert "Traceback" not in (node.runtime.root / "keeper.log").read_text()


async def test_a_container_that_cannot_join_the_others_says_why(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox(options=SHARED_PID)
    security = v1.LinuxContainerSecurityContext(run_as_username="nobody-here")
    container = await node.create(sandbox, ["true"], security=security)
    await start_fails(node, container, "unable to find user nobody-here: no matching entries")
    status = await node.status(container)
    assert (status.state, status.exit_code, status.reason) == (v1.ContainerState.CONTAINER_EXITED, 128, "StartError")
    assert status.message.startswith("unable to start container process: unable to find user nobody-here") or (
        status.message.startswith("unable to find user nobody-here")
    )
    assert (await node.run(sandbox, ["sh", "-c", "echo $$; cat /proc/1/comm"])).exit_code == 0
