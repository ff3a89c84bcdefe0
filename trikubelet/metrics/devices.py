"""Families about device plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.metrics.families import counter, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.devices.measures import DeviceMeasures
    from trikubelet.metrics.families import AnyFamily


def collect_devices(measures: DeviceMeasures) -> Iterator[AnyFamily]:
    labels = ("resource_name",)
    text = "Registrations of device plugins."
    yield counter("kubelet_device_plugin_registration_total", text, measures.registrations, labels)
    text = "How long device plugins took to answer Allocate."
    yield histogram("kubelet_device_plugin_alloc_duration_seconds", text, measures.allocations, labels)
