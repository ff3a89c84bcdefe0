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
    return pods_directory(root) / _one_name(uid, "a pod UID")


def volumes_directory(root: Path, uid: str, plugin: str) -> Path:
    """`plugin` with a tilde for the slash: `kubernetes.io~empty-dir`. Raises ValueError as `pod_directory`."""
    return pod_directory(root, uid) / "volumes" / plugin


def volume_directory(root: Path, uid: str, plugin: str, inner_name: str) -> Path:
    """`plugin` as in a specification: `kubernetes.io/secret`. Raises ValueError as `pod_directory`."""
    return volumes_directory(root, uid, folder_of_plugin(plugin)) / _one_name(inner_name, "a volume's name")


def device_link(root: Path, uid: str, plugin: str, inner_name: str) -> Path:
    """The link to a block device for a pod. Raises ValueError as `pod_directory`."""
    folder = pod_directory(root, uid) / "volumeDevices" / folder_of_plugin(plugin)
    return folder / _one_name(inner_name, "a volume's name")


def readiness_directory(root: Path, uid: str, plugin: str, name: str) -> Path:
    """Holds a file `ready` once a volume is set up (kubelet: `volumeutil.SetReady`). Raises ValueError."""
    return pod_directory(root, uid) / "plugins" / folder_of_plugin(plugin) / _one_name(name, "a volume's name")


def subpaths_directory(root: Path, uid: str) -> Path:
    """Bound sub paths: below it one folder for each volume, container and index. Raises ValueError."""
    return pod_directory(root, uid) / "volume-subpaths"


def subpath_target(root: Path, uid: str, inner_name: str, container: str, index: int) -> Path:
    """Where the sub path of a container's volume mount number `index` is bound to. Raises ValueError."""
    folder = subpaths_directory(root, uid) / _one_name(inner_name, "a volume's name")
    return folder / _one_name(container, "a container's name") / str(index)


def plugins_directory(root: Path) -> Path:
    """What belongs to volumes, not to pods: a folder for each plugin."""
    return root / "plugins"


def registration_directory(root: Path) -> Path:
    """Plugins put their sockets here."""
    return root / "plugins_registry"


def folder_of_plugin(plugin: str) -> str:
    """A plugin's name as one folder's name."""
    return plugin.replace("/", "~")


def plugin_of_folder(name: str) -> str:
    """The reverse of `folder_of_plugin`."""
    return name.replace("~", "/")


def _one_name(name: str, what: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"expected {what} that can name a folder, got {name!r}")
    return name
