"""The last status of a pod whose containers have all ended, as far as anybody can tell.

A container that was never seen to end, because the runtime lost it, counts as failed: a pod must not look as if it had
done its work when nobody knows. Containers that never began are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.api import POD_FAILED, ContainerState, is_sidecar
from trikubelet.api.pod_kinds import has_ended, is_static_pod
from trikubelet.status.container_statuses import LOST_WHEN_TERMINATED, unknown_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import ContainerStatus, Pod, PodStatus


def terminated_status(pod: Pod, status: PodStatus) -> PodStatus:
    """`status`, with an end for each container that has begun and a phase that is one (kubelet: `TerminatePod`).

    A static pod keeps its phase: the same pod may come back with the same file.
    """
    init = status.init_container_statuses
    begun = _begun(init)
    status = attrs.evolve(
        status, init_container_statuses=tuple(_ended(one) for one in init[:begun]) + tuple(init[begun:])
    )
    if has_initialized(pod, status):
        ended = tuple(_ended(one) for one in status.container_statuses)
        status = attrs.evolve(status, container_statuses=ended)
    if not has_ended(status) and not is_static_pod(pod):
        status = attrs.evolve(status, phase=POD_FAILED)
    return status


def has_initialized(pod: Pod, status: PodStatus) -> bool:
    """Whether there is a sign that a main container was ever to be started (kubelet: `hasPodInitialized`)."""
    if not pod.spec.init_containers:
        return True
    if any(one.last_state.terminated is not None or one.state.waiting is None for one in status.container_statuses):
        return True
    if not status.init_container_statuses:
        return False
    last = status.init_container_statuses[-1]
    container = next((one for one in pod.spec.init_containers if one.name == last.name), None)
    if container is None:
        return False
    if is_sidecar(container):
        return last.state.running is not None and bool(last.started)
    ends = (last.last_state.terminated, last.state.terminated)
    return any(end is not None and end.exit_code == 0 for end in ends)


def _begun(statuses: Sequence[ContainerStatus]) -> int:
    """How many init containers have begun: all but the last ones that still wait, and the first in any case."""
    for index in range(len(statuses) - 1, -1, -1):
        if statuses[index].state.waiting is None or statuses[index].last_state.terminated is not None:
            return index + 1
    return min(1, len(statuses))


def _ended(status: ContainerStatus) -> ContainerStatus:
    if status.state.terminated is not None:
        return status
    return attrs.evolve(status, state=ContainerState(terminated=unknown_end(LOST_WHEN_TERMINATED)))
