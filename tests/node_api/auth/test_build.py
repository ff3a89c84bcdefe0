from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.node_api.auth.people import ReviewServer, authority, client, request
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import (
    AnonymousAuthentication,
    Authentication,
    Authorization,
    KubeletConfiguration,
    WebhookAuthentication,
    X509Authentication,
)
from trikubelet.http.messages import AnyResponse, Request, Response
from trikubelet.kube_client.types import ApiClient, RateLimit
from trikubelet.node_api.auth.authorization import AlwaysAllow
from trikubelet.node_api.auth.build import NodeAuth, build_auth
from trikubelet.node_api.auth.errors import AuthConfigurationError
from trikubelet.node_api.auth.reviews import SubjectAccessReviewStatus, UserInfo

if TYPE_CHECKING:
    from pathlib import Path

NO_WEBHOOK = WebhookAuthentication(enabled=False)
ALWAYS = Authorization(mode="AlwaysAllow")


def built(
    api: ApiClient | None = None,
    *,
    authentication: Authentication | None = None,
    authorization: Authorization | None = None,
) -> NodeAuth:
    configuration = KubeletConfiguration()
    if authentication is not None:
        configuration = attrs.evolve(configuration, authentication=authentication)
    if authorization is not None:
        configuration = attrs.evolve(configuration, authorization=authorization)
    return build_auth(configuration, api, "node-a", clock=TrioClock())


def trusting(folder: Path, content: bytes) -> Authentication:
    path = folder / "ca.pem"
    path.write_bytes(content)
    return Authentication(x509=X509Authentication(client_ca_file=str(path)))


async def served(auth: NodeAuth, asked: Request) -> int:
    async def handler(_: Request) -> AnyResponse:
        return Response(b"served")

    response = await auth.guard(handler)(asked)
    assert isinstance(response, Response)
    return response.status


def test_without_an_api_server_the_defaults_cannot_be() -> None:
    with pytest.raises(AuthConfigurationError, match="no client provided, cannot use webhook authentication") as caught:
        built()
    assert caught.value.field == "authentication.webhook.enabled"
    with pytest.raises(AuthConfigurationError, match="no client provided, cannot use webhook authorization") as caught:
        built(authentication=Authentication(webhook=NO_WEBHOOK))
    assert caught.value.field == "authorization.mode"


@pytest.mark.parametrize(
    ("mode", "words"), [("", "no authorization mode specified"), ("RBAC", "unknown authorization mode RBAC")]
)
def test_a_mode_that_is_none_is_refused(mode: str, words: str) -> None:
    with pytest.raises(AuthConfigurationError, match=words):
        built(ReviewServer().client, authorization=Authorization(mode=mode))


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_client_ca_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(AuthConfigurationError, match=r"ca\.pem"):
        built(ReviewServer().client, authentication=trusting(tmp_path, content))


async def test_without_an_api_server_certificates_and_always_allow_are_enough(tmp_path: Path) -> None:
    authentication = attrs.evolve(trusting(tmp_path, authority().pem), webhook=NO_WEBHOOK)
    auth = built(authentication=authentication, authorization=ALWAYS)
    assert isinstance(auth.authorizer, AlwaysAllow)
    assert await served(auth, request(certificates=[client()])) == 200
    assert await served(auth, request(certificates=[client(by=authority("others"))])) == 401
    assert await served(auth, request(token="good")) == 401
    assert await served(auth, request()) == 401


async def test_with_no_way_to_be_somebody_nobody_is_let_in() -> None:
    auth = built(authentication=Authentication(webhook=NO_WEBHOOK), authorization=ALWAYS)
    assert auth.client_ca is None
    assert await served(auth, request()) == 401
    assert await served(auth, request(certificates=[client()])) == 401


async def test_anonymous_has_to_be_switched_on() -> None:
    anonymous = AnonymousAuthentication(enabled=True)
    auth = built(authentication=Authentication(webhook=NO_WEBHOOK, anonymous=anonymous), authorization=ALWAYS)
    assert await served(auth, request()) == 200


async def test_the_webhooks_have_their_own_limits_and_the_configured_times(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    server.tokens["good"] = UserInfo("ann")
    webhook = WebhookAuthentication(cache_ttl=timedelta(seconds=7))
    auth = built(server.client, authentication=Authentication(webhook=webhook))
    assert server.limit == RateLimit(50, 100)
    assert await served(auth, request(token="good")) == 401  # nothing can be asked yet
    await nursery.start(auth.run)
    server.answer_access = SubjectAccessReviewStatus(allowed=True)
    assert await served(auth, request(token="good")) == 200
    await trio.sleep(7)
    server.tokens.clear()
    assert await served(auth, request(token="good")) == 401
    kinds = [review.kind for review in server.asked]
    assert kinds == ["TokenReview", "SubjectAccessReview", "TokenReview"]
    assert auth.tokens is not None
    assert auth.tokens.statistics().codes == {"201": 2}
