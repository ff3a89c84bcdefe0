"""How much swap a container may use (KEP-2400; kubelet: `configureContainerSwapResources`). Pure.

Nothing is said where the kernel does not count swap per cgroup. NoSwap is the default. With LimitedSwap, on cgroup v2,
a burstable pod's container gets the part of the node's swap that its memory request is of the node's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api import QOS_BURSTABLE, Quantity, qos_class
from trikubelet.api.pod_kinds import is_critical_pod

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.rpc.cri import v1
    from trikubelet.runtime.options import RuntimeOptions

LIMITED_SWAP: Final = "LimitedSwap"
_SWAP_MAX: Final = "memory.swap.max"
_ZERO: Final = Quantity()


def set_swap_limit(
    resources: v1.LinuxContainerResources, pod: Pod, container: Container, options: RuntimeOptions
) -> None:
    """Complete a container's limits, whose memory limit is set already."""
    machine = options.machine
    if not machine.swap_controller:
        return
    if machine.cgroup_v2:
        resources.unified = {**resources.unified, _SWAP_MAX: str(allowed_swap(pod, container, options))}
    else:
        # Memory and swap together: as much as memory alone leaves nothing for swap.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes


def may_swap(pod: Pod, container: Container, options: RuntimeOptions) -> bool:
    """Whether a container may use swap at all (kubelet: `GetContainerSwapBehavior`)."""
    machine = options.machine
    if options.swap_behavior != LIMITED_SWAP or not (machine.swap_controller and machine.cgroup_v2):
        return False
    request = container.resources.requests.get("memory", _ZERO)
    # Equal also when there is neither. A container that gets what it asks for has no use for swap.
    if request == container.resources.limits.get("memory", _ZERO):
        return False
    return not is_critical_pod(pod) and qos_class(pod) == QOS_BURSTABLE


def allowed_swap(pod: Pod, container: Container, options: RuntimeOptions) -> int:
    """Bytes of swap for a container on cgroup v2."""
    if not may_swap(pod, container, options):
        return 0
    request = container.resources.requests.get("memory", _ZERO)
    memory = options.machine.memory_capacity
    if request.value() > memory:
        return 0
    # In floating point, as the kubelet does: agents that disagreed by a byte would resize each other's containers.
    return int(request.value() / memory * options.machine.swap_capacity)
