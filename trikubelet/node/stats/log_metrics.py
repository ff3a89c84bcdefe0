"""What `/metrics` says of logs: the kubelet's `log_metrics.go`, from a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.telemetry.families import Family, Sample

if TYPE_CHECKING:
    from trikubelet.node.stats.model import Summary


def log_families(summary: Summary) -> list[Family]:
    """What containers' logs take of the disk."""
    samples = [
        Sample((pod.pod_ref.uid, pod.pod_ref.namespace, pod.pod_ref.name, container.name), container.logs.used_bytes)
        for pod in summary.pods
        for container in pod.containers
        if container.logs is not None and container.logs.used_bytes is not None
    ]
    return [
        Family(
            "kubelet_container_log_filesystem_used_bytes",
            "gauge",
            "What the logs of a container take on the disk.",
            ("uid", "namespace", "pod", "container"),
            samples,
        )
    ]
