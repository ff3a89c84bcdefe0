"""The root folder before anything works in it: it is locked, and made a shared mount.

A CSI driver in a pod mounts volumes in its own mount namespace, at paths below the root folder. They reach the node,
and from there other pods, only over a shared mount, and runtimes refuse `mountPropagation: Bidirectional` on any other.
The kubelet leaves the mount when it ends. So does this agent while its pods run on; one that has ended all of them
leaves nothing.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from trikubelet.linux.shared_folder import MountsInsideError, share_folder, unshare_folder
from trikubelet.node.port_holder import LOCK_FILE
from trikubelet.node.start_checks import in_user_namespace
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

log = get_logger("agent")


class RootFolderInUseError(Exception):
    """Another agent works on this root folder."""


def lock_root_folder(root_dir: Path, stack: ExitStack) -> None:
    """Take the folder for this process until `stack` closes: two agents on one would undo each other's work.

    Raises RootFolderInUseError when another agent has it. The kernel lets go of the lock however we end.
    """
    lock = stack.enter_context((root_dir / LOCK_FILE).open("a+"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise RootFolderInUseError(
            f"an agent (pid {lock.read().strip() or 'unknown'}) already works in {root_dir}: "
            "end it, or give this one another --root-dir"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


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
