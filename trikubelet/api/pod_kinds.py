"""What kind of pod a pod is, read from the annotations that its source put on it.

Pods from files and URLs are *static*: no API server knows them. For each the agent creates a *mirror* pod in the API
server, which shows it to others and is never run itself. Facts from the kubelet's `types/pod_update.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trikubelet.api import Pod, PodStatus

CONFIG_SOURCE_ANNOTATION: Final = "kubernetes.io/config.source"
CONFIG_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
CONFIG_FIRST_SEEN_ANNOTATION: Final = "kubernetes.io/config.seen"
CONFIG_HASH_ANNOTATION: Final = "kubernetes.io/config.hash"

FILE_SOURCE: Final = "file"
HTTP_SOURCE: Final = "http"
API_SERVER_SOURCE: Final = "api"

SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000

TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def pod_source(pod: Pod) -> str | None:
    """`file`, `http` or `api`; None for a pod whose source left no word."""
    return pod.metadata.annotations.get(CONFIG_SOURCE_ANNOTATION)


def is_static_pod(pod: Pod) -> bool:
    """Whether the pod comes from a file or a URL."""
    return pod_source(pod) not in (None, API_SERVER_SOURCE)


def shows_version(mirror: Pod, static: Pod) -> bool:
    """Whether a mirror pod was made of this version of the static pod (kubelet: `IsMirrorPodOf`)."""
    shown = mirror.metadata.annotations.get(CONFIG_MIRROR_ANNOTATION)
    return mirror.full_name == static.full_name and shown == static.metadata.annotations.get(CONFIG_HASH_ANNOTATION, "")


def is_mirror_pod(pod: Pod) -> bool:
    """Whether the pod only shows a static pod to the API server."""
    return CONFIG_MIRROR_ANNOTATION in pod.metadata.annotations


def is_critical_pod(pod: Pod) -> bool:
    """Whether the node must not do without the pod: static, mirror, or of system-critical priority."""
    if is_static_pod(pod) or is_mirror_pod(pod):
        return True
    return pod.spec.priority is not None and pod.spec.priority >= SYSTEM_CRITICAL_PRIORITY


def is_terminal(pod: Pod) -> bool:
    """Whether the pod's source has seen it end."""
    return has_ended(pod.status)


def has_ended(status: PodStatus) -> bool:
    """Whether a pod with this status has ended."""
    return status.phase in TERMINAL_PHASES
