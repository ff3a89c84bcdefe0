"""Metrics of the runtime manager, with the kubelet's labels (`pkg/kubelet/metrics`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import EphemeralContainer
from trikubelet.formats.values import define
from trikubelet.telemetry.metrics import Counts, Histograms

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod

CONTAINER: Final = "container"
INIT_CONTAINER: Final = "init_container"
EPHEMERAL_CONTAINER: Final = "ephemeral_container"

PULL_BOUNDS: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
"""Seconds."""
RESIZE_BOUNDS: Final = (10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000)
"""Milliseconds."""
_MIB: Final = 2**20
_IMAGE_SIZES: Final = (
    (0, "0-10MB"),
    (10 * _MIB, "10MB-100MB"),
    (100 * _MIB, "100MB-500MB"),
    (500 * _MIB, "500MB-1GB"),
    (1024 * _MIB, "1GB-5GB"),
    (5 * 1024 * _MIB, "5GB-10GB"),
    (10 * 1024 * _MIB, "10GB-20GB"),
    (20 * 1024 * _MIB, "20GB-30GB"),
    (30 * 1024 * _MIB, "30GB-40GB"),
    (40 * 1024 * _MIB, "40GB-60GB"),
    (60 * 1024 * _MIB, "60GB-100GB"),
    (100 * 1024 * _MIB, "GT100GB"),
)
"""Sizes that an image is larger than, and the word for it."""


@define
class RuntimeMetrics:
    """Since the start of the agent."""

    started_pods: int = 0
    """Sandboxes that were to be made."""
    failed_pods: int = 0
    started_user_namespaced_pods: int = 0
    failed_user_namespaced_pods: int = 0
    started_containers: Counts = attrs.field(factory=Counter)
    """Starts that were tried, by the kind of container."""
    failed_containers: Counts = attrs.field(factory=Counter)
    """By the kind of container, and the reason that its status shows."""
    resizes: Histograms = attrs.field(factory=lambda: Histograms(RESIZE_BOUNDS))
    """Milliseconds that it took to resize pods, by whether that succeeded (`true` or `false`)."""
    image_volumes_requested: int = 0
    image_volumes_mounted: int = 0
    image_volumes_failed: int = 0
    image_requests: Counts = attrs.field(factory=Counter)
    """Images that were asked for: by the pull policy, whether it was there, and whether it had to be pulled."""
    image_pulls: Histograms = attrs.field(factory=lambda: Histograms(PULL_BOUNDS))
    """Seconds with the wait for a turn, of pulls that succeeded, by the image's size."""
    images_removed: Counts = attrs.field(factory=Counter)
    """By why they went, `age` or `space`."""
    http_fallbacks: int = 0
    """Hooks that got plain HTTP where they had asked for HTTPS."""
    sleeps_cut_short: int = 0
    """Hooks that were to sleep longer than their container lived."""


def container_kind(pod: Pod, container: Container) -> str:
    """The label `container_type` of a container of the pod."""
    if isinstance(container, EphemeralContainer):
        return EPHEMERAL_CONTAINER
    return INIT_CONTAINER if any(one is container for one in pod.spec.init_containers) else CONTAINER


def image_size_word(size: int) -> str:
    """The label `image_size_in_bytes`."""
    if size <= 0:
        return "N/A"
    return next(word for bound, word in reversed(_IMAGE_SIZES) if size > bound)
