"""What the kinds of flexVolume drivers are made with. Apart from them: few nodes have such a driver."""

from __future__ import annotations

from pathlib import Path

from trikubelet.formats.values import frozen
from trikubelet.kube_client.volume_objects import StorageObjects
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.stats import VolumeMeter


@frozen(kw_only=True)
class FlexTools:
    """What the kinds of all drivers are made with."""

    root: Path
    mounter: Mounter
    disk: Disk
    meter: VolumeMeter
    recorder: EventRecorder
    storage: StorageObjects
    controller_attaches: bool
