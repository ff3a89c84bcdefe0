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
    "iscsi": "kubernetes.io/iscsi",
    "fc": "kubernetes.io/fc",
    "flex_volume": "kubernetes.io/flexvolume",
}

_DRIVERS: Final = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "azure_disk": "disk.csi.azure.com",
    "azure_file": "file.csi.azure.com",
    "cephfs": "cephfs.csi.ceph.com",
    "cinder": "cinder.csi.openstack.org",
    "flocker": "",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "glusterfs": "",
    "photon_persistent_disk": "",
    "portworx_volume": "pxd.portworx.com",
    "quobyte": "",
    "rbd": "rbd.csi.ceph.com",
    "scale_io": "",
    "storageos": "",
    "vsphere_volume": "csi.vsphere.vmware.com",
}
"""Kinds of the cloud that were part of Kubernetes once, and the CSI drivers that serve their volumes today; empty:
none."""


def plugin_of(source: Volume | PersistentVolumeSpec, name: str) -> str:
    """`kubernetes.io/secret`, for example. `name`: of the volume in the pod.

    Raises VolumeError for kinds that no node agent provides itself any more, and for a volume without a source.
    """
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
