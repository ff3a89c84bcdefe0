"""What the machine has to be like, on folders with the kernel's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests.captured_logs import capture_logs
from tests.node.oom.test_watcher import StoppedClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.node.start_checks import (
    KERNEL_SETTINGS,
    StartCheckError,
    check_machine,
    kernel_settings,
    report_swapped_volumes,
    set_kernel,
)
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from pathlib import Path

HEADER: Final = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
SWAP: Final = HEADER + "/dev/sda2                               partition\t16777212\t0\t\t-2\n"
PLAIN: Final = KubeletConfiguration(fail_swap_on=False)
PROTECTING: Final = attrs.evolve(PLAIN, protect_kernel_defaults=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine that is set as a node should be, without swap."""
    for name, value in KERNEL_SETTINGS.items():
        put(tmp_path, f"proc/sys/{name.replace('.', '/')}", f"{value}\n")
    put(tmp_path, "proc/swaps", HEADER)
    put(tmp_path, "proc/self/uid_map", "         0          0 4294967295\n")
    return tmp_path


def put(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def settings(root: Path) -> dict[str, int | None]:
    return {setting.name: setting.found for setting in kernel_settings(root)}


def test_the_kernel_is_set_as_a_kubelet_sets_it(root: Path) -> None:
    for name in KERNEL_SETTINGS:
        put(root, f"proc/sys/{name.replace('.', '/')}", "7\n")
    set_kernel(PLAIN, root)
    assert settings(root) == {
        "vm.overcommit_memory": 1,
        "vm.panic_on_oom": 0,
        "kernel.panic": 10,
        "kernel.panic_on_oops": 1,
        "kernel.keys.root_maxkeys": 1000000,
        "kernel.keys.root_maxbytes": 25000000,
    }


def test_settings_that_are_right_are_left_alone(root: Path) -> None:
    set_kernel(PLAIN, root)
    assert (root / "proc/sys/kernel/panic").read_text() == "10\n"


def test_protected_settings_are_not_written_and_keep_the_agent_from_starting(root: Path) -> None:
    put(root, "proc/sys/kernel/panic", "0\n")
    (root / "proc/sys/vm/panic_on_oom").unlink()
    with pytest.raises(StartCheckError) as refused:
        check_machine(PROTECTING, root)
    set_kernel(PROTECTING, root)
    assert settings(root)["kernel.panic"] == 0
    missing, wrong = (
        "cannot read vm.panic_on_oom: ",
        "invalid kernel flag: kernel.panic, expected value: 10, actual value: 0",
    )
    assert str(refused.value).startswith(missing)
    assert f", {wrong}: run `sysctl -w vm.panic_on_oom=0 kernel.panic=10`" in str(refused.value)


def test_protected_settings_that_are_right_are_fine(root: Path) -> None:
    check_machine(PROTECTING, root)


@pytest.mark.parametrize(("users", "level"), [("0 0 4294967295", "warning"), ("0 100000 65536", "info")])
def test_what_cannot_be_written_is_said_once_and_in_a_user_namespace_only_in_passing(
    root: Path, users: str, level: str
) -> None:
    put(root, "proc/self/uid_map", users)
    for name in ("panic", "panic_on_oops"):
        (root / "proc/sys/kernel" / name).unlink()
        (root / "proc/sys/kernel" / name).mkdir()
    with capture_logs() as said:
        set_kernel(PLAIN, root)
    (line,) = said
    assert (line["log_level"], line["settings"].keys()) == (level, {"kernel.panic", "kernel.panic_on_oops"})


def test_swap_keeps_the_agent_from_starting_unless_it_may_be_on(root: Path) -> None:
    check_machine(KubeletConfiguration(), root)
    put(root, "proc/swaps", SWAP)
    with pytest.raises(StartCheckError) as refused:
        check_machine(KubeletConfiguration(), root)
    assert str(refused.value).startswith(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
    )
    assert "/dev/sda2" in str(refused.value)
    check_machine(PLAIN, root)


def test_a_kernel_without_swap_has_none_on(root: Path) -> None:
    (root / "proc/swaps").unlink()
    check_machine(KubeletConfiguration(), root)
    (root / "proc/swaps").mkdir()
    with pytest.raises(StartCheckError, match="failed to determine if swap is on"):
        check_machine(KubeletConfiguration(), root)


@pytest.mark.parametrize(
    ("swap", "kernel", "users", "told"),
    [
        (1, (6, 3), "0 0 4294967295", True),
        (1, (6, 4), "0 0 4294967295", False),
        (1, (6, 4), "0 100000 65536", True),
        (0, (5, 4), "0 0 4294967295", False),
    ],
)
def test_volumes_in_memory_that_may_be_swapped_are_told(
    root: Path, swap: int, kernel: tuple[int, int], users: str, told: bool
) -> None:
    put(root, "proc/self/uid_map", users)
    recorder = EventRecorder(StoppedClock())
    report_swapped_volumes(recorder, MachineFacts(1, swap_capacity=swap, kernel=kernel), root)
    assert [event.reason for event in recorder.node_events()] == ["PossibleMemoryBackedVolumesOnDisk"] * told
