"""Metrics of the status manager: ends of containers, pods that were refused, and how long pods took to run.

Reasons and exit codes come from runtimes and, by the names of resources, from pods, so only those that are known are
told apart (kubelet: `recordAdmissionRejection`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.metrics import OTHER, Counts, Histogram, bounded

if TYPE_CHECKING:
    from trikubelet.api import ContainerStatus, PodStatus

START_BOUNDS: Final = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60),
    *(120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
"""Seconds that pods take to start (kubelet: `podStartupDurationBuckets`)."""

REJECTION_REASONS: Final = frozenset(
    {
        "AppArmor",
        "Evicted",
        "InitContainerRestartPolicyForbidden",
        "InvalidNodeInfo",
        "NodeShutdown",
        "OutOfcpu",
        "OutOfephemeral-storage",
        "OutOfmemory",
        "OutOfpods",
        "PodFeatureUnsupported",
        "PodLevelResourcesNotSupported",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "SupplementalGroupsPolicyNotSupported",
        "SysctlForbidden",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "UnexpectedPredicateFailureType",
        "UnknownReason",
        "VolumeAttachmentLimitExceeded",
        "node(s) had taints that the pod didn't tolerate",
    }
)
END_REASONS: Final = frozenset(
    {
        "Completed",
        "ContainerCannotRun",
        "ContainerStatusUnknown",
        "DeadlineExceeded",
        "Error",
        "OOMKilled",
        "RestartingAllContainers",
        "StartError",
        "Unknown",
        "",
    }
)


class StatusMetrics:
    """Since the start of the agent."""

    def __init__(self) -> None:
        self.ends: Counts = Counter()
        """Containers, by kind, exit code and reason."""
        self.rejections: Counts = Counter()
        """Pods, by reason."""
        self.starts = Histogram(START_BOUNDS)
        """Seconds from when a pod was wanted to when it ran."""

    def rejected(self, reason: str) -> None:
        """A pod was refused."""
        if reason not in REJECTION_REASONS:
            reason = "OutOfExtendedResources" if reason.startswith("OutOf") else "Other"
        self.rejections[(reason,)] += 1

    def changed(self, old: PodStatus, new: PodStatus) -> None:
        """Another status is reported of a pod."""
        if new.init_container_statuses is not old.init_container_statuses:
            self._count_ends(old.init_container_statuses, new.init_container_statuses, "init_container")
        self._count_ends(old.container_statuses, new.container_statuses, "container")
        if new.ephemeral_container_statuses is not old.ephemeral_container_statuses:
            self._count_ends(old.ephemeral_container_statuses, new.ephemeral_container_statuses, "ephemeral_container")

    def _count_ends(self, old: tuple[ContainerStatus, ...], new: tuple[ContainerStatus, ...], kind: str) -> None:
        """Each end that is reported, once. Of several between two reports only the last is (`updateStatusInternal`)."""
        for status in new:
            end = status.state.terminated
            if end is not None and not any(one.name == status.name and one.state.terminated is not None for one in old):
                code = str(end.exit_code) if 0 <= end.exit_code <= 255 else OTHER
                self.ends[kind, code, bounded(end.reason, END_REASONS)] += 1
