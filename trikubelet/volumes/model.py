"""What the parts of the volume manager tell each other."""

from __future__ import annotations

import enum
from datetime import datetime
from pathlib import Path

from trikubelet.api import PersistentVolume, PersistentVolumeClaim, Pod, Volume
from trikubelet.formats.values import frozen


@frozen
class VolumeSpec:
    """A volume of a pod once it is known what it is: for a claim, the persistent volume behind it."""

    name: str
    """In the pod."""
    inner_name: str
    """What its folder is called: the name in the pod, or the persistent volume's name."""
    plugin: str
    """For example `kubernetes.io/secret`."""
    volume: Volume | None = None
    """As the pod has it. None when the volume is known from the disk only."""
    persistent: PersistentVolume | None = None
    claim: PersistentVolumeClaim | None = None
    read_only: bool = False
    block: bool = False
    """Containers get the device itself (`volumeMode: Block`)."""
    migrated: bool = False
    """`persistent` was made from a kind that a CSI driver serves today (`migration`)."""
    group: str = ""
    """A group id that the persistent volume asks containers to be in (`pv.beta.kubernetes.io/gid`)."""
    found_label: str | None = None
    """The SELinux label that it was mounted with, of a volume known from the disk; None when that is not known."""


@frozen
class MountLabel:
    """The SELinux label that a volume is mounted with for one pod; empty: without, its files are relabelled."""

    known: str = ""
    """What the pod and the volume's driver allow."""
    used: str = ""
    """The same where the volume's access mode allows it too."""


class Presence(enum.Enum):
    """How much of a mount there is."""

    ABSENT = "absent"
    UNCERTAIN = "uncertain"
    PRESENT = "present"


@frozen(kw_only=True)
class SetUpRequest:
    """What a kind is to do for one volume of one pod."""

    pod: Pod
    spec: VolumeSpec
    path: Path
    """Where the volume is to be: `VolumeKind.path`."""
    device_path: str = ""
    """What attaching gave (`node.status.volumesAttached`); empty for kinds that are not attached."""
    staging_path: Path | None = None
    """What `stage` returned."""
    user: int | None = None
    """The user that all containers run as, and that owns tokens; None when they differ or it is not known."""
    group: int | None = None
    """`fsGroup`."""
    label: str = ""
    """The SELinux label that all of its files are to have, by a mount option; empty for none."""
    change_policy: str = "Always"
    """`fsGroupChangePolicy`."""
    refresh: bool = False
    """It was set up already: make it up to date. A failure leaves it as it is."""
    reconstructed: bool = False
    """It was found on disk after a restart of the agent."""


@frozen
class MountedVolume:
    """A volume that is there."""

    spec: VolumeSpec
    path: Path | None
    """None for a block device."""
    device: str | None = None
    """The device's path on the node, for block volumes."""
    read_only: bool = False
    """Containers must not write, whatever they ask for."""
    relabel: bool = False
    """With SELinux, the runtime is to give its files the label of the container that gets them."""
    refresh_at: datetime | None = None
    """When its content, a token say, has to be renewed; None when only events change it."""


@frozen
class VolumeUsage:
    """Bytes and inodes; None for what the kind cannot tell."""

    at: datetime
    used: int | None = None
    capacity: int | None = None
    available: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None
    inodes_free: int | None = None
