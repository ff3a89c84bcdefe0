"""What kind of pod a pod is, read from the annotations that its source put on it.

Pods from files and URLs are *static*: no API server knows them. For each the agent creates a *mirror* pod in the API
server, which shows it to others and is never run itself. Facts from the kubelet's `types/pod_update.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.runtime.model import PodRuntimeStatus

CONFIG_SOURCE_ANNOTATION: Final = "kubernetes.io/config.source"
CONFIG_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
CONFIG_FIRST_SEEN_ANNOTATION: Final = "kubernetes.io/config.seen"
CONFIG_HASH_ANNOTATION: Final = "kubernetes.io/config.hash"

FILE_SOURCE: Final = "file"
HTTP_SOURCE: Final = "http"
API_SERVER_SOURCE: Final = "api"

SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000
SYSTEM_NODE_CRITICAL: Final = "system-node-critical"

TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def pod_source(pod: Pod) -> str | None:
    """`file`, `http` or `api`; None for a pod whose source left no word."""
    return pod.metadata.annotations.get(CONFIG_SOURCE_ANNOTATION)


def is_static_pod(pod: Pod) -> bool:
    """Whether the pod comes from a file or a URL."""
    return pod_source(pod) not in (None, API_SERVER_SOURCE)


def is_mirror_pod(pod: Pod) -> bool:
    """Whether the pod only shows a static pod to the API server."""
    return CONFIG_MIRROR_ANNOTATION in pod.metadata.annotations


def is_mirror_pod_of(mirror_pod: Pod, pod: Pod) -> bool:
    """Whether `mirror_pod` shows this very version of the static pod."""
    shown = mirror_pod.metadata.annotations.get(CONFIG_MIRROR_ANNOTATION)
    return (
        shown is not None
        and mirror_pod.full_name == pod.full_name
        and shown == pod.metadata.annotations.get(CONFIG_HASH_ANNOTATION, "")
    )


def is_critical_pod(pod: Pod) -> bool:
    """Whether the node must not do without the pod: static, mirror, or of system-critical priority."""
    if is_static_pod(pod) or is_mirror_pod(pod):
        return True
    return pod.spec.priority is not None and pod.spec.priority >= SYSTEM_CRITICAL_PRIORITY


def is_node_critical_pod(pod: Pod) -> bool:
    """Whether the pod is critical for this very node."""
    return is_critical_pod(pod) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL


def may_preempt(preemptor: Pod, victim: Pod) -> bool:
    """Whether one pod may push another off the node (kubelet: `Preemptable`)."""
    if is_critical_pod(preemptor) and not is_critical_pod(victim):
        return True
    if preemptor.spec.priority is None or victim.spec.priority is None:
        return False
    return preemptor.spec.priority > victim.spec.priority


def has_restartable_init_container(pod: Pod) -> bool:
    """Whether the pod has a sidecar: an init container that keeps running."""
    return any(container.restart_policy == "Always" for container in pod.spec.init_containers)


def is_terminal(pod: Pod) -> bool:
    """Whether the pod's source has seen it end."""
    return pod.status.phase in TERMINAL_PHASES


def nothing_runs(status: PodRuntimeStatus) -> bool:
    """Whether neither a container runs nor a sandbox is ready (kubelet: `isPodStatusCacheTerminal`)."""
    return not status.running_containers() and not any(sandbox.ready for sandbox in status.sandbox_statuses)
