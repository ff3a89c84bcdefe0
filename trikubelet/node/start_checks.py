"""What the machine has to be like before an agent starts: kernel settings and swap.

As the kubelet (`setupKernelTunables`, `NewContainerManager`): the kernel's settings that a node of Kubernetes relies on
are written, or with `protectKernelDefaults` only looked at, and then a difference keeps the agent from starting. So
does swap that is on, unless `failSwapOn` is false. Where the kubelet would not start since it may not write a setting,
this agent says so and starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.linux.machine_facts import MachineFacts
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("node")

KERNEL_SETTINGS: Final = {
    "vm.overcommit_memory": 1,
    "vm.panic_on_oom": 0,
    "kernel.panic": 10,
    "kernel.panic_on_oops": 1,
    "kernel.keys.root_maxkeys": 1_000_000,
    "kernel.keys.root_maxbytes": 25_000_000,
}
"""Memory is promised freely, a lack of it kills a process and not the machine, a kernel that panics boots again after
ten seconds, and there are keys for as many containers as a machine can hold."""

SWAP_REFUSED: Final = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
SWAPPED_TMPFS_EVENT: Final = "PossibleMemoryBackedVolumesOnDisk"
SWAPPED_TMPFS: Final = (
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) "
    "might be swapped to disk and should no longer be considered secure."
)
_NOSWAP_SINCE: Final = (6, 4)
_ALL_USERS: Final = (0, 0, 2**32 - 1)


class StartCheckError(Exception):
    """The machine is not one that the configuration allows to start on. The text says why, and what to do."""


@frozen
class KernelSetting:
    """One of `KERNEL_SETTINGS` as it was found."""

    name: str
    expected: int
    found: int | None
    """None: it cannot be read."""
    problem: str = ""
    """Why not."""

    @property
    def right(self) -> bool:
        return self.found == self.expected


def check_machine(configuration: KubeletConfiguration, root: Path = Path("/")) -> None:
    """Changes nothing. Files are those below `root`; raises StartCheckError."""
    if configuration.fail_swap_on and (on := swaps(root)):
        raise StartCheckError(f"{SWAP_REFUSED} (failSwapOn in the configuration file). On are: {', '.join(on)}")
    if configuration.protect_kernel_defaults:
        _require_settings(root)


def set_kernel(configuration: KubeletConfiguration, root: Path = Path("/")) -> None:
    """Set the kernel, unless its settings are protected. What may not be written is said, once for all."""
    if configuration.protect_kernel_defaults:
        return
    left: dict[str, str] = {}
    for setting in kernel_settings(root):
        if setting.right:
            continue
        problem = setting.problem if setting.found is None else _write(root, setting)
        if problem:
            left[setting.name] = problem
    if left:
        emit = log.info if in_user_namespace(root) else log.warning
        emit("kernel settings that a node of Kubernetes relies on cannot be set", settings=left)


def kernel_settings(root: Path = Path("/")) -> list[KernelSetting]:
    """What the kernel is set to, in the order of `KERNEL_SETTINGS`."""
    return [_read(root, name, expected) for name, expected in KERNEL_SETTINGS.items()]


def swaps(root: Path = Path("/")) -> list[str]:
    """Names of what the machine swaps to; empty where the kernel has no swap. Raises StartCheckError."""
    try:
        lines = (root / "proc/swaps").read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StartCheckError(f"failed to determine if swap is on: {error}") from error
    return [line.split()[0] for line in lines[1:] if line.strip()]


def report_swapped_volumes(recorder: EventRecorder, machine: MachineFacts, root: Path = Path("/")) -> None:
    """An event, where volumes in memory may end up on a disk: swap is on, and no tmpfs can be kept out of it.

    (The kubelet tries a mount too, for older kernels that were given the option.)
    """
    if machine.swap_capacity and (machine.kernel < _NOSWAP_SINCE or in_user_namespace(root)):
        recorder.node_event(EventType.WARNING, SWAPPED_TMPFS_EVENT, SWAPPED_TMPFS)


def in_user_namespace(root: Path = Path("/")) -> bool:
    """Whether this process's users are not the machine's."""
    try:
        first = (root / "proc/self/uid_map").read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return False
    return tuple(map(int, first)) != _ALL_USERS


def _require_settings(root: Path) -> None:
    wrong = [setting for setting in kernel_settings(root) if not setting.right]
    if not wrong:
        return
    found = ", ".join(
        f"cannot read {setting.name}: {setting.problem}"
        if setting.found is None
        else f"invalid kernel flag: {setting.name}, expected value: {setting.expected}, actual value: {setting.found}"
        for setting in wrong
    )
    cure = " ".join(f"{setting.name}={setting.expected}" for setting in wrong)
    raise StartCheckError(f"{found}: run `sysctl -w {cure}`, or set protectKernelDefaults to false")


def _write(root: Path, setting: KernelSetting) -> str:
    """Why it could not be written; empty when it was."""
    try:
        _path(root, setting.name).write_text(str(setting.expected))
    except OSError as error:
        return f"is {setting.found} and should be {setting.expected}: {error.strerror}"
    log.info("kernel setting changed", name=setting.name, before=setting.found, now=setting.expected)
    return ""


def _read(root: Path, name: str, expected: int) -> KernelSetting:
    try:
        return KernelSetting(name, expected, int(_path(root, name).read_text()))
    except (OSError, ValueError) as error:
        return KernelSetting(name, expected, None, str(error))


def _path(root: Path, name: str) -> Path:
    return root / "proc/sys" / name.replace(".", "/")
