"""The objects that pods refer to, from the API server: the node's side of `runtime.objects` and `credentials.accounts`.

Services and RuntimeClasses are watched, all of them, so looking them up never waits for the server. ConfigMaps and
Secrets are fetched when a container is to start and kept for a minute (or as long as an annotation of the node says):
the hundred pods of one Deployment ask once. A pod that comes, or that changes, makes what it names stale at once, so
that who changes a ConfigMap and then makes a pod finds the new one there. While the server cannot be asked, what is
known is used however old it is: a container that crashes starts again as it was. What no pod names any more is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic

import attrs
import trio

from trikubelet.cluster.errors import ApiError, ApiStatusError
from trikubelet.cluster.tokens import BoundPod, TokenError, TokenKey, Tokens
from trikubelet.cluster.types import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, T
from trikubelet.logs import get_logger
from trikubelet.pods.classify import is_static_pod
from trikubelet.runtime.environment_objects import config_map_names, secret_names
from trikubelet.runtime.objects import ObjectError
from trikubelet.runtime.service_environment import service_variables

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

    from trikubelet.api import ConfigMap, Node, ObjectMeta, Pod, RuntimeClass, Secret, Service
    from trikubelet.clock import WallClock
    from trikubelet.cluster.types import ApiClient, ObjectStore, Resource

DEFAULT_TTL: Final = 60.0
"""Seconds for which a ConfigMap or Secret is not asked for again."""
TTL_ANNOTATION: Final = "node.alpha.kubernetes.io/ttl"
"""Seconds, on the node: a controller raises it in large clusters."""
PRUNE_SECONDS: Final = 60.0
FIRST_SYNC_SECONDS: Final = 2.0
"""How long a pod waits for services or RuntimeClasses that have not been read yet. They are read at the same time as
the pods, so a moment is enough, and saves the pod a failure."""

_SINGULAR: Final = {"configmaps": "configmap", "secrets": "secret"}
"""As the kubelet's messages name them."""

Key = tuple[str, str, str]
"""Plural of the resource, namespace, name."""

log = get_logger("cluster")


