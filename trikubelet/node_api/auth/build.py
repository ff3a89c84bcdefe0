"""From a KubeletConfiguration to the guard of the node's port (kubelet: `BuildAuth` in cmd/kubelet/app/auth.go)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from trikubelet.formats.values import frozen
from trikubelet.kube_client.rate_limit import configured_limit
from trikubelet.node_api.auth.authorization import AlwaysAllow, Authorizer, ReviewedAccess
from trikubelet.node_api.auth.certificates import ClientCertificates
from trikubelet.node_api.auth.client_ca import ClientCA, ClientCAError
from trikubelet.node_api.auth.errors import AuthConfigurationError, check_without_api_server
from trikubelet.node_api.auth.guard import Guarded
from trikubelet.node_api.auth.reviews import Reviewer
from trikubelet.node_api.auth.tokens import BearerTokens, ProtocolTokens, ReviewedTokens
from trikubelet.node_api.auth.union import Authenticator, Union
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    import random

    from trikubelet.clock import WallClock
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.http.messages import Handler
    from trikubelet.kube_client.types import ApiClient


@frozen
class NodeAuth:
    """All that the node's port needs to know of users. `run` it as long as the port is served."""

    node_name: str
    authenticator: Authenticator
    authorizer: Authorizer
    client_ca: ClientCA | None
    """For TLS: which certificates to ask clients for. None: ask for none."""
    certificates: ClientCertificates | None = None
    tokens: ReviewedTokens | None = None
    access: ReviewedAccess | None = None

    def guard(self, handler: Handler) -> Guarded:
        """`handler` behind authentication and authorization."""
        return Guarded(handler, self.authenticator, self.authorizer, self.node_name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask the API server, and follow the client CA file, until cancelled."""
        async with trio.open_nursery() as nursery:
            for part in (self.client_ca, self.tokens, self.access):
                if part is not None:
                    await nursery.start(supervise, part.run)
            task_status.started()


def build_auth(
    configuration: KubeletConfiguration,
    client: ApiClient | None,
    node_name: str,
    *,
    clock: WallClock,
    rng: random.Random | None = None,
) -> NodeAuth:
    """Reads the client CA file. `client` is None where there is no API server.

    Raises AuthConfigurationError where the kubelet does not start either: webhooks without an API server, an unknown
    mode, a client CA file that is none.
    """
    reviewer = None
    if client is not None:
        limit = configured_limit(configuration.kube_api_qps, configuration.kube_api_burst)
        reviewer = Reviewer(client, limit=limit, rng=rng)
    client_ca = _client_ca(configuration)
    if client is None:
        check_without_api_server(configuration)
    certificates = None if client_ca is None else ClientCertificates(client_ca, clock=clock)
    tokens = _tokens(configuration, reviewer)
    authorizer = _authorizer(configuration, reviewer)
    authenticators: list[Authenticator] = [] if certificates is None else [certificates]
    if tokens is not None:
        authenticators += [BearerTokens(tokens), ProtocolTokens(tokens)]
    return NodeAuth(
        node_name,
        Union(authenticators, anonymous=configuration.authentication.anonymous.enabled),
        authorizer,
        client_ca,
        certificates,
        tokens,
        authorizer if isinstance(authorizer, ReviewedAccess) else None,
    )


def _client_ca(configuration: KubeletConfiguration) -> ClientCA | None:
    path = configuration.authentication.x509.client_ca_file
    if not path:
        return None
    try:
        return ClientCA(Path(path))
    except ClientCAError as error:
        advice = "name a file with PEM certificates, or leave the field empty for no client certificates"
        raise AuthConfigurationError("authentication.x509.clientCAFile", str(error), advice) from None


def _tokens(configuration: KubeletConfiguration, reviewer: Reviewer | None) -> ReviewedTokens | None:
    webhook = configuration.authentication.webhook
    if not webhook.enabled:
        return None
    assert reviewer is not None
    return ReviewedTokens(reviewer, ttl=webhook.cache_ttl.total_seconds())


def _authorizer(configuration: KubeletConfiguration, reviewer: Reviewer | None) -> Authorizer:
    authorization = configuration.authorization
    if authorization.mode == "AlwaysAllow":
        return AlwaysAllow()
    if authorization.mode != "Webhook":
        problem = f"unknown authorization mode {authorization.mode}" if authorization.mode else ""
        raise AuthConfigurationError(
            "authorization.mode", problem or "no authorization mode specified", "expected Webhook or AlwaysAllow"
        )
    assert reviewer is not None
    webhook = authorization.webhook
    return ReviewedAccess(
        reviewer,
        allowed_ttl=webhook.cache_authorized_ttl.total_seconds(),
        denied_ttl=webhook.cache_unauthorized_ttl.total_seconds(),
    )
