"""The ConfigMaps and Secrets that pods refer to: which pod refers to which, and one copy of each for all readers.

The references of a pod live in its scope: from before anything of it starts until it is over. Meanwhile,
how the copies of what it refers to are had is a matter of the strategy (`object_watches.py`, `object_cache.py`).

What no pod refers to can be asked for too, a persistent volume's secret for example: the server is asked each time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import trio

from trikubelet.api.pod_kinds import is_mirror_pod, is_static_pod
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_cache import CachedObjects, FetchedObjects
from trikubelet.kube_client.object_watches import ObjectWatches
from trikubelet.kube_client.pod_references import references
from trikubelet.kube_client.types import CONFIG_MAPS, SECRETS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

    from trikubelet.api import ConfigMap, Node, Pod, PodSpec, Secret
    from trikubelet.broadcast import Broadcast
    from trikubelet.kube_client.object_cache import Copies
    from trikubelet.kube_client.pod_references import Key
    from trikubelet.kube_client.types import ApiClient


@frozen
class PodReferences:
    """Implements `References`."""

    objects: PodObjects

    def follow(self, pod: Pod) -> None:
        self.objects.refer(pod)


class PodObjects:
    """`trikubelet.kube_client.volume_objects.WatchedObjects`."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies
        self._pods: dict[str, tuple[PodSpec, Mapping[Key, bool]]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the copies current until cancelled; never fails. `started` is called at once."""
        await self.copies.run(task_status=task_status)

    @contextmanager
    def references(self, uid: str) -> Iterator[PodReferences]:
        """Of a pod whose scope is open: nothing is kept current for it afterwards."""
        try:
            yield PodReferences(self)
        finally:
            _, known = self._pods.pop(uid, (None, {}))
            for key in known:
                self.copies.release(key, uid)

    def refer(self, pod: Pod) -> None:
        """Free when the pod's specification is the one that is known. Static pods refer to nothing."""
        if is_static_pod(pod) or is_mirror_pod(pod):
            return
        uid = pod.metadata.uid
        spec, before = self._pods.get(uid, (None, {}))
        if spec is pod.spec:
            return
        after = references(pod)
        self._pods[uid] = (pod.spec, after)
        for key, lasting in after.items():
            if before.get(key) is not lasting:
                self.copies.refer(key, uid, lasting=lasting)
        for key in before:
            if key not in after:
                self.copies.release(key, uid)

    def referring(self, plural: str, namespace: str, name: str) -> list[str]:
        """UIDs of the registered pods that refer to an object."""
        key = (plural, namespace, name)
        return [uid for uid, (_, references) in self._pods.items() if key in references]

    @property
    def registered(self) -> int:
        """How many pods are."""
        return len(self._pods)

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        """Raises ObjectError. Cancellable."""
        return cast("ConfigMap", await self.copies.get((CONFIG_MAPS.plural, namespace, name)))

    async def secret(self, namespace: str, name: str) -> Secret:
        """Raises ObjectError. Cancellable."""
        return cast("Secret", await self.copies.get((SECRETS.plural, namespace, name)))

    @property
    def changes(self) -> Broadcast[Key]:
        """With `Cache` a change is noticed when somebody asks, with `Get` never."""
        return self.copies.changes


def copies_by(
    strategy: str,
    client: ApiClient,
    *,
    node: Callable[[], Node | None],
    sync_frequency: float,
    rng: random.Random,
) -> Copies:
    """`configMapAndSecretChangeDetectionStrategy`: Watch, Cache or Get. Raises ValueError for others."""
    match strategy:
        case "Watch":
            return ObjectWatches(client, rng=rng, sync_frequency=sync_frequency)
        case "Cache":
            return CachedObjects(client, node=node)
        case "Get":
            return FetchedObjects(client)
        case _:
            raise ValueError(f"expected a strategy of Watch, Cache or Get, got {strategy!r}")
