"""SELinux labels of containers: what they are made of, and what the loaded policy says to them.

As containerd has them (go-selinux: `label.InitLabels`): the policy's defaults for containers, with what the pod asks
for in their places. Each pod has a level of its own, a pair of categories that no other has, so that what has escaped
from one container can touch nothing of another pod. Files get the level and the user that the process has, never its
role and type.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.linux.selinux import RUNTIME_LABEL, ContainerLabels, Context, LabelError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trikubelet.embedded.keeper_client import KeeperAbilities
    from trikubelet.rpc.cri import v1

CATEGORIES: Final = 1024
_RANDOM: Final = SystemRandom()  # `secrets` would load OpenSSL
PRIVILEGED: Final = "spc_t"
"""The type of a container that the policy lets do everything."""
_NEVER_USED: Final = f"s0:c{CATEGORIES - 2},c{CATEGORIES - 1}"
"""What other runtimes give to the files of privileged containers."""
_CATEGORY: Final = r"c[0-9]{1,4}(\.c[0-9]{1,4})?"
_LEVEL: Final = re.compile(rf"s[0-9](-s[0-9])?(:{_CATEGORY}(,{_CATEGORY})*)?")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""Of a user, role or type. Labels become options of mounts, where a quote or a comma would mean something."""


def check_options(options: v1.SeLinuxOption) -> None:
    """Raises LabelError if no label can be made of them."""
    for what in ("user", "role", "type"):
        if getattr(options, what) and not _NAME.fullmatch(getattr(options, what)):
            raise LabelError(f"invalid {what} {getattr(options, what)!r}")
    if options.level and not _LEVEL.fullmatch(options.level):
        raise LabelError(f"invalid level {options.level!r}: expected one like s0:c1,c2")


def labels(defaults: ContainerLabels, options: v1.SeLinuxOption, level: str) -> tuple[str, str]:
    """Of the process and of its files. `level`: the pod's, for a container that asks for none. Raises LabelError."""
    check_options(options)
    process, files = Context.of(defaults.process), Context.of(defaults.file)
    level = options.level or (level if process.level else "")
    process = attrs.evolve(
        process,
        user=options.user or process.user,
        role=options.role or process.role,
        type=options.type or process.type,
        level=level or process.level,
    )
    return str(process), str(attrs.evolve(files, user=options.user or files.user, level=level or files.level))


def privileged_label(defaults: ContainerLabels) -> str:
    """Raises LabelError."""
    return str(attrs.evolve(Context.of(defaults.process), type=PRIVILEGED))


def level_of(label: str) -> str:
    """Raises LabelError."""
    return Context.of(label).level


def new_level(used: Collection[str], draw: Callable[[int], int] = _RANDOM.randrange) -> str:
    """One that is not among those that are used."""
    while True:
        low, high = sorted((draw(CATEGORIES), draw(CATEGORIES)))
        level = f"s0:c{low},c{high}"
        if low != high and level != _NEVER_USED and level not in used:
            return level


# -- the machine -----------------------------------------------------------------------------------------------------


def is_enforcing(root: Path = Path("/")) -> bool:
    """Whether SELinux decides here what processes may do."""
    return _read(root / "sys/fs/selinux/enforce").startswith("1")


def is_enabled(root: Path = Path("/")) -> bool:
    """Whether the kernel has it, and a policy is loaded."""
    return bool(_read(root / "sys/fs/selinux/enforce")) and _read(root / "proc/self/attr/current") != "kernel"


def why_not(abilities: KeeperAbilities, root: Path = Path("/")) -> str:
    """Why containers get no labels here; empty if they do.

    They get none either where the policy would not let the keeper start them with those: it is no container runtime in
    the policy's eyes then, and labels would only keep every container from starting.
    """
    if not is_enabled(root):
        return "SELinux is not enabled on this machine"
    if abilities.mode != "root" or not abilities.overlay:
        return "labels need a runtime that runs as root and has overlayfs"
    if not abilities.selinux:
        return "the process that keeps the containers was started by an older version"
    defaults = ContainerLabels.read(root)
    if not all(label and is_known(label, root) for label in (defaults.process, defaults.file)):
        return "no policy for containers is loaded (container-selinux)"
    own = _read(root / f"proc/{abilities.pid}/attr/current")
    if is_enforcing(root) and not _may_become(own, defaults.process, root):
        return (
            f"the policy does not let {own} start containers as {defaults.process}: let the agent run as a container "
            f"runtime (systemd: SELinuxContext={RUNTIME_LABEL})"
        )
    return ""


def of_images(root: Path = Path("/")) -> str:
    """The label of the files of images."""
    defaults = ContainerLabels.read(root)
    return defaults.image if defaults.image and is_known(defaults.image, root) else defaults.file


def is_known(label: str, root: Path = Path("/")) -> bool:
    """Whether the loaded policy has such a label."""
    try:
        (root / "sys/fs/selinux/context").write_text(label)
    except OSError:
        return False
    return True


def _may_become(label: str, other: str, root: Path) -> bool:
    """Whether the policy lets a process with one label execute a program that gets the other."""
    folder = root / "sys/fs/selinux"
    number = _read(folder / "class/process/index")
    permission = _read(folder / "class/process/perms/transition")
    try:
        with (folder / "access").open("r+b", buffering=0) as file:
            file.write(f"{label} {other} {number}".encode())
            allowed = int((file.read(100) or b"").split()[0], 16)
        return bool(allowed & 1 << int(permission) - 1)
    except (OSError, ValueError, IndexError):
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip("\0 \n")
    except OSError:
        return ""
