"""What is counted of volumes, in the kubelet's words where it does the same (`pkg/volume/util/metrics.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from trikubelet.volumes.decisions import Action, Failed, Operation
from trikubelet.volumes.desired import csi_driver_of

if TYPE_CHECKING:
    from trikubelet.telemetry.metrics import Labels
    from trikubelet.volumes.decisions import Outcome
    from trikubelet.volumes.model import VolumeSpec

STORAGE_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
"""Seconds: upper bounds of buckets."""


def plugin_name(spec: VolumeSpec) -> str:
    """The kind of volume, with the driver for one of CSI (`GetFullQualifiedPluginNameForVolume`)."""
    driver = csi_driver_of(spec)
    return spec.plugin if driver is None else f"{spec.plugin}:{driver}"


def operation_labels(operation: Operation, outcome: Outcome) -> Labels:
    """Plugin, operation, how it ended, and whether the volume was migrated."""
    status = "fail-unknown" if isinstance(outcome, Failed) else "success"
    return plugin_name(operation.spec), _operation_name(operation), status, bool_label(operation.spec.migrated)


def bool_label(value: bool) -> str:
    return "true" if value else "false"


def _operation_name(operation: Operation) -> str:
    """The kubelet's word. `mount_device` is none: there it is a part of `volume_mount`."""
    block = operation.spec.block
    match operation.action:
        case Action.ATTACH:
            return "verify_controller_attached_volume"
        case Action.STAGE:
            return "mount_device"
        case Action.SET_UP | Action.REFRESH:
            return "map_volume" if block else "volume_mount"
        case Action.EXPAND:
            return "volume_fs_resize"
        case Action.TEAR_DOWN:
            return "unmap_volume" if block else "volume_unmount"
        case Action.UNSTAGE:
            return "unmap_device" if block else "unmount_device"
        case _:
            assert_never(operation.action)
