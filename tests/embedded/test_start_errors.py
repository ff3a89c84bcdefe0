"""What is said of a container that cannot start: what was expected, what came, and where."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from grpclib import GRPCError

from tests.embedded.images.archives import Entry, directory, layer, oci_archive
from tests.oci_image import OciImage, make_root_folder
from trikubelet.embedded.keeper.container import Container
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

ENTRIES = (
    Entry("wrong", b"#!/absent/interpreter\n", mode=0o755),
    Entry("text", b"hello\n", mode=0o755),
    Entry("no-exec", b"x"),
    Entry("file", b"x"),
    Entry("loop", link="loop"),
    directory("folder"),
)
ID = v1.Int64Value
Limits = v1.LinuxContainerResources
Security = v1.LinuxContainerSecurityContext


@pytest.fixture
async def image(node: Node, tmp_path: Path) -> str:
    base = OciImage.from_folder(make_root_folder(tmp_path / "busybox"), {}).layer
    await node.runtime.images.import_archive(oci_archive(tmp_path / "image.tar", [base, layer(*ENTRIES)], "app:1"))
    return "app:1"


def mount(source: Path, target: str, *, readonly: bool = False) -> v1.Mount:
    return v1.Mount(host_path=str(source), container_path=target, readonly=readonly)


async def said_of(node: Node, image: str, **fields: Any) -> str:
    command, sandbox = fields.pop("command", ["true"]), await node.sandbox(f"pod-{node._count}")
    with pytest.raises(GRPCError) as caught:
        await node.launch(sandbox, command, image=image, **fields)
    text = str(caught.value.message)
    assert "Errno" not in text
    return text.removeprefix("unable to start container process: ")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"command": ["absent"]}, 'exec: "absent": executable file not found in $PATH'),
        ({"command": ["/absent"]}, 'exec: "/absent": stat /absent: no such file or directory'),
        ({"command": ["/no-exec"]}, 'exec: "/no-exec": permission denied'),
        (
            {"command": ["/wrong"]},
            "exec /wrong: no such file or directory: the file is there, but the interpreter that its first line names, "
            "or its loader, is not",
        ),
        (
            {"command": ["/text"]},
            "exec /text: exec format error: expected a program for this machine, or a script whose first line begins "
            "with #!",
        ),
        (
            {"command": ["true", "x" * 140_000]},
            "exec /bin/true: argument list too long: an argument or variable is longer than 128 KiB, or all together "
            "are longer than 2 MiB",
        ),
        (
            {"security": Security(run_as_user=ID(value=1 << 33))},
            f"cannot run as user {1 << 33}: expected an id from 0 to 2147483647",
        ),
        (
            {"security": Security(run_as_user=ID(value=1), supplemental_groups=[-7])},
            "cannot run as group -7: expected an id from 0 to 2147483647",
        ),
        ({"working_dir": "/file"}, 'working directory "/file": not a directory'),
        ({"working_dir": "/loop"}, 'working directory "/loop": too many levels of symbolic links'),
    ],
)
async def test_a_program_that_cannot_run_is_named(node: Node, image: str, fields: dict[str, Any], text: str) -> None:
    assert await said_of(node, image, **fields) == text


async def test_a_mount_that_cannot_be_is_named(node: Node, image: str, tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    place = "root filesystem: cannot open or make"
    cases: list[tuple[list[v1.Mount], str]] = [
        (
            [mount(file, "/folder")],
            "root filesystem: cannot mount a file at /folder: the container has a folder there; mount a folder, or a "
            "file at another path",
        ),
        (
            [mount(folder, "/file")],
            "root filesystem: cannot mount a folder at /file: the container has a file there; mount a file, or a "
            "folder at another path",
        ),
        (
            [mount(folder, "/file/x")],
            f"{place} /file/x in the container: a part of this path is a file in the container",
        ),
        ([mount(folder, "/loop")], f"{place} /loop in the container: Too many levels of symbolic links"),
        (
            [mount(folder, "/m", readonly=True), mount(file, "/m/x")],
            f"{place} /m/x in the container: it is missing, and its folder is read-only",
        ),
        ([mount(file / "x", "/m")], f"root filesystem: Not a directory: {file}/x"),
    ]
    for mounts, text in cases:
        assert await said_of(node, image, mounts=mounts) == text


async def test_a_device_that_is_not_there_is_named(node: Node, image: str) -> None:
    device = v1.Device(host_path="/dev/absent", container_path="/dev/mine", permissions="rw")
    sandbox = await node.sandbox()
    with pytest.raises(GRPCError) as caught:
        await node.create(sandbox, ["true"], image=image, devices=[device])
    assert caught.value.message == "device /dev/absent: expected a device of this machine, there is none"


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(cpu_quota=1, cpu_period=100_000), "the kernel refuses '1' in "),
        (Limits(cpuset_cpus="nonsense"), "the kernel refuses 'nonsense' in "),
        (Limits(memory_limit_in_bytes=-5), "the kernel refuses '-5' in "),
    ],
)
async def test_a_limit_that_the_kernel_refuses_is_named(node: Node, image: str, limits: Limits, text: str) -> None:
    if not node.runtime.capabilities()["limits"]:
        pytest.skip("needs cgroups that limit")
    assert (await said_of(node, image, resources=limits)).startswith(text)


@pytest.mark.parametrize(
    ("sysctl", "value", "text"),
    [
        ("kernel.shmmax", "abc", "sysctl kernel.shmmax: the kernel refuses 'abc' in /proc/sys/kernel/shmmax: Invalid"),
        ("kernel.shm_absent", "1", "sysctl kernel.shm_absent: expected one that this kernel has, for such a pod"),
    ],
)
async def test_a_sysctl_that_the_kernel_refuses_is_named(node: Node, sysctl: str, value: str, text: str) -> None:
    with pytest.raises(GRPCError) as caught:
        await node.sandbox(sysctls={sysctl: value})
    assert str(caught.value.message).startswith(f"namespaces of the pod: {text}")


@pytest.mark.parametrize(
    ("resources", "limit"),
    [({"memory_limit_in_bytes": 1}, "the memory limit (1 bytes) or its pod's"), ({}, "the memory limit of its pod")],
)
def test_a_limit_that_leaves_no_room_for_a_process_is_named(resources: dict[str, int], limit: str) -> None:
    """The kernel has no memory for the cgroup then: seen on v1 with a pod's limit of one byte."""
    container: Any = SimpleNamespace(spec={"resources": resources})
    error = OSError(errno.ENOMEM, "Cannot allocate memory", "/sys/fs/cgroup/memory/x")
    assert str(Container._start_error(container, error)) == (
        f"no memory to begin with: {limit} leaves no room for a process; raise it: "
        "Cannot allocate memory: /sys/fs/cgroup/memory/x"
    )
