"""Pods with volumes, and what the kinds of their volumes are asked to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trikubelet.api import PersistentVolume, Pod, from_dict, pod_from_dict
from trikubelet.linux.mount_table import MountTable
from trikubelet.volumes.model import SetUpRequest, VolumeSpec

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.linux.mount_table import Mount
    from trikubelet.volumes.kinds.protocol import VolumeKind

UID = "uid-1"


def pod_with(*volumes: dict[str, Any], uid: str = UID, **spec: Any) -> Pod:
    containers = [{"name": "main", "image": "x"}]
    return pod_from_dict(
        {"metadata": {"name": "pod", "uid": uid}, "spec": {"containers": containers, "volumes": list(volumes), **spec}}
    )


def request(kind: VolumeKind, pod: Pod, **more: Any) -> SetUpRequest:
    """For the pod's only volume."""
    [volume] = pod.spec.volumes
    spec = VolumeSpec(volume.name, volume.name, kind.plugin, volume)
    return SetUpRequest(pod=pod, spec=spec, path=kind.path(pod.metadata.uid, volume.name), **more)


def persistent_volume(source: dict[str, Any], name: str = "pv-1", **metadata: Any) -> PersistentVolume:
    return from_dict(PersistentVolume, {"metadata": {"name": name, **metadata}, "spec": source})


def claimed(
    kind: VolumeKind,
    persistent: PersistentVolume,
    *,
    uid: str = UID,
    read_only: bool = False,
    block: bool = False,
    **more: Any,
) -> SetUpRequest:
    """For a pod that uses a persistent volume by a claim."""
    pod = pod_with({"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, uid=uid)
    name = persistent.metadata.name
    spec = VolumeSpec(
        "data", name, kind.plugin, pod.spec.volumes[0], persistent=persistent, read_only=read_only, block=block
    )
    return SetUpRequest(pod=pod, spec=spec, path=kind.path(uid, name, block=block), **more)


def mounts_below(folder: Path) -> list[Mount]:
    return MountTable.read().below(folder)
