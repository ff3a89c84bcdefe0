"""How often the pod resources API was asked, by its version.

Calls that the rate limit rejects count nowhere, and v1alpha1 counts among all requests only, as in the kubelet. Calls
that are answered with an error count as such; in the kubelet only `Get` can be.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.telemetry.metrics import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator

V1: Final = ("v1",)
V1ALPHA1: Final = ("v1alpha1",)
"""The one label, `server_api_version`."""


@frozen
class PodResourcesMetrics:
    """The kubelet's names for them begin with `kubelet_pod_resources_endpoint_`."""

    requests: Counts = attrs.field(factory=Counts)
    """`requests_total`"""
    lists: Counts = attrs.field(factory=Counts)
    """`requests_list`"""
    gets: Counts = attrs.field(factory=Counts)
    """`requests_get`"""
    allocatables: Counts = attrs.field(factory=Counts)
    """`requests_get_allocatable`"""
    failed_lists: Counts = attrs.field(factory=Counts)
    """`errors_list`"""
    failed_gets: Counts = attrs.field(factory=Counts)
    """`errors_get`"""
    failed_allocatables: Counts = attrs.field(factory=Counts)
    """`errors_get_allocatable`"""

    @contextmanager
    def v1_request(self, asked: Counts, failed: Counts) -> Iterator[None]:
        """Count a request, and its failure if it has one."""
        self.requests[V1] += 1
        asked[V1] += 1
        try:
            yield
        except Exception:
            failed[V1] += 1
            raise
