"""Pods that use more of the node's disk than they may (kubelet: `localStorageEviction`). Pure.

There are three limits: the size of an emptyDir, all containers' limits of ephemeral storage together, and that of each
container. The first one that a pod is beyond is reported. They hold whether or not the node is short of anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api import Quantity
from trikubelet.api.pod_kinds import is_critical_pod
from trikubelet.api.pod_resources import pod_limits
from trikubelet.config.eviction_values import STORAGE, Layout
from trikubelet.node.eviction.model import LocalEviction, Measurement, PodUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trikubelet.api import Pod

EMPTY_DIR_LIMIT: Final = "emptydirfs.limit"
POD_LIMIT: Final = "ephemeralpodfs.limit"
CONTAINER_LIMIT: Final = "ephemeralcontainerfs.limit"
"""As the kubelet's metrics call them."""


def is_limited(pod: Pod) -> bool:
    """Whether there is anything that a pod could be beyond."""
    sizes = (volume.empty_dir.size_limit for volume in pod.spec.volumes if volume.empty_dir is not None)
    return any(size is not None and size.nanos > 0 for size in sizes) or limits_storage(pod)


def overfills(pod: Pod, used: Mapping[str, int | None]) -> bool:
    """Whether an emptyDir holds more than it may. `used`: bytes by the volume's name, as far as they are known."""
    return next(_overfilled(pod, used), None) is not None


def limits_storage(pod: Pod) -> bool:
    """Whether a pod's containers have limits of ephemeral storage, in which layers and logs count."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    of_pod = () if pod.spec.resources is None else pod.spec.resources.limits
    return STORAGE in of_pod or any(STORAGE in container.resources.limits for container in containers)


def over_their_limits(pods: Iterable[Pod], measured: Measurement) -> tuple[LocalEviction, ...]:
    """All pods to be ended for it, and why. Critical pods are spared, as are those of which nothing is known."""
    return tuple(
        LocalEviction(pod=pod, message=message, limit=limit)
        for pod in pods
        if pod.metadata.uid in measured.pods and not is_critical_pod(pod)
        for limit, message in _first(_exceeded(pod, measured.pods[pod.metadata.uid], measured.layout))
    )


def _first(findings: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    found = next(findings, None)
    return [] if found is None else [found]


def _exceeded(pod: Pod, usage: PodUsage, layout: Layout) -> Iterator[tuple[str, str]]:
    """The limits, each with what the pod's status will say. The blanks at the ends are Kubernetes' own."""
    for name, size in _overfilled(pod, {name: volume.bytes for name, volume in usage.volumes.items()}):
        yield EMPTY_DIR_LIMIT, f'Usage of EmptyDir volume "{name}" exceeds the limit "{size}". '
    limit = pod_limits(pod).get(STORAGE)
    if limit is not None and _more(usage.ephemeral or 0, limit):
        yield POD_LIMIT, f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
    limits = {container.name: container.resources.limits.get(STORAGE) for container in pod.spec.containers}
    for name, container in usage.containers.items():
        own = limits.get(name)
        written = container.logs.bytes or 0
        if layout is Layout.SINGLE:
            written += container.rootfs.bytes or 0
        if own and _more(written, own):
            yield CONTAINER_LIMIT, f'Container {name} exceeded its local ephemeral storage limit "{own}". '


def _overfilled(pod: Pod, used: Mapping[str, int | None]) -> Iterator[tuple[str, Quantity]]:
    """Names of emptyDirs, and how much they may hold."""
    for volume in pod.spec.volumes:
        size = None if volume.empty_dir is None else volume.empty_dir.size_limit
        holds = used.get(volume.name)
        if size is not None and holds is not None and size.nanos > 0 and _more(holds, size):
            yield volume.name, size


def _more(used: int, limit: Quantity) -> bool:
    return Quantity(used) > limit
