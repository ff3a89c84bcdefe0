"""Service accounts for plugins: a plugin may ask for a token of the pod's account instead of keys of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.formats.digests import sha256
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.runtime.images.credentials.keyring import Source
from trikubelet.runtime.images.credentials.plugin_config import CACHE_BY_TOKEN
from trikubelet.runtime.images.credentials.plugin_protocol import PluginError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.api import ObjectMeta, Pod
    from trikubelet.runtime.images.credentials.plugin_config import TokenAttributes

log = get_logger("credentials")


class ServiceAccounts(Protocol):
    """Looks up service accounts. Each raises ObjectError."""

    async def service_account(self, namespace: str, name: str) -> ObjectMeta: ...

    async def service_account_token(self, pod: Pod, audience: str, *, account_uid: str = "") -> str:
        """A token of the pod's service account, bound to the pod; with `account_uid` of that account only.

        An account that was deleted and made again has the same name, but not the right to what the old one had.
        """
        ...


class NoServiceAccounts:
    """The answers of a node without an API server."""

    async def service_account(self, namespace: str, name: str) -> ObjectMeta:
        raise _STANDALONE

    async def service_account_token(self, pod: Pod, audience: str, *, account_uid: str = "") -> str:
        raise _STANDALONE


_STANDALONE: Final = ObjectError("cannot get ServiceAccounts when kubelet is in standalone mode", "no client")


@frozen
class AccountAccess:
    """The account that a plugin is asked for, and its token."""

    token: str = attrs.field(default="", repr=False)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    source: Source | None = None
    cache_key: tuple[object, ...] = ()
    """Answers for one account are not given to another."""

    @property
    def token_hash(self) -> str:
        return sha256(self.token.encode()).hexdigest() if self.token else ""


NODE: Final = AccountAccess()
"""No account: for the node itself."""


async def account_access(tokens: TokenAttributes, accounts: ServiceAccounts, pod: Pod) -> AccountAccess | None:
    """The account to ask a plugin for that works with tokens; None: do not ask it. Raises PluginError.

    A pod without an account, a static one say, may do without a token where the plugin says so. Annotations that a
    plugin requires are how accounts agree to be used; without them it is not told of the account.
    """
    namespace, name = pod.metadata.namespace, pod.spec.service_account_name
    if not name:
        return None if tokens.require_account else NODE
    try:
        account = await accounts.service_account(namespace, name)
    except ObjectError as error:
        raise PluginError(f"failed to get service account: {error}") from error
    for key in tokens.required_annotations:
        if key not in account.annotations:
            log.debug("a service account lacks an annotation", account=name, pod=pod.full_name, annotation=key)
            return None
    try:
        token = await accounts.service_account_token(pod, tokens.audience, account_uid=account.uid)
    except ObjectError as error:
        raise PluginError(f"failed to get service account token: {error}") from error
    wanted = (*tokens.required_annotations, *tokens.optional_annotations)
    annotations = {key: account.annotations[key] for key in wanted if key in account.annotations}
    access = AccountAccess(token, annotations, Source("service account", account.uid, namespace, name))
    by_token = (access.token_hash,) if tokens.cache_type == CACHE_BY_TOKEN else ()
    return attrs.evolve(access, cache_key=(access.source, *sorted(annotations.items()), by_token))
