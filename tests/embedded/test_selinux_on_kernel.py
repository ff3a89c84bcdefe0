"""Containers with SELinux labels, where the kernel has it: Debian's, in a guest (`python -m tests.guest --selinux`).

Debian's policy names types of containers that it does not have: a module has them, and lets containers do what these
tests need. Labels of processes, files and mounts are looked at while what is forbidden is only logged; then it is
forbidden.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from grpclib import GRPCError

from tests.embedded.runtime_node import OWN_PID, running_node
from tests.oci_image import make_root_folder, write_oci_archive
from trikubelet.embedded import selinux
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.embedded.runtime_node import Node

MODULE: Final = Path(__file__).with_name("containers.cil")
ENFORCE: Final = Path("/sys/fs/selinux/enforce")
PROCESS: Final = "system_u:system_r:container_t"
FILE: Final = "system_u:object_r:container_file_t"
PLACES: Final = "/ /dev /dev/pts /dev/shm /dev/mqueue /tmp"
LOOK: Final = ["sh", "-c", f"cat /proc/self/attr/current | tr -d '\\0'; echo; stat -c '%n %C' {PLACES}"]
IMAGE: Final = "docker.io/library/labelled:1"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not (selinux.is_enabled() and not selinux.is_enforcing() and shutil.which("semodule")),
        reason="needs a kernel with SELinux that only logs, and semodule: python -m tests.guest --selinux",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def _policy() -> Iterator[None]:
    subprocess.run(["semodule", "--install", str(MODULE)], check=True)
    yield
    subprocess.run(["semodule", "--remove", MODULE.stem], check=True)


@pytest.fixture
def _forbids() -> Iterator[None]:
    ENFORCE.write_text("1")
    yield
    ENFORCE.write_text("0")


def secured(**options: str) -> v1.LinuxContainerSecurityContext:
    return v1.LinuxContainerSecurityContext(selinux_options=v1.SeLinuxOption(**options))


def label(path: Path) -> str:
    return os.getxattr(path, "security.selinux", follow_symlinks=False).rstrip(b"\0").decode()


def level(node: Node, sandbox: str) -> str:
    return node.cri._inventory.sandbox(sandbox).selinux_level


def assert_labels(text: str, process: str, files: str) -> None:
    lines = text.splitlines()
    assert lines[0] == process
    assert lines[1:] == [f"{path} {files}" for path in PLACES.split()]


async def test_processes_files_and_mounts_have_the_labels_of_their_pod(node: Node) -> None:
    sandbox, other = await node.sandbox("one"), await node.sandbox("two")
    one, two = level(node, sandbox), level(node, other)
    assert one != two
    for pod, own in ((sandbox, one), (other, two)):
        assert_labels((await node.run(pod, LOOK)).out, f"{PROCESS}:{own}", f"{FILE}:{own}")
    container = await node.launch(sandbox, ["sleep", "1000"])
    assert Path(f"/proc/{node.pid(container)}/attr/current").read_text().strip("\0\n") == f"{PROCESS}:{one}"
    assert_labels((await node.exec(container, LOOK)).stdout.decode(), f"{PROCESS}:{one}", f"{FILE}:{one}")


async def test_what_is_asked_for_takes_the_place_of_defaults(node: Node) -> None:
    sandbox = await node.sandbox()
    own = level(node, sandbox)
    look = ["cat", "/proc/self/attr/current"]
    assert (await node.run(sandbox, look, security=secured(level="s0:c7,c9"))).out.strip(
        "\0\n"
    ) == f"{PROCESS}:s0:c7,c9"
    found = (await node.run(sandbox, look, security=secured(type="spc_t"))).out.strip("\0\n")
    assert found == f"system_u:system_r:spc_t:{own}"
    with pytest.raises(GRPCError, match="the policy of this machine knows no label system_u:system_r:nowhere_t"):
        await node.create(sandbox, ["true"], security=secured(type="nowhere_t"))
    with pytest.raises(GRPCError, match="invalid level 'c7'"):
        await node.create(sandbox, ["true"], security=secured(level="c7"))


async def test_a_privileged_container_may_do_everything(node: Node) -> None:
    config = v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name="free", namespace="default", uid="free"),
        log_directory=str(node.logs / "free"),
        linux=v1.LinuxPodSandboxConfig(
            security_context=v1.LinuxSandboxSecurityContext(namespace_options=OWN_PID, privileged=True)
        ),
    )
    sandbox = (await node.cri.run_pod_sandbox(v1.RunPodSandboxRequest(config=config))).pod_sandbox_id
    security = v1.LinuxContainerSecurityContext(privileged=True)
    found = (await node.run(sandbox, ["cat", "/proc/self/attr/current"], security=security)).out
    assert found.strip("\0\n") == "system_u:system_r:spc_t:s0"


async def test_volumes_that_ask_for_it_are_relabelled(node: Node, tmp_path: Path) -> None:
    volume, kept = tmp_path / "volume", tmp_path / "kept"
    for folder in (volume / "a/b", kept):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (volume / "link").symlink_to(kept / "file")
    before = label(kept / "file")
    sandbox = await node.sandbox()
    mounts = [
        v1.Mount(container_path="/volume", host_path=str(volume), selinux_relabel=True),
        v1.Mount(container_path="/kept", host_path=str(kept)),
    ]
    await node.create(sandbox, ["true"], mounts=mounts)
    files = f"{FILE}:{level(node, sandbox)}"
    for path in (volume, volume / "a", volume / "a/b", volume / "a/b/file", volume / "link"):
        assert label(path) == files
    assert label(kept / "file") == before
    with pytest.raises(GRPCError, match="this path of the machine is not relabelled for containers: /etc"):
        await node.create(
            sandbox, ["true"], mounts=[v1.Mount(container_path="/x", host_path="/etc", selinux_relabel=True)]
        )


async def test_levels_outlive_the_agent(tmp_path: Path) -> None:
    root, logs = tmp_path / "runtime", tmp_path / "logs"
    async with running_node(root, logs) as node:
        sandbox = await node.sandbox()
        own = level(node, sandbox)
    async with running_node(root, logs) as node:
        assert level(node, sandbox) == own
        assert json.dumps(own) in (root / "sandboxes" / sandbox / "sandbox.json").read_text()
        found = (await node.run(sandbox, ["cat", "/proc/self/attr/current"])).out
        assert found.strip("\0\n") == f"{PROCESS}:{own}"
        await node.remove_everything()
        assert await node.runtime.shutdown()


@pytest.fixture
async def image(node: Node, tmp_path: Path) -> str:
    rootfs = make_root_folder(tmp_path / "rootfs")
    write_oci_archive(tmp_path / "image.tar", rootfs, IMAGE, {"Cmd": ["sh"]})
    await node.runtime.images.import_archive(tmp_path / "image.tar")
    return IMAGE


async def test_terminals_and_images_as_volumes_have_the_label_of_files(node: Node, image: str) -> None:
    sandbox = await node.sandbox()
    volume = v1.Mount(container_path="/image", image=v1.ImageSpec(image=image), readonly=True)
    command = ["sh", "-c", "stat -c %C /image /image/bin /dev/pts/0"]
    ended = await node.run(sandbox, command, mounts=[volume], tty=True)
    assert ended.out.split() == [f"{FILE}:{level(node, sandbox)}"] * 3


async def test_the_kernel_tells_who_may_start_whom() -> None:
    runtime, container, free = (f"system_u:system_r:{name}_t:s0" for name in ("kernel", "container", "spc"))
    assert selinux._may_become(runtime, container, Path("/"))
    assert not selinux._may_become(container, free, Path("/"))
    assert not selinux._may_become("no label", container, Path("/"))


@pytest.mark.usefixtures("_forbids")
async def test_files_of_others_cannot_be_read_or_written(node: Node, image: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "file").write_text("read\n")
    one, two = await node.sandbox("one"), await node.sandbox("two")
    owner = [v1.Mount(container_path="/first", host_path=str(first), selinux_relabel=True)]
    command = ["sh", "-c", "cat /first/file; echo > /own && echo > /dev/shm/own && echo > /first/new && echo wrote"]
    strict = v1.LinuxContainerSecurityContext(
        no_new_privs=True, seccomp=v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.RuntimeDefault)
    )
    ended = await node.run(one, command, image=image, mounts=owner, security=strict)
    assert (ended.out, ended.err) == ("read\nwrote\n", "")
    mounts = [
        v1.Mount(container_path="/second", host_path=str(second), selinux_relabel=True),
        v1.Mount(container_path="/first", host_path=str(first)),
    ]
    command = ["sh", "-c", "cat /second/file; cat /first/file; echo > /first/other; cat /first/file"]
    ended = await node.run(two, command, image=image, mounts=mounts)
    assert ended.out == "read\n"
    assert ended.err.count("Permission denied") == 3
    assert sorted(path.name for path in first.iterdir()) == ["file", "new"]
    container = await node.launch(one, ["sleep", "1000"], image=image)
    assert (await node.exec(container, ["cat", "/own"])).exit_code == 1  # of another container
    assert (await node.exec(container, ["ls", "/dev/shm"])).stdout == b"own\n"
