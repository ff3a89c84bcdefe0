"""A folder as a shared mount: what is mounted inside it by a container, or by a program in another mount namespace, is
seen by all (kubelet: `MakeRShared`).

Machines with systemd have that for `/`. Elsewhere the folder is mounted on itself. That hides nothing, since both show
the same files; but it would hide what is mounted inside the folder by then, so that comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.linux import mount_calls as calls
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.mounter import Mounter

if TYPE_CHECKING:
    from pathlib import Path


class MountsInsideError(Exception):
    """What is mounted inside the folder already would be hidden."""


def share_folder(folder: Path) -> bool:
    """Make it a shared mount, unless it is on one. Returns whether it is mounted on itself since now.

    A call that was interrupted is finished by the next one. Raises OSError and MountsInsideError.
    """
    at = folder.resolve()
    table = MountTable.read()
    holder = table.holder(at)
    if holder is not None and holder.shared:
        return False
    on_itself = holder is None or holder.point != at
    if on_itself:
        if table.below(at):
            raise MountsInsideError(f"{at} has mounts inside, which a mount on it would hide")
        calls.mount(str(at), str(at), "none", calls.MS_BIND, "", name=at)
    calls.mount("none", str(at), "none", calls.MS_SHARED | calls.MS_REC, "", name=at)
    return on_itself


def unshare_folder(folder: Path) -> bool:
    """Undo `share_folder`, also another process's, unless something is mounted inside. Returns whether it did anything.

    Raises OSError.
    """
    at = folder.resolve()
    table = MountTable.read()
    here, around = table.at(at), table.holder(at.parent)
    if here is None or around is None or at == at.parent:
        return False
    inside = str(at.relative_to(around.point))
    is_itself = (here.device, here.root) == (around.device, f"{around.root.rstrip('/')}/{inside}")
    if not (is_itself and here.shared) or table.below(at) != [here]:
        return False
    Mounter().unmount(at)
    return True
