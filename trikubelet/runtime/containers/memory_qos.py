"""Memory that a container keeps, and from where on it is slowed down (KEP-2570).

Pure; the formulas are the kubelet's (`generateLinuxContainerResources`). On cgroup v2 and with the gate MemoryQoS
only. With the policy TieredReservation the kernel does not take requested memory away: never from Guaranteed pods
(`memory.min`), from others only in need (`memory.low`). And a container that may use more than it requests is slowed
down before it is killed at its limit (`memory.high`).
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

from trikubelet.api import QOS_GUARANTEED, Quantity, qos_class

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.rpc.cri import v1
    from trikubelet.runtime.options import RuntimeOptions

TIERED_RESERVATION: Final = "TieredReservation"
_ZERO: Final = Quantity()


def set_memory_protection(
    resources: v1.LinuxContainerResources, pod: Pod, container: Container, options: RuntimeOptions
) -> None:
    """Complete a container's limits."""
    if not (options.memory_qos and options.machine.cgroup_v2):
        return
    request = container.resources.requests.get("memory", _ZERO).value()
    limit = container.resources.limits.get("memory", _ZERO).value()
    if request and options.memory_reservation_policy == TIERED_RESERVATION:
        protection = {"memory.min" if qos_class(pod) == QOS_GUARANTEED else "memory.low": str(request)}
    else:
        protection = {"memory.min": "0", "memory.low": "0"}
    resources.unified = {**resources.unified, **protection}
    high = _throttled_from(request, limit or options.allocatable_memory, options.memory_throttling_factor)
    # Without request and limit too: a container of a BestEffort pod has nothing to exceed.
    if request != limit and high > request:
        resources.unified["memory.high"] = str(high)


def _throttled_from(request: int, most: int, factor: float) -> int:
    """Bytes, whole pages; computed in floating point, as the kubelet does."""
    if not most:
        return 0
    return int((request + (most - request) * factor) // 1 / mmap.PAGESIZE) * mmap.PAGESIZE
