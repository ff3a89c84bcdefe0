"""What is counted of resource claims."""

from __future__ import annotations

from typing import Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.telemetry.metrics import Histograms, exponential_bounds

DURATION_BOUNDS: Final = exponential_bounds(0.1, (40 / 0.1) ** (1 / 14), 15)
"""Seconds, up to a little less than a plugin is given."""


@frozen
class ClaimMetrics:
    """The kubelet's names in brackets."""

    operations: Histograms = attrs.field(factory=lambda: Histograms(DURATION_BOUNDS))
    """Seconds that preparing or undoing all claims of a pod took, by `PrepareResources` or `UnprepareResources`, and
    whether it failed (`dra_operations_duration_seconds`)."""
    calls: Histograms = attrs.field(factory=lambda: Histograms(DURATION_BOUNDS))
    """Of a plugin: by driver, method and gRPC status (`dra_grpc_operations_duration_seconds`)."""
