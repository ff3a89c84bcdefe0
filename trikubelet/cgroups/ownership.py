"""Which agent made a pod's cgroup or sandbox: a mark with the agent's root folder, and the rule that follows from it.

Several agents and kubelets may manage pods on one machine, and only the one that made a pod knows when it is gone. A
cgroup carries the mark as an extended attribute, a sandbox and a container as an annotation, a log folder as a file.

An agent without a cluster owns what carries its own mark, and nothing else. Older versions made pods without marks: the
agent knows these by its root folder. In a cluster, pods without a mark belong to the node's kubelet, whichever program
that is at the time. Nobody owns what carries the mark of another root folder, but the agent with that root folder.

A root folder may move behind a symlink: a mark that leads to the same folder is the same mark.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.digests import sha256
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Collection

USUAL_ROOT_DIR: Final = Path("/var/lib/trikubelet")


@frozen(kw_only=True)
class Ownership:
    """Tells an agent's pods from those of others."""

    mark: str = ""
    """The agent's root folder, without symlinks. Empty: the agent leaves no marks."""
    alone: bool = False
    """True without a cluster: then pods without a mark are not the agent's."""
    earlier: frozenset[str] = frozenset()
    """UIDs of pods that an older version made, as the root folder shows: they may lack the mark."""

    def owns(self, marks: Collection[str], uid: str) -> bool:
        """True if what carries these marks, for the pod with this UID, is the agent's."""
        if any(marks):
            return all(is_same_mark(mark, self.mark) for mark in marks)
        return not self.alone or uid in self.earlier


def owner_mark(root_dir: Path) -> str:
    """Return the mark of the agent with this root folder. Follows symlinks."""
    return str(root_dir.resolve())


def is_same_mark(mark: str, own: str) -> bool:
    """True if a mark is an agent's own, or was before its root folder moved behind a symlink."""
    if mark == own:
        return True
    try:
        return bool(own) and mark.startswith("/") and os.path.realpath(mark) == own
    except ValueError:  # it is no path
        return False


def own_cgroup_root(root_dir: Path) -> str:
    """Return the default cgroup root of an agent without a cluster.

    Each root folder has one of its own, so that two agents share no group, and each finds its pods again. It is named
    after the path that was given, so that it stays the same when the folder moves behind a symlink.
    """
    path = os.path.abspath(root_dir)  # noqa: PTH100 - follows no symlinks
    if path == str(USUAL_ROOT_DIR):
        return "/trikubelet"
    return f"/trikubelet-pods-{sha256(path.encode(errors='surrogateescape')).hexdigest()[:8]}"
