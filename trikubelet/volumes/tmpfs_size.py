"""How large an emptyDir in memory may become. Pure (kubelet: `calculateEmptyDirMemorySize`).

Where nothing limits the volume, not even the node, the kernel's default holds, which is half of the machine's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import pod_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod, Quantity


def tmpfs_size(
    pod: Pod, size_limit: Quantity | None = None, *, allocatable: Mapping[str, Quantity] | None = None
) -> int | None:
    """The size in bytes: the least of the volume's limit, the pod's memory limit, and what the node can give to pods.

    `allocatable`: the node's resources by name, as far as they are known. None when nothing limits the volume.
    """
    node = (allocatable or {}).get("memory")
    limits = [0 if limit is None else limit.value() for limit in (size_limit, node)]
    return min((limit for limit in (*limits, pod_memory_limit(pod)) if limit > 0), default=None)


def pod_memory_limit(pod: Pod) -> int:
    """The bytes that the pod may take, with its overhead; 0 when one of its containers may take what it wants."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    pod_level = None if pod.spec.resources is None else pod.spec.resources.limits.get("memory")
    if not pod_level and not all(container.resources.limits.get("memory") for container in containers):
        return 0
    return pod_limits(pod)["memory"].value()
