"""How large an emptyDir in memory may become. Pure (kubelet: `calculateEmptyDirMemorySize`).

What the node as a whole can give to pods is no limit here: where nothing limits the volume, the kernel's default holds,
which is half of the machine's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import pod_limits

if TYPE_CHECKING:
    from trikubelet.api import EmptyDirVolumeSource, Pod


def tmpfs_size(pod: Pod, source: EmptyDirVolumeSource) -> int | None:
    """The size in bytes: the lesser of the volume's limit and the pod's memory limit; None when neither is set."""
    limits = [0 if source.size_limit is None else source.size_limit.value(), pod_memory_limit(pod)]
    return min((limit for limit in limits if limit > 0), default=None)


def pod_memory_limit(pod: Pod) -> int:
    """The bytes that the pod may take, with its overhead; 0 when one of its containers may take what it wants."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    pod_level = None if pod.spec.resources is None else pod.spec.resources.limits.get("memory")
    if not pod_level and not all(container.resources.limits.get("memory") for container in containers):
        return 0
    return pod_limits(pod)["memory"].value()
