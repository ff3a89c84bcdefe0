"""Where things of a pod are below the root folder: the kubelet's layout, so that tools and other agents find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

EMPTY_DIR: Final = "kubernetes.io~empty-dir"
DIRECTORY_MODE: Final = 0o750


def pods_directory(root: Path) -> Path:
    return root / "pods"


def pod_directory(root: Path, uid: str) -> Path:
    """Raises ValueError for a UID that is no name of one folder: a manifest may say anything."""
    if uid in ("", ".", "..") or "/" in uid or "\0" in uid:
        raise ValueError(f"expected a pod UID that can name a folder, got {uid!r}")
    return pods_directory(root) / uid


def volumes_directory(root: Path, uid: str, plugin: str) -> Path:
    """`plugin` with a tilde for the slash: `kubernetes.io~empty-dir`. Raises ValueError as `pod_directory`."""
    return pod_directory(root, uid) / "volumes" / plugin
