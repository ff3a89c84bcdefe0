"""Facts of a machine, from files below a root of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from trikubelet.linux.machine import Machine, go_architecture, processors_in

FILES = {
    "proc/meminfo": "MemTotal:       16384000 kB\nMemFree:         1000 kB\nSwapTotal:       2048 kB\n",
    "proc/cpuinfo": "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\nmodel\t: x\n",
    "proc/sys/kernel/random/boot_id": "1b3\n",
    "proc/sys/kernel/osrelease": "6.1.0-13-amd64\n",
    "sys/devices/system/cpu/online": "0-3,6\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
    "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
    "sys/class/dmi/id/product_uuid": "abc\n",
    "etc/machine-id": "123\n",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
}


def machine_with(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Machine.read(root, root_dir=root)


def test_every_fact_is_read(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, FILES)
    assert (machine.cpus, machine.memory, machine.swap) == (5, 16384000 * 1024, 2048 * 1024)
    assert machine.huge_pages == {2 * 2**20: 512, 2**30: 0}
    assert (machine.machine_id, machine.system_uuid, machine.boot_id) == ("123", "abc", "1b3")
    assert (machine.kernel_version, machine.os_image) == ("6.1.0-13-amd64", "Debian GNU/Linux 12 (bookworm)")
    assert machine.storage is not None
    assert machine.storage > 0


def test_a_machine_that_says_little_has_empty_names(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, {name: FILES[name] for name in ("proc/meminfo", "proc/cpuinfo")})
    assert (machine.cpus, machine.machine_id, machine.system_uuid, machine.os_image) == (2, "", "", "Linux")


def test_other_files_tell_the_same_names(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": FILES["proc/meminfo"],
        "var/lib/dbus/machine-id": "dbus\n",
        "proc/device-tree/vm,uuid": "tree\0",
        "usr/lib/os-release": "PRETTY_NAME=Small\n",
    }
    machine = machine_with(tmp_path, files)
    assert (machine.machine_id, machine.system_uuid, machine.os_image) == ("dbus", "tree", "Small")


def test_without_memory_there_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="MemTotal"):
        machine_with(tmp_path, {"proc/meminfo": "nonsense\n"})


def test_this_machine_can_be_read() -> None:
    machine = Machine.read(root_dir=Path("/"))
    assert machine.cpus > 0
    assert machine.memory > 2**20
    assert machine.kernel_version != ""


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-3,6", 5), ("0,2-3,2", 3), ("", 0)])
def test_lists_of_processors_are_counted(text: str, count: int) -> None:
    assert processors_in(text) == count


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "0-", "0-99999999999"])
def test_what_is_no_list_of_processors_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f'such as "0-3,6", got "{text}"'):
        processors_in(text)


@pytest.mark.parametrize(("kernel", "go"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("s390x", "s390x")])
def test_architectures_have_their_go_names(kernel: str, go: str) -> None:
    assert go_architecture(kernel) == go
