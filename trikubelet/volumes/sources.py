"""Which plugin a volume belongs to, by the one source that it has, in a pod or as a persistent volume. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.volumes.errors import VolumeError

if TYPE_CHECKING:
    from trikubelet.api import PersistentVolumeSpec, Volume

EMPTY_DIR: Final = "kubernetes.io/empty-dir"
HOST_PATH: Final = "kubernetes.io/host-path"
CONFIG_MAP: Final = "kubernetes.io/configmap"
SECRET: Final = "kubernetes.io/secret"
DOWNWARD_API: Final = "kubernetes.io/downward-api"
PROJECTED: Final = "kubernetes.io/projected"
LOCAL: Final = "kubernetes.io/local-volume"
NFS: Final = "kubernetes.io/nfs"
ISCSI: Final = "kubernetes.io/iscsi"
FC: Final = "kubernetes.io/fc"
CSI: Final = "kubernetes.io/csi"

_PLUGINS: Final = {
    "host_path": HOST_PATH,
    "empty_dir": EMPTY_DIR,
    "config_map": CONFIG_MAP,
    "secret": SECRET,
    "downward_api": DOWNWARD_API,
    "projected": PROJECTED,
    "local": LOCAL,
    "nfs": NFS,
    "csi": CSI,
    "git_repo": "kubernetes.io/git-repo",
    "iscsi": ISCSI,
    "fc": FC,
}

_DRIVERS: Final = {
    "cephfs": "cephfs.csi.ceph.com",
    "flocker": "",
    "glusterfs": "",
    "photon_persistent_disk": "",
    "quobyte": "",
    "rbd": "rbd.csi.ceph.com",
    "scale_io": "",
    "storageos": "",
}
"""Kinds of the cloud that were part of Kubernetes once, and the CSI drivers that serve their volumes today; empty:
none."""


def plugin_of(source: Volume | PersistentVolumeSpec, name: str) -> str:
    """`kubernetes.io/secret`, for example; a flexVolume belongs to its driver. `name`: of the volume in the pod.

    Raises VolumeError for kinds that no node agent provides itself any more, and for a volume without a source.
    """
    if source.flex_volume is not None and source.flex_volume.driver not in ("", *_PLUGINS.values()):
        return source.flex_volume.driver
    for field, plugin in _PLUGINS.items():
        if getattr(source, field, None) is not None:
            return plugin
    for field, driver in _DRIVERS.items():
        if getattr(source, field, None) is not None:
            raise VolumeError(name, _no_longer(field, driver))
    raise VolumeError(name, f'failed to get Plugin from volumeSpec for volume "{name}" err=no volume plugin matched')


def _no_longer(field: str, driver: str) -> str:
    head, *tail = field.split("_")
    kind = head + "".join(part.capitalize() for part in tail)
    told = f"install the CSI driver {driver} and use a volume of it" if driver else "use a volume of a CSI driver"
    return f"this agent does not provide {kind} volumes itself: {told} instead"