@attrs.define
class _Entry(Generic[T]):
    """One ConfigMap or Secret. Times are Trio's."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    obj: T | None = attrs.field(default=None, repr=False)
    error: ObjectError | None = None
    """Why the last attempt failed."""
    attempts: int = 0
    """How many have begun."""
    answered: int = 0
    """Which of them was the last to bring an answer or an error."""
    read_at: float = float("-inf")
    """When the attempt that `obj` comes from began."""
    stale_before: float = float("-inf")
    """What was read earlier than this has to be read again."""

    def fresh(self, now: float, ttl: float) -> bool:
        return self.obj is not None and self.read_at >= self.stale_before and now - self.read_at < ttl


class ClusterObjects:
    """An ObjectGetter and ServiceAccounts. The stores are kept current by others."""

    def __init__(
        self,
        client: ApiClient,
        *,
        pods: ObjectStore[Pod],
        services: ObjectStore[Service],
        runtime_classes: ObjectStore[RuntimeClass],
        node: Callable[[], Node | None],
        clock: WallClock,
        rng: random.Random,
    ) -> None:
        """`node` is the node's object, None while it is not known."""
        self._client = client
        self._pods = pods
        self._services = services
        self._runtime_classes = runtime_classes
        self._node = node
        self._entries: dict[Key, _Entry[Any]] = {}
        self._pruned_at = float("-inf")
        self.tokens = Tokens(client, clock=clock, rng=rng)
        pods.subscribe(self._pod_changed)

    async def secret(self, namespace: str, name: str) -> Secret:
        """Cancellable, as `config_map`; who waits for the same secret then makes the request himself."""
        return await self._cached(SECRETS, namespace, name)

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        return await self._cached(CONFIG_MAPS, namespace, name)

    async def runtime_handler(self, class_name: str) -> str:
        if not class_name:
            return ""
        if not await _synced_soon(self._runtime_classes):
            raise ObjectError(
                f"failed to lookup RuntimeClass {class_name}: RuntimeClasses have not yet been read", "unavailable"
            )
        found = self._runtime_classes.get(class_name)
        if found is None:
            raise ObjectError(f'runtimeclass.node.k8s.io "{class_name}" not found', "not found")
        return found.handler

    async def service_variables(self, pod: Pod) -> Mapping[str, str]:
        """Static pods are told of the services that are known; they must start without an API server."""
        if pod.spec.enable_service_links is None:
            raise ObjectError("nil pod.spec.enableServiceLinks encountered, cannot construct envvars", "unavailable")
        if not is_static_pod(pod) and not await _synced_soon(self._services):
            raise ObjectError("services have not yet been read at least once, cannot construct envvars", "unavailable")
        return service_variables(self._services.values(), pod.metadata.namespace, links=pod.spec.enable_service_links)

    async def service_account(self, namespace: str, name: str) -> ObjectMeta:
        try:
            account = await self._client.get(SERVICE_ACCOUNTS, name, namespace)
        except ApiStatusError as error:
            raise ObjectError(error.message, "not found" if error.not_found else "unavailable") from error
        except ApiError as error:
            raise ObjectError(str(error), "unavailable") from error
        return account.metadata

    async def service_account_token(self, pod: Pod, audience: str, *, account_uid: str = "") -> str:
        metadata = pod.metadata
        key = TokenKey(
            metadata.namespace,
            pod.spec.service_account_name,
            (audience,),
            bound=BoundPod(metadata.name, metadata.uid),
            account_uid=account_uid,
        )
        try:
            token = await self.tokens.get(key)
        except TokenError as error:
            raise ObjectError(error.message, "unavailable") from error
        return token.status.token

    async def _cached(self, resource: Resource[T], namespace: str, name: str) -> T:
        key = (resource.plural, namespace, name)
        if key not in self._entries:
            self._prune(trio.current_time())
        entry: _Entry[T] = self._entries.setdefault(key, _Entry())
        attempts = entry.attempts
        async with entry.lock:
            # Somebody may have begun to ask while this one waited: that answer is new enough, a failure too.
            if not entry.fresh(trio.current_time(), self._ttl()) and entry.answered <= attempts:
                await self._fetch(entry, resource, namespace, name)
        if entry.obj is None:
            raise entry.error or ObjectError(f"cannot get {resource} {namespace}/{name}", "unavailable")
        return entry.obj

    async def _fetch(self, entry: _Entry[T], resource: Resource[T], namespace: str, name: str) -> None:
        kind = _SINGULAR[resource.plural]
        entry.error = None
        entry.attempts += 1
        attempt, began = entry.attempts, trio.current_time()
        try:
            entry.obj = await self._client.get(resource, name, namespace)
            entry.read_at = began
        except ApiError as error:
            if isinstance(error, ApiStatusError) and error.not_found:
                entry.obj = None
                entry.error = ObjectError(f'{kind} "{name}" not found', "not found")
            else:
                entry.error = ObjectError(f"failed to sync {kind} cache: {error}", "unavailable")
                if entry.obj is not None:
                    log.warning(f"using an old {kind}", name=name, namespace=namespace, problem=str(error))
        entry.answered = attempt

    def _ttl(self) -> float:
        node = self._node()
        text = "" if node is None else node.metadata.annotations.get(TTL_ANNOTATION, "")
        return float(text) if text.isascii() and text.isdecimal() else DEFAULT_TTL

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self.tokens.forget_pod(old.metadata.uid)
            return
        if old is not None and old.spec == new.spec:
            return
        now = trio.current_time()
        for key in _named_by(new):
            if key in self._entries:
                self._entries[key].stale_before = now

    def _prune(self, now: float) -> None:
        if now - self._pruned_at < PRUNE_SECONDS:
            return
        self._pruned_at = now
        named = {key for pod in self._pods.values() for key in _named_by(pod)}
        ttl = self._ttl()
        for key, entry in list(self._entries.items()):
            if key not in named and not entry.fresh(now, ttl) and not entry.lock.locked():
                del self._entries[key]


def _named_by(pod: Pod) -> Iterator[Key]:
    """What the pod's containers and pulls ask for. Volumes have their own way to their objects."""
    namespace = pod.metadata.namespace
    for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers):
        yield from (("configmaps", namespace, name) for name in config_map_names(container))
        yield from (("secrets", namespace, name) for name in secret_names(container))
    yield from (("secrets", namespace, reference.name) for reference in pod.spec.image_pull_secrets)


async def _synced_soon(store: ObjectStore[Any]) -> bool:
    if not store.synced:
        with trio.move_on_after(FIRST_SYNC_SECONDS):
            await store.wait_synced()
    return store.synced
