"""What to say to a CSI driver about a volume: from specifications, the CSIDriver object and the driver's capabilities.

No I/O. What the kubelet's words for a refusal are known for, they are here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import SecretReference
from trikubelet.api.csi_objects import (
    FS_GROUP_FILE,
    FS_GROUP_NONE,
    FS_GROUP_READ_WRITE_ONCE_WITH_FS_TYPE,
    LIFECYCLE_EPHEMERAL,
    LIFECYCLE_PERSISTENT,
)
from trikubelet.api.persistent_volumes import (
    READ_ONLY_MANY,
    READ_WRITE_MANY,
    READ_WRITE_ONCE,
    READ_WRITE_ONCE_POD,
)
from trikubelet.api.timestamps import format_time
from trikubelet.formats.values import frozen
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi.paths import PLUGIN
from trikubelet.volumes.errors import TransientVolumeError, VolumeError
from trikubelet.volumes.model import VolumeUsage
from trikubelet.volumes.mount_labels import mount_option

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.api import CSIDriver, Pod
    from trikubelet.kube_client.volume_objects import Token
    from trikubelet.volumes.model import VolumeSpec

TOKENS_KEY: Final = "csi.storage.k8s.io/serviceAccount.tokens"
_POD_INFO: Final = "csi.storage.k8s.io/"
_PLUGINS_FOLDER: Final = "plugins/kubernetes.io/"

Mode = v1.VolumeCapabilityAccessModeMode
Capability = v1.NodeServiceCapabilityRpcType

_MODES: Final = {
    READ_WRITE_ONCE: Mode.SINGLE_NODE_WRITER,
    READ_ONLY_MANY: Mode.MULTI_NODE_READER_ONLY,
    READ_WRITE_MANY: Mode.MULTI_NODE_MULTI_WRITER,
    READ_WRITE_ONCE_POD: Mode.SINGLE_NODE_WRITER,
}
_PRECISE_MODES: Final = {
    **_MODES,
    READ_WRITE_ONCE: Mode.SINGLE_NODE_MULTI_WRITER,
    READ_WRITE_ONCE_POD: Mode.SINGLE_NODE_SINGLE_WRITER,
}


@frozen
class Source:
    """What a specification says of a CSI volume, be it inline or persistent."""

    driver: str
    handle: str
    ephemeral: bool
    read_only: bool = False
    fs_type: str = ""
    attributes: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    access_modes: tuple[str, ...] = ()
    mount_options: tuple[str, ...] = ()
    stage_secret: SecretReference | None = None
    publish_secret: SecretReference | None = None
    expand_secret: SecretReference | None = None

    @property
    def lifecycle(self) -> str:
        return LIFECYCLE_EPHEMERAL if self.ephemeral else LIFECYCLE_PERSISTENT


def source_of(spec: VolumeSpec, uid: str = "", namespace: str = "") -> Source:
    """`uid` and `namespace` of the pod are needed for inline volumes. Raises VolumeError."""
    if spec.persistent is not None and (csi := spec.persistent.spec.csi) is not None:
        source = Source(
            driver=csi.driver,
            handle=csi.volume_handle,
            ephemeral=False,
            read_only=spec.read_only,
            fs_type=csi.fs_type,
            attributes=csi.volume_attributes,
            access_modes=spec.persistent.spec.access_modes,
            mount_options=spec.persistent.spec.mount_options,
            stage_secret=csi.node_stage_secret_ref,
            publish_secret=csi.node_publish_secret_ref,
            expand_secret=csi.node_expand_secret_ref,
        )
    elif spec.volume is not None and (inline := spec.volume.csi) is not None:
        reference = inline.node_publish_secret_ref
        source = Source(
            driver=inline.driver,
            handle=inline_handle(uid, spec.volume.name),
            ephemeral=True,
            read_only=bool(inline.read_only),
            fs_type=inline.fs_type or "",
            attributes=inline.volume_attributes,
            publish_secret=None if reference is None else SecretReference(name=reference.name, namespace=namespace),
        )
    else:
        raise VolumeError(spec.name, "volume source not found in volume.Spec")
    if not source.driver:
        raise VolumeError(spec.name, "driver name is empty")
    if not source.handle:
        raise VolumeError(spec.name, "missing volume id")
    return source


def is_inline(spec: VolumeSpec) -> bool:
    return spec.persistent is None


def inline_handle(uid: str, name: str) -> str:
    """The id of a pod's own volume (kubelet: `makeVolumeHandle`)."""
    return f"csi-{_digest(uid, name)}"


def attachment_name(handle: str, driver: str, node: str) -> str:
    """The name of the VolumeAttachment (kubelet: `getAttachmentName`)."""
    return f"csi-{_digest(handle, driver, node)}"


def unique_name(spec: VolumeSpec, uid: str) -> str:
    """Raises VolumeError (kubelet: `GetUniqueVolumeName`, `GetUniqueVolumeNameFromSpecWithPod`)."""
    if is_inline(spec):
        return f"{PLUGIN}/{uid}-{spec.inner_name}"
    source = source_of(spec)
    return f"{PLUGIN}/{source.driver}^{source.handle}"


# What a CSIDriver object asks for; None: there is none for the driver.


def requires_attach(driver: CSIDriver | None) -> bool:
    return driver is None or driver.spec.attach_required is not False


def takes_mount_label(driver: CSIDriver | None) -> bool:
    return driver is not None and driver.spec.se_linux_mount is True


