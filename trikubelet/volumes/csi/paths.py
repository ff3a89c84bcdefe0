"""Where things of CSI volumes are below the root folder: the kubelet's layout.

    pods/<uid>/volumes/kubernetes.io~csi/<name>/mount           published for a pod; the driver makes and removes it
    pods/<uid>/volumes/kubernetes.io~csi/<name>/vol_data.json
    plugins/kubernetes.io/csi/<driver>/<hash>/globalmount       staged
    plugins/kubernetes.io/csi/<driver>/<hash>/vol_data.json

and for block devices, below plugins/kubernetes.io/csi/volumeDevices,

    staging/<pv>                                                staged
    publish/<pv>/<uid>                                          published for a pod; made and removed by the driver
    <pv>/dev/<uid>                                              the same, bound by us: it stays when the driver is gone
    <pv>/data/vol_data.json

with a link in pods/<uid>/volumeDevices/kubernetes.io~csi/<pv>.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from trikubelet.formats.values import frozen
from trikubelet.volumes.layout import device_link, plugins_directory, pods_directory, volume_directory

PLUGIN: Final = "kubernetes.io/csi"
MOUNT: Final = "mount"
GLOBAL_MOUNT: Final = "globalmount"
VOL_DATA: Final = "vol_data.json"


def plugin_directory(root: Path) -> Path:
    return plugins_directory(root) / PLUGIN


def target(root: Path, uid: str, inner_name: str) -> Path:
    """Where a volume is published for a pod; vol_data.json is beside it. Raises ValueError."""
    return volume_directory(root, uid, PLUGIN, inner_name) / MOUNT


def staging(root: Path, driver: str, handle: str) -> Path:
    """Where a volume is staged; vol_data.json is beside it. Raises ValueError (kubelet: `makeDeviceMountPath`)."""
    digest = hashlib.sha256(handle.encode()).hexdigest()
    return plugin_directory(root) / _one_name(driver) / digest / GLOBAL_MOUNT


def uid_of(root: Path, below_pod: Path) -> str:
    """The UID of the pod whose folder a path is in."""
    return below_pod.relative_to(pods_directory(root)).parts[0]


@frozen
class BlockPaths:
    """Of a block volume of one pod."""

    staging: Path
    publish: Path
    mapped: Path
    data: Path
    """The folder of vol_data.json, one for all pods."""
    link: Path

    @classmethod
    def of(cls, root: Path, uid: str, name: str) -> BlockPaths:
        """`name` is the persistent volume's. Raises ValueError."""
        link = device_link(root, uid, PLUGIN, name)
        devices = devices_directory(root)
        own = devices / name
        return cls(devices / "staging" / name, devices / "publish" / name / uid, own / "dev" / uid, own / "data", link)


def devices_directory(root: Path) -> Path:
    return plugin_directory(root) / "volumeDevices"


def _one_name(driver: str) -> str:
    if driver in ("", ".", "..", "volumeDevices") or "/" in driver or "\0" in driver:
        raise ValueError(f"expected the name of a CSI driver, got {driver!r}")
    return driver
