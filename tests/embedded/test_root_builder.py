"""A container's root while the host goes on mounting: a builder in a process of its own, stopped halfway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trikubelet.embedded.keeper import linux

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
BUILDER = """
import json, os, sys
from trikubelet.embedded.keeper import linux
from trikubelet.embedded.keeper.rootfs import RootBuilder

linux.unshare(linux.CLONE_NEWNS)
spec = json.loads(sys.stdin.readline())
builder = RootBuilder(spec, in_user_namespace=False)
mount_kernel_files = builder._mount_kernel_files

def halfway():
    print("halfway", flush=True)
    assert sys.stdin.readline() == "go on\\n"
    mount_kernel_files()

builder._mount_kernel_files = halfway
builder.build()
targets = [mount["target"] for mount in spec["mounts"]]
print(json.dumps({target: os.listdir(f"{target}/in") for target in targets}), flush=True)
print(json.dumps(sorted(os.listdir("/.."))), flush=True)
assert sys.stdin.readline() == "look again\\n"
print(json.dumps({target: os.listdir(f"{target}/late") for target in targets}))
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder of the host whose mounts reach others."""
    folder = tmp_path / "volume"
    for name in ("in", "late"):
        (folder / name).mkdir(parents=True)
    linux.mount(str(folder), str(folder), None, linux.MS_BIND)
    linux.mount(None, str(folder), None, linux.MS_SHARED)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-R", str(folder)], check=True)


def spec(folder: Path, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    (folder / "layer").mkdir()
    (folder / "container").mkdir()
    return {
        "directory": str(folder / "container"),
        "runtime_root": str(folder),
        "rootfs": {"layers": [str(folder / "layer")], "overlay": True, "readonly": False, "host": False},
        "mounts": mounts,
        "devices": [],
        "privileged": False,
        "masked_paths": [],
        "readonly_paths": [],
        "cgroup_namespace": False,
    }


def mount_with_file(place: Path) -> None:
    linux.mount("inside", str(place), "tmpfs", 0, "size=4k")
    (place / "file").touch()


@pytest.mark.root
def test_what_is_mounted_while_a_container_gets_its_root_is_there_for_whom_it_shall_be(
    tmp_path: Path, shared: Path
) -> None:
    mounts = [
        {"source": str(shared), "target": f"/{kind}", "propagation": kind, "readonly": False}
        for kind in ("private", "rslave", "rshared")
    ]
    command = [sys.executable, "-c", BUILDER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=REPOSITORY) as builder:
        assert builder.stdin is not None
        assert builder.stdout is not None
        builder.stdin.write(json.dumps(spec(tmp_path, mounts)) + "\n")
        assert builder.stdout.readline() == "halfway\n"
        mount_with_file(shared / "in")
        builder.stdin.write("go on\n")
        assert json.loads(builder.stdout.readline()) == {"/private": [], "/rslave": ["file"], "/rshared": ["file"]}
        assert json.loads(builder.stdout.readline()) == ["dev", "private", "proc", "rshared", "rslave", "sys"]
        mount_with_file(shared / "late")
        builder.stdin.write("look again\n")
        assert json.loads(builder.stdout.readline()) == {"/private": [], "/rslave": ["file"], "/rshared": ["file"]}
    assert builder.returncode == 0


GROUPS = """
import json, os, sys
from trikubelet.embedded.keeper import linux
from trikubelet.embedded.keeper.rootfs import RootBuilder

linux.unshare(linux.CLONE_NEWNS)
spec, groups = json.loads(sys.stdin.readline())
RootBuilder(spec, in_user_namespace=False, cgroups=groups).build()
os.chdir("/sys/fs/cgroup")
shown = {name: os.listdir(name) for name in os.listdir(".")}
writable = [name for name in (".", *shown) if not os.statvfs(name).f_flag & os.ST_RDONLY]
print(json.dumps([shown, writable]))
"""


@pytest.mark.root
@pytest.mark.parametrize("privileged", [False, True])
def test_controllers_that_are_mounted_together_are_found_by_each_of_their_names(
    tmp_path: Path, privileged: bool
) -> None:
    groups = {name: tmp_path / "groups" / name for name in ("cpu,cpuacct", "memory")}
    for name, folder in groups.items():
        folder.mkdir(parents=True)
        (folder / f"file of {name}").touch()
    given = ({**spec(tmp_path, []), "privileged": privileged}, {name: str(folder) for name, folder in groups.items()})
    done = subprocess.run(
        [sys.executable, "-c", GROUPS], input=json.dumps(given) + "\n", capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    shown, writable = json.loads(done.stdout)
    both = ["file of cpu,cpuacct"]
    assert shown == {"cpu,cpuacct": both, "cpu": both, "cpuacct": both, "memory": ["file of memory"]}
    assert sorted(writable) == (sorted([".", *shown]) if privileged else [])


LABELLED = """
import json, os, sys
from trikubelet.embedded.keeper import linux
from trikubelet.embedded.keeper.rootfs import RootBuilder

spec = json.loads(sys.stdin.readline())
option = f'context="{spec["selinux"]["files"]}"'
asked, set_labels = [], []
mount, new_mount = linux.mount, linux.new_mount

def recorded(source, target, kind, flags, data=None):
    if kind is not None:
        asked.append([kind, target, option in (data or "")])
    mount(source, target, kind, flags, (data or "").replace("," + option, "").replace(option, "") or None)

def recorded_new(kind, *, options=None, **more):
    label = None if options is None else options.pop("context", None)
    asked.append([kind, "detached", label == spec["selinux"]["files"]])
    return new_mount(kind, options=options, **more)

linux.mount, linux.new_mount = recorded, recorded_new
os.setxattr = lambda path, name, value: set_labels.append([path, name, value.decode()])
linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
shared = os.open("/proc/self/ns/mnt", os.O_RDONLY)
RootBuilder(spec, in_user_namespace=False, shared_memory=shared).build()
print(json.dumps([asked, set_labels]))
"""


@pytest.mark.root
def test_what_is_the_containers_own_is_mounted_with_its_selinux_label(tmp_path: Path) -> None:
    """As far as a kernel without SELinux can tell, which knows no such option: what is asked of it."""
    files = "system_u:object_r:container_file_t:s0:c1,c2"
    image = tmp_path / "image"
    (image / "in").mkdir(parents=True)
    volume = {"target": "/image", "source": str(image), "layers": [str(image)], "sub_path": "in", "readonly": True}
    asked = {
        **spec(tmp_path, [{**volume, "propagation": "image", "recursive_readonly": False}]),
        "selinux": {"process": "", "files": files},
        "masked_paths": ["/proc/scsi", "/proc/acpi", "/sys/firmware"],
    }
    command = [sys.executable, "-c", LABELLED]
    ended = subprocess.run(
        command, input=json.dumps(asked) + "\n", capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    mounts, labels = json.loads(ended.stdout)
    kinds: dict[str, set[bool]] = {}
    for kind, _, is_labelled in mounts:
        kinds.setdefault(kind, set()).add(is_labelled)
    assert kinds == {
        "proc": {False}, "sysfs": {False}, "mqueue": {False},
        "overlay": {True}, "tmpfs": {True}, "devpts": {True},
    }  # fmt: skip
    assert [kind for kind, _, _ in mounts].count("overlay") == 2  # its root, and the image that is a volume
    shm, queues = labels
    assert shm[0].startswith("/proc/self/fd/")
    assert queues[0] == "/dev/mqueue"
    assert {(name, label) for _, name, label in labels} == {("security.selinux", files)}
