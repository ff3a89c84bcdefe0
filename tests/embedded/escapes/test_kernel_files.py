"""Files of the kernel that a container could change the machine with, and the runtime's own, are out of reach.

| hole | here |
|---|---|
| CVE-2025-52881 (runc), CVE-2025-62596 (youki): what the runtime writes to `/proc` goes to a file of the container's \
choice | nothing is written there after the root has changed; `test_a_volume_in_the_place_of_proc…` |
| CVE-2025-52565 (runc): `/dev/console` or `/dev/pts/N` are links when they are mounted | \
`/dev` is new and nothing is bound there; `test_a_terminal_is_no_link…` |
| CVE-2023-25809 (runc without root), CVE-2022-0492 (kernel): cgroups or their release agent can be written | \
`test_cgroups_and_sysctls_cannot_be_written` |
| CVE-2020-15257 (containerd): the shim's abstract socket can be reached from the machine's network namespace | \
`test_the_keeper_listens_on_no_abstract_socket` |
| CVE-2021-41103, CVE-2024-25621 (containerd): other users of the machine reach containers' files | \
`test_other_users_of_the_machine_do_not_reach_the_runtimes_folder` |
| CVE-2024-45310 (runc), CVE-2019-10152 (podman): files are made on the host through a link exchanged meanwhile | \
mount points are made in the container's own root, `test_masked_paths.py` |
| CVE-2022-23648 (containerd): volumes in an image's configuration are copied from the host | they are not read |
| CVE-2018-15664, CVE-2020-14298 (moby, docker cp), CVE-2023-25153 (containerd): archives | \
`tests/embedded/images/test_unpack.py`, `tests/cli` |
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.embedded.escapes.attack import needs_isolation
from tests.embedded.remote import TTY, executing
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


async def test_a_volume_in_the_place_of_proc_is_written_to_by_nobody(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    volume = tmp_path / "volume"
    for path in ("self/attr/exec", "self/oom_score_adj", "self/fd/0", "self/setgroups", "sys/kernel/core_pattern"):
        (volume / path).parent.mkdir(parents=True, exist_ok=True)
        (volume / path).write_text("as it was")
    mounts = [v1.Mount(container_path="/proc", host_path=str(volume))]
    sandbox = await node.sandbox()
    security = v1.LinuxContainerSecurityContext(no_new_privs=True)
    resources = v1.LinuxContainerResources(oom_score_adj=500)
    container = await node.launch(sandbox, ["sleep", "1000"], mounts=mounts, security=security, resources=resources)
    await node.exec(container, ["true"])
    assert {path.read_text() for path in volume.rglob("*") if path.is_file()} == {"as it was"}
    assert Path(f"/proc/{node.pid(container)}/oom_score_adj").read_text() == "500\n"


async def test_a_terminal_is_no_link_of_the_containers(node: Node) -> None:
    needs_isolation(node)
    container = await node.launch(
        await node.sandbox(), ["sh", "-c", "rm /dev/ptmx; ln -s /proc/sys/kernel/core_pattern /dev/ptmx; sleep 1000"]
    )
    await node.exec(container, ["sh", "-c", "until [ /dev/ptmx -ef /proc/sys/kernel/core_pattern ]; do :; done"])
    async with executing(node, container, ["true"], TTY) as client:
        pass
    assert client.result is not None
    assert client.out == b""
    assert "not the terminal multiplexer" in str(client.result)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/release_agent",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ],
)
async def test_cgroups_and_sysctls_cannot_be_written(node: Node, path: str) -> None:
    needs_isolation(node)
    script = f"(: >> {path}) 2>/dev/null && echo writable; (: > {path}) 2>/dev/null && echo writable; echo tried"
    assert (await node.run(await node.sandbox(), ["sh", "-c", script])).out == "tried\n"


async def test_the_keeper_listens_on_no_abstract_socket(node: Node) -> None:
    keeper = node.keeper_pid()
    inodes = {link.readlink().name for link in Path(f"/proc/{keeper}/fd").iterdir() if link.is_symlink()}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[6]}]" in inodes and len(fields) > 7:
            assert not fields[7].startswith("@"), line


async def test_other_users_of_the_machine_do_not_reach_the_runtimes_folder(node: Node) -> None:
    await node.run(await node.sandbox(), ["true"])
    assert node.runtime.root.stat().st_mode & 0o777 == 0o700
    assert (node.runtime.root / "images").stat().st_mode & 0o777 == 0o700
    assert (node.runtime.root / "keeper.sock").stat().st_mode & 0o777 == 0o600
