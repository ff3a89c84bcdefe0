"""The program that becomes the container, and what it brings along, are no way out.

| hole | here |
|---|---|
| CVE-2019-5736 (runc, LXC, crun), CVE-2025-24965 (crun): `/proc/self/exe` as program or interpreter, then written | \
`test_the_interpreter…`, `test_a_program_behind_a_magic_link_is_refused` |
| CVE-2024-21626 (runc): descriptors of the host in the container | `test_a_container_has_its_three_streams…` |
| CVE-2019-14271 (docker cp): libraries of the container are loaded by a process of the host | after the fork \
nothing is imported, `test_nothing_of_the_container_is_loaded…` |
| CVE-2019-19921 (runc), CVE-2025-54867 (youki): the working folder or program is a link out | \
`tests/embedded/test_containers.py`, `test_processes_of_the_keeper.py` |
| CVE-2021-43784 (runc): a length in the message to the child overflows | the child is a fork, it is sent no message |
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.embedded.escapes.attack import needs_isolation, start_fails
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

# Becomes the interpreter of the host, keeps hold of its file, and tries to open that for writing when it is not run.
EVIL = """#!/proc/self/exe
import os
program = os.open("/proc/self/exe", os.O_RDONLY)
os.set_inheritable(program, True)
attempt = f"(: >> /proc/self/fd/{program}) 2>/dev/null && echo writable; exec {program}>&-; echo tried"
os.execv("/bin/sh", ["sh", "-c", attempt])
"""


async def test_the_interpreter_of_the_keeper_cannot_be_overwritten(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    (tmp_path / "volume").mkdir()
    evil = tmp_path / "volume" / "evil"
    evil.write_text(EVIL)
    evil.chmod(0o755)
    mounts = [v1.Mount(container_path="/mnt", host_path=str(tmp_path / "volume"))]
    sandbox = await node.sandbox()
    ended = await node.run(sandbox, ["/mnt/evil"], mounts=mounts)
    assert "writable" not in ended.out
    # By exec as well, where the container can exchange any program at any time.
    container = await node.launch(sandbox, ["sleep", "1000"], mounts=mounts)
    assert b"writable" not in (await node.exec(container, ["/mnt/evil"])).stdout
    # A program that runs cannot be written anyway. This one cannot when it has ended either.
    assert os.statvfs(f"/proc/{node.keeper_pid()}/exe").f_flag & os.ST_RDONLY


@pytest.mark.parametrize("program", ["/proc/self/exe", "/proc/self/fd/3", "/proc/self/root/bin/sh", "/proc/1/exe"])
async def test_a_program_behind_a_magic_link_is_refused(node: Node, program: str) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox()
    await start_fails(node, await node.create(sandbox, [program]), "exec: ")


async def test_a_container_has_its_three_streams_and_no_more(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox()
    look = ["sh", "-c", "for fd in $(seq 0 99); do [ ! -L /proc/$$/fd/$fd ] || echo $fd; done"]
    assert (await node.run(sandbox, look)).out.split() == ["0", "1", "2"]
    container = await node.launch(sandbox, ["sleep", "1000"])
    assert (await node.exec(container, look)).stdout.split() == [b"0", b"1", b"2"]


async def test_nothing_of_the_container_is_loaded_by_the_process_that_enters_it(node: Node, tmp_path: Path) -> None:
    """Modules and name services in the places where this interpreter and its C library would look for them."""
    needs_isolation(node)
    planted = tmp_path / "planted.py"
    planted.write_text("open('/loaded', 'w').write('x')")
    mounts = [
        v1.Mount(container_path=f"{folder}/{name}", host_path=str(planted))
        for folder in ("/usr/lib/python3", "/usr/local/lib/python3")
        for name in ("array.py", "encodings.py", "sitecustomize.py")
    ]
    (tmp_path / "nsswitch.conf").write_text("passwd: evil\ngroup: evil\nhosts: evil\n")
    mounts.append(v1.Mount(container_path="/etc/nsswitch.conf", host_path=str(tmp_path / "nsswitch.conf")))
    security = v1.LinuxContainerSecurityContext(run_as_username="root")
    ended = await node.run(
        await node.sandbox(), ["sh", "-c", "ls /loaded; id -u"], mounts=mounts, security=security, env={"LD_DEBUG": ""}
    )
    assert ended.out == "0\n"
