"""What is counted of resource claims."""

from __future__ import annotations

from typing import Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.telemetry.metrics import Histograms

DURATION_BOUNDS: Final = (
    *(0.1, 0.1534127404634391, 0.23535468936502524, 0.36106407876409946, 0.5539182980610752, 0.849781240983936),
    *(1.303672689737678, 1.9999999999999993, 3.0682548092687805, 4.7070937873005025, 7.221281575281985),
    *(11.078365961221499, 16.995624819678714, 26.07345379475354, 39.99999999999997),
)
"""Seconds, up to a little less than a plugin is given: `ExponentialBucketsRange(.1, 40, 15)` with Go's own `Pow`, from
which C's differs in the last digit."""


@frozen
class ClaimMetrics:
    """The kubelet's names in brackets."""

    operations: Histograms = attrs.field(factory=lambda: Histograms(DURATION_BOUNDS))
    """Seconds that preparing or undoing all claims of a pod took, by `PrepareResources` or `UnprepareResources`, and
    whether it failed (`dra_operations_duration_seconds`)."""
    calls: Histograms = attrs.field(factory=lambda: Histograms(DURATION_BOUNDS))
    """Of a plugin: by driver, method and gRPC status (`dra_grpc_operations_duration_seconds`)."""
