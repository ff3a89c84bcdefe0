"""Questions to the API server: whose token is this (TokenReview), and may they do that (SubjectAccessReview)?

A review is an object that is created and kept nowhere; the answer is its status. So it can be repeated at will, and is,
when the server had a moment's trouble: five attempts, half a second apart and then half as much more each time (as the
kubelet: `DefaultAuthWebhookRetryBackoff`, `DefaultShouldRetry`). A server that refuses connections is not waited for.

The kubelet gives a token 30 s and an access review as long as the client waits. Here both have 30 s, with 10 s for one
attempt: a server that has gone silent costs its clients no more than that. Reviews have a rate limit of their own (the
configured one), so that strangers that send tokens cannot use up what the agent has for its pods.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from trikubelet.api import KubernetesObject, ObjectMeta
from trikubelet.api.schema import REQUIRED, APIObject
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError, ApiUnreachable
from trikubelet.kube_client.types import Resource

if TYPE_CHECKING:
    from collections import Counter

    from trikubelet.kube_client.types import ApiClient, RateLimit

T = TypeVar("T", bound=KubernetesObject)

TIMEOUT: Final = 30.0
"""Seconds for a question with all its repetitions, waiting for the rate limit included."""
ATTEMPT_TIMEOUT: Final = 10.0
ATTEMPTS: Final = 5
FIRST_DELAY: Final = 0.5
FACTOR: Final = 1.5
JITTER: Final = 0.2
"""By which share of itself a delay is stretched at most."""


@frozen
class ReviewError(Exception):
    """There is no answer."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen(repr=False)
class UserInfo(APIObject):
    """Which user a token belongs to (`authentication.k8s.io/v1`)."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = attrs.field(factory=dict)


@frozen(repr=False)
class TokenReviewSpec(APIObject):
    """The token. No audiences: it is to be one for the API server, as for the kubelet."""

    token: str = attrs.field(default="", repr=False)


@frozen(repr=False)
class TokenReviewStatus(APIObject):
    """`error` says why the token could not be checked, and of most servers also why it is not good."""

    authenticated: bool = False
    user: UserInfo = attrs.field(default=UserInfo())
    error: str = ""


@frozen(repr=False)
class TokenReview(KubernetesObject):
    api_version: str = "authentication.k8s.io/v1"
    kind: str = "TokenReview"
    metadata: ObjectMeta = attrs.field(default=ObjectMeta())
    spec: TokenReviewSpec = attrs.field(default=TokenReviewSpec(), metadata=REQUIRED)
    status: TokenReviewStatus = attrs.field(default=TokenReviewStatus())


@frozen(repr=False)
class ResourceAttributes(APIObject):
    """What is to be done, to what."""

    verb: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


@frozen(repr=False)
class SubjectAccessReviewSpec(APIObject):
    """The user, and what the user wants to do."""

    resource_attributes: ResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    uid: str = ""


@frozen(repr=False)
class SubjectAccessReviewStatus(APIObject):
    """Neither `allowed` nor `denied`: no authorizer has an opinion, which is no permission."""

    allowed: bool = False
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


@frozen(repr=False)
class SubjectAccessReview(KubernetesObject):
    api_version: str = "authorization.k8s.io/v1"
    kind: str = "SubjectAccessReview"
    metadata: ObjectMeta = attrs.field(default=ObjectMeta())
    spec: SubjectAccessReviewSpec = attrs.field(default=SubjectAccessReviewSpec(), metadata=REQUIRED)
    status: SubjectAccessReviewStatus = attrs.field(default=SubjectAccessReviewStatus())


TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, TokenReview)
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, SubjectAccessReview
)


class Reviewer:
    """Asks the API server."""

    def __init__(self, client: ApiClient, *, limit: RateLimit | None, rng: random.Random | None = None) -> None:
        self._client = client.view(limit=limit, timeout=ATTEMPT_TIMEOUT)
        self._rng = random.Random() if rng is None else rng

    async def ask(self, resource: Resource[T], review: T, codes: Counter[str]) -> T:
        """The review with its status. Raises ReviewError when the server does not answer, or refuses to.

        Each attempt adds one to `codes`, by HTTP status, or by `<error>` when there was none.
        """
        failure: ApiError | None = None
        with trio.move_on_after(TIMEOUT):
            for attempt in range(ATTEMPTS):
                if attempt:
                    await trio.sleep(self._delay(attempt))
                try:
                    answer = await self._client.create(resource, review)
                except ApiError as error:
                    failure = error
                    codes[_code(error)] += 1
                    if not worth_repeating(error):
                        break
                else:
                    codes["201"] += 1
                    return answer
        raise ReviewError(f"no answer within {TIMEOUT:g} s" if failure is None else str(failure))

    def _delay(self, attempt: int) -> float:
        return FIRST_DELAY * FACTOR ** (attempt - 1) * (1 + JITTER * self._rng.random())


def worth_repeating(error: ApiError) -> bool:
    """Whether the same question may be answered in a moment."""
    if isinstance(error, ApiStatusError):
        troubled = error.reason in ("InternalError", "Timeout") or error.code in (500, 504)
        return troubled or error.too_many or error.retry_after is not None
    return isinstance(error, ApiUnreachable) and error.sent


def _code(error: ApiError) -> str:
    return str(error.code) if isinstance(error, ApiStatusError) else "<error>"
