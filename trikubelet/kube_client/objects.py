"""The objects that pods refer to, from the API server: the node's side of `kube_client.object_getter` and
`credentials.accounts`.

Services and RuntimeClasses are watched, all of them, so looking them up never waits for the server. ConfigMaps and
Secrets are those that volumes read too (`pod_objects.py`): a variable and a file that come from one object agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.api.service_environment import service_variables
from trikubelet.kube_client.object_getter import ObjectError, look_up
from trikubelet.kube_client.tokens import BoundPod, TokenError, TokenKey
from trikubelet.kube_client.types import SERVICE_ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import ConfigMap, ObjectMeta, Pod, RuntimeClass, Secret, Service
    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.tokens import Tokens
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.kube_client.volume_objects import WatchedObjects

FIRST_SYNC_SECONDS: Final = 2.0
"""How long a pod waits for services or RuntimeClasses that have not been read yet. They are read at the same time as
the pods, so a moment is enough, and saves the pod a failure."""


class ClusterObjects:
    """An ObjectGetter and ServiceAccounts. The stores are kept current by others."""

    def __init__(
        self,
        client: ApiClient,
        *,
        watched: WatchedObjects,
        tokens: Tokens,
        pods: Store[Pod],
        services: Store[Service],
        runtime_classes: Store[RuntimeClass],
    ) -> None:
        self._client = client
        self._watched = watched
        self._services = services
        self._runtime_classes = runtime_classes
        self.tokens = tokens
        pods.subscribe(self._pod_changed)

    async def secret(self, namespace: str, name: str) -> Secret:
        """Cancellable, as `config_map`."""
        return await self._watched.secret(namespace, name)

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        return await self._watched.config_map(namespace, name)

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
        """Static pods get the services that are known; they must start without an API server."""
        if pod.spec.enable_service_links is None:
            raise ObjectError("nil pod.spec.enableServiceLinks encountered, cannot construct envvars", "unavailable")
        if not is_static_pod(pod) and not await _synced_soon(self._services):
            raise ObjectError("services have not yet been read at least once, cannot construct envvars", "unavailable")
        return service_variables(self._services.values(), pod.metadata.namespace, links=pod.spec.enable_service_links)

    async def service_account(self, namespace: str, name: str) -> ObjectMeta:
        return (await look_up(self._client, SERVICE_ACCOUNTS, name, namespace)).metadata

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

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self.tokens.forget_pod(old.metadata.uid)


async def _synced_soon(store: Store[Any]) -> bool:
    if not store.synced:
        with trio.move_on_after(FIRST_SYNC_SECONDS):
            await store.wait_synced()
    return store.synced
