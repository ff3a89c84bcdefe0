"""The root folder before anything works in it: it is locked, and made a shared mount.

A CSI driver in a pod mounts volumes in its own mount namespace, at paths below the root folder. They reach the node,
and from there other pods, only over a shared mount, and runtimes refuse `mountPropagation: Bidirectional` on any other.
The kubelet leaves the mount when it ends. So does this agent while its pods run on; one that has ended all of them
leaves nothing.
"""

from __future__ import annotations

import fcntl
import os
import select
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.cgroups.ownership import Ownership, owner_mark
from trikubelet.linux.shared_folder import MountsInsideError, share_folder, unshare_folder
from trikubelet.node.port_holder import LOCK_FILE
from trikubelet.node.start_checks import in_user_namespace
from trikubelet.runtime.logs.paths import pod_uid_of_directory
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.layout import pods_directory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import ExitStack

    from trikubelet.agent.options import AgentOptions

log = get_logger("agent")

LOOKS: Final = 100
"""How often an agent looks again whether a killed one's lock is free."""
PAUSE: Final = 0.02
"""Seconds between two looks."""


class RootFolderInUseError(Exception):
    """Another agent works on this root folder."""


def lock_root_folder(root_dir: Path, stack: ExitStack) -> None:
    """Take the folder for this process until `stack` closes: two agents on one would undo each other's work.

    Raises RootFolderInUseError when another agent has it. The kernel lets go of the lock however we end. One that was
    killed may have begun to start a program, which has the lock too for a moment: that is waited for.
    """
    lock = stack.enter_context((root_dir / LOCK_FILE).open("a+"))
    for looks_left in range(LOOKS, -1, -1):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip()
            if not looks_left or _runs(holder):
                raise RootFolderInUseError(
                    f"an agent (pid {holder or 'unknown'}) already works in {root_dir}: "
                    "end it, or give this one another --root-dir"
                ) from None
            select.select([], [], [], PAUSE)
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def _runs(pid: str) -> bool:
    """Whether a process runs. One that has ended has no program, also where nobody has collected it yet."""
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except (FileNotFoundError, ProcessLookupError):
        return not pid  # an agent that has not written its name yet
    except PermissionError:
        pass  # somebody else's
    return True


def ownership_of(options: AgentOptions, log_folders: Iterable[str], *, reads: bool = True) -> Ownership:
    """How the agent tells its pods from those of others. `log_folders`: names of the log folders that are its own.

    The folders of pods show what an agent without marks has left. `reads`: whether the root folder is on a disk.
    """
    try:
        uids = os.listdir(pods_directory(options.root_dir)) if reads else []  # noqa: PTH208 - names only
    except OSError:
        uids = []  # a folder that is not there yet; of one that cannot be read nothing is taken for this agent's
    return Ownership(
        mark=owner_mark(options.root_dir),
        alone=options.cluster is None,
        earlier=frozenset((*uids, *map(pod_uid_of_directory, log_folders))),
    )


def share_root_folder(root_dir: Path) -> bool:
    """Make the folder a shared mount, where this user may. Returns whether it became a mount."""
    if os.geteuid() != 0 or in_user_namespace():
        return False
    try:
        made = share_folder(root_dir)
    except (OSError, MountsInsideError) as error:
        log.warning("the root folder is no shared mount: pods with mountPropagation may be refused", problem=str(error))
        return False
    if made:
        log.debug("the root folder is a shared mount now", root_dir=str(root_dir))
    return made


def stop_sharing_root_folder(root_dir: Path) -> None:
    """Undo `share_root_folder`, whichever agent did it. What is mounted inside keeps it."""
    if os.geteuid() != 0 or in_user_namespace():
        return
    try:
        unshare_folder(root_dir)
    except OSError as error:
        log.warning("the root folder stays a shared mount", problem=str(error))
