"""Families about volumes: operations on them, those that there are, and how full claims are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.families import counter, gauge, histogram
from trikubelet.volumes.mount_labels import CONTAINERS, PODS, VOLUMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.telemetry.families import AnyFamily
    from trikubelet.telemetry.metrics import Histograms
    from trikubelet.volumes.csi.drivers import Drivers
    from trikubelet.volumes.manager import VolumeManager
    from trikubelet.volumes.mount_labels import MountLabels

_USAGE: Final = {
    "capacity": ("kubelet_volume_stats_capacity_bytes", "Size of a claim's volume."),
    "available": ("kubelet_volume_stats_available_bytes", "What is left of a claim's volume."),
    "used": ("kubelet_volume_stats_used_bytes", "What is used of a claim's volume."),
    "inodes": ("kubelet_volume_stats_inodes", "Inodes of a claim's volume."),
    "inodes_free": ("kubelet_volume_stats_inodes_free", "Inodes that are left of a claim's volume."),
    "inodes_used": ("kubelet_volume_stats_inodes_used", "Inodes that are used of a claim's volume."),
}
"""By what usage calls it."""
_LABEL_PROBLEMS: Final = {
    CONTAINERS: "The SELinux label of a container's files could not be made out",
    PODS: "Containers of a pod have different SELinux labels and share a volume",
    VOLUMES: "A pod asks for another SELinux label of a volume than those that use it",
}
_LABEL_OUTCOMES: Final = {
    "errors": "the pod waits",
    "warnings": "the pod runs, since the volume is not mounted with a label",
}


def collect_volumes(volumes: VolumeManager) -> Iterator[AnyFamily]:
    operations = dict(volumes.durations.items())
    labels = ("volume_plugin", "operation_name", "status", "migrated")
    yield histogram("storage_operation_duration_seconds", "How long operations on volumes took.", operations, labels)
    there, wanted = volumes.count_by_plugin()
    by_state = {(plugin, "actual_state_of_world"): number for plugin, number in there.items()}
    by_state |= {(plugin, "desired_state_of_world"): number for plugin, number in wanted.items()}
    text = "Volumes that are there for pods, and volumes that pods want."
    yield gauge("volume_manager_total_volumes", text, by_state, ("plugin_name", "state"))
    text = "Pods' volumes of an earlier agent that were found at the start."
    yield counter("reconstruct_volume_operations_total", text, volumes.reconstructed)
    text = "Pods' volumes of an earlier agent of which it could not be told what they are."
    yield counter("reconstruct_volume_operations_errors_total", text, volumes.not_understood)
    yield from _collect_labels(volumes.labels)
    claims = volumes.usage_of_claims()
    for field, (name, text) in _USAGE.items():
        values = {claim: getattr(usage, field) for claim, usage in claims.items()}
        known = {claim: value for claim, value in values.items() if value is not None}
        yield gauge(name, text, known, ("namespace", "persistentvolumeclaim"))


def collect_measuring(durations: Iterable[Histograms]) -> Iterator[AnyFamily]:
    """`durations`: by what was measured with, a call or a driver."""
    text = "How long it took to measure volumes, by what was asked."
    by_source = {labels: one for each in durations for labels, one in each.items()}
    yield histogram("kubelet_volume_metric_collection_duration_seconds", text, by_source, ("metric_source",))


def _collect_labels(labels: MountLabels) -> Iterator[AnyFamily]:
    by_volume = ("volume_plugin", "access_mode")
    text = "Volumes that could be mounted with the SELinux label of their pods."
    yield gauge("volume_manager_selinux_volumes_admitted_total", text, labels.admitted, by_volume)
    for counted, outcome in ((labels.errors, "errors"), (labels.warnings, "warnings")):
        for what, about in _LABEL_PROBLEMS.items():
            names = by_volume if what == VOLUMES else ("access_mode",)
            text = f"{about}: {_LABEL_OUTCOMES[outcome]}."
            yield gauge(f"volume_manager_selinux_{what}_{outcome}_total", text, counted[what], names)


def collect_csi(drivers: Drivers) -> Iterator[AnyFamily]:
    calls = dict(drivers.durations.items())
    labels = ("driver_name", "method_name", "grpc_status_code", "migrated")
    yield histogram("csi_operations_seconds", "How long calls to CSI drivers took.", calls, labels)
