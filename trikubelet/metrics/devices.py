"""Families about device plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.telemetry.families import counter, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.node.devices.metrics import DeviceMetrics
    from trikubelet.telemetry.families import AnyFamily


def collect_devices(metrics: DeviceMetrics) -> Iterator[AnyFamily]:
    labels = ("resource_name",)
    text = "Registrations of device plugins."
    yield counter("kubelet_device_plugin_registration_total", text, metrics.registrations, labels)
    text = "How long device plugins took to answer Allocate."
    yield histogram("kubelet_device_plugin_alloc_duration_seconds", text, metrics.allocations, labels)
