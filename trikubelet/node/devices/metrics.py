"""What is counted of device plugins."""

from __future__ import annotations

import attrs

from trikubelet.formats.values import frozen
from trikubelet.telemetry.metrics import Counts, Histograms


@frozen
class DeviceMetrics:
    """By resource; the kubelet's names for them in brackets."""

    registrations: Counts = attrs.field(factory=Counts)
    """Of resources whose names are valid (`kubelet_device_plugin_registration_total`, label `resource_name`)."""
    allocations: Histograms = attrs.field(factory=Histograms)
    """Seconds that plugins took to answer Allocate, or to fail (`kubelet_device_plugin_alloc_duration_seconds`)."""