def requires_republish(driver: CSIDriver | None) -> bool:
    return driver is not None and driver.spec.requires_republish is True


def wants_pod_info(driver: CSIDriver | None) -> bool:
    return driver is not None and driver.spec.pod_info_on_mount is True


def tokens_in_secrets(driver: CSIDriver | None) -> bool:
    return driver is not None and driver.spec.service_account_token_in_secrets is True


def check_lifecycle(volume: str, driver: CSIDriver | None, source: Source) -> None:
    """Whether the driver takes volumes of this kind. Raises TransientVolumeError: the object may change."""
    mode = source.lifecycle
    if driver is None:
        if source.ephemeral:
            what = f'volume mode "{mode}" not supported by driver {source.driver} (no CSIDriver object)'
            raise TransientVolumeError(volume, what)
        return
    modes = driver.spec.volume_lifecycle_modes or (LIFECYCLE_PERSISTENT,)
    if mode not in modes:
        listed = " ".join(f'"{supported}"' for supported in modes)
        what = f'volume mode "{mode}" not supported by driver {source.driver} (only supports [{listed}])'
        raise TransientVolumeError(volume, what)


def fs_group_policy(volume: str, driver: CSIDriver | None) -> str:
    """Raises TransientVolumeError for an object that does not say."""
    if driver is None:
        return FS_GROUP_READ_WRITE_ONCE_WITH_FS_TYPE
    if not driver.spec.fs_group_policy:
        raise TransientVolumeError(volume, "expected valid fsGroupPolicy, received nil value or empty string")
    return driver.spec.fs_group_policy


def takes_fs_group(source: Source, policy: str, group: int | None) -> bool:
    """Whether the files get the pod's group (kubelet: `supportsFSGroup`)."""
    if group is None or policy == FS_GROUP_NONE or source.read_only:
        return False
    if policy == FS_GROUP_FILE:
        return True
    alone = source.ephemeral or READ_WRITE_ONCE in source.access_modes or READ_WRITE_ONCE_POD in source.access_modes
    return bool(source.fs_type) and alone


# What is said to the driver.


def access_mode(source: Source, capabilities: Iterable[Capability]) -> Mode:
    """The first of the volume's modes; an inline volume is its pod's alone."""
    modes = _PRECISE_MODES if Capability.SINGLE_NODE_MULTI_WRITER in frozenset(capabilities) else _MODES
    wanted = source.access_modes[0] if source.access_modes else READ_WRITE_ONCE
    return modes.get(wanted, Mode.UNKNOWN)


def volume_capability(
    source: Source,
    capabilities: Iterable[Capability],
    *,
    block: bool = False,
    group: int | None = None,
    label: str = "",
) -> v1.VolumeCapability:
    """`group`: only for a driver that sets it itself. `label`: a SELinux label, empty for none."""
    mode = v1.VolumeCapabilityAccessMode(mode=access_mode(source, capabilities))
    if block:
        return v1.VolumeCapability(block=v1.VolumeCapabilityBlockVolume(), access_mode=mode)
    mount = v1.VolumeCapabilityMountVolume(
        fs_type=source.fs_type,
        mount_flags=[*source.mount_options, *([mount_option(label)] if label else [])],
        volume_mount_group="" if group is None else str(group),
    )
    return v1.VolumeCapability(mount=mount, access_mode=mode)


def pod_info(pod: Pod, source: Source) -> dict[str, str]:
    """For the volume context of a driver that wants it (kubelet: `getPodInfoAttrs`)."""
    return {
        f"{_POD_INFO}pod.name": pod.metadata.name,
        f"{_POD_INFO}pod.namespace": pod.metadata.namespace,
        f"{_POD_INFO}pod.uid": pod.metadata.uid,
        f"{_POD_INFO}serviceAccount.name": pod.spec.service_account_name,
        f"{_POD_INFO}ephemeral": "true" if source.ephemeral else "false",
    }


def tokens_entry(tokens: Mapping[str, Token]) -> dict[str, str]:
    """Tokens by audience, as one entry of the volume context or of the secrets; no entry for none."""
    if not tokens:
        return {}
    listed = {
        audience: {"token": token.token, "expirationTimestamp": format_time(token.expires)}
        for audience, token in sorted(tokens.items())
    }
    return {TOKENS_KEY: json.dumps(listed, separators=(",", ":"), ensure_ascii=False)}


def usage_of(volume: str, reply: Sequence[v1.VolumeUsage], at: datetime) -> VolumeUsage:
    """Raises VolumeError when the driver told nothing."""
    if not reply:
        raise VolumeError(volume, "failed to get usage from response. usage is nil")
    usage = VolumeUsage(at=at)
    for entry in reply:
        if entry.unit == v1.VolumeUsageUnit.BYTES:
            usage = attrs.evolve(usage, available=entry.available, capacity=entry.total, used=entry.used)
        elif entry.unit == v1.VolumeUsageUnit.INODES:
            usage = attrs.evolve(usage, inodes_free=entry.available, inodes=entry.total, inodes_used=entry.used)
    return usage


def other_references(staging_path: str, mounts: Iterable[str]) -> list[str]:
    """Where else a staged volume is mounted, by others than this agent or its like (kubelet: `HasMountRefs`)."""
    at = staging_path.find(_PLUGINS_FOLDER)
    own = staging_path if at < 0 else staging_path[at:]
    return [mount for mount in mounts if own not in mount]


def _digest(*parts: str) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()
