"""May this user do that? The API server knows, by SubjectAccessReview, and its answers are kept for a while.

Facts from `k8s.io/apiserver/plugin/pkg/authorizer/webhook`: grants are kept for five minutes and refusals for half a
minute by default, so that a new right works soon and a withdrawn one ends; 8192 answers; none to a question that the
client made longer than 10,000 characters. No answer is an error, and errors are not kept: without the API server only
what is remembered goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trikubelet.api import to_dict
from trikubelet.formats.values import frozen
from trikubelet.node_api.auth.attributes import API_VERSION, RESOURCE, Attributes
from trikubelet.node_api.auth.expiring import ExpiringCache
from trikubelet.node_api.auth.reviews import (
    ACCESS_REVIEWS,
    ResourceAttributes,
    ReviewError,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
)
from trikubelet.node_api.auth.sharing import SharedLookups

if TYPE_CHECKING:
    from trikubelet.http.messages import User
    from trikubelet.node_api.auth.reviews import Reviewer

CACHED_ANSWERS: Final = 8192
LONGEST_CACHED: Final = 10_000


@frozen
class AuthorizationError(Exception):
    """Whether it is allowed cannot be decided. For the agent's log."""

    message: str

    def __str__(self) -> str:
        return self.message


class Authorizer(Protocol):
    """Decides what a user may do."""

    async def allows(self, user: User, attributes: Attributes) -> bool:
        """Whether it is allowed. Raises AuthorizationError when that cannot be decided. Takes bounded time."""
        ...


class AlwaysAllow:
    """Every authenticated user may do everything: `authorization.mode: AlwaysAllow`."""

    async def allows(self, user: User, attributes: Attributes) -> bool:
        return True


@frozen
class AccessStatistics:
    cached: int
    hits: int
    misses: int
    in_flight: int
    codes: dict[str, int]
    """SubjectAccessReviews by HTTP status, or `<error>`."""


class ReviewedAccess:
    """Asks the API server, and remembers. `run` it."""

    def __init__(
        self, reviewer: Reviewer, *, allowed_ttl: float, denied_ttl: float, capacity: int = CACHED_ANSWERS
    ) -> None:
        """How long answers are kept is in seconds; 0: not at all."""
        self._reviewer = reviewer
        self._ttls = {True: allowed_ttl, False: denied_ttl}
        self._cache: ExpiringCache[SubjectAccessReviewStatus] = ExpiringCache(capacity)
        self._lookups: SharedLookups[SubjectAccessReviewStatus] = SharedLookups()
        self._codes: Counter[str] = Counter()
        self._hits = self._misses = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the place where questions are asked, until cancelled."""
        await self._lookups.run(task_status=task_status)

    def statistics(self) -> AccessStatistics:
        return AccessStatistics(len(self._cache), self._hits, self._misses, len(self._lookups), dict(self._codes))

    async def allows(self, user: User, attributes: Attributes) -> bool:
        review = _question(user, attributes)
        key = hashlib.sha256(json.dumps(to_dict(review), sort_keys=True).encode()).digest()
        status = self._cache.get(key, trio.current_time())
        if status is not None:
            self._hits += 1
        else:
            self._misses += 1
            keep = attributes.size < LONGEST_CACHED
            try:
                status = await self._lookups.get(key, lambda: self._review(review, key, keep=keep))
            except ReviewError as error:
                raise AuthorizationError(error.message) from None
        if status.allowed and status.denied:
            raise AuthorizationError("the API server both allows and denies it")
        return status.allowed

    async def _review(self, review: SubjectAccessReview, key: bytes, *, keep: bool) -> SubjectAccessReviewStatus:
        status = (await self._reviewer.ask(ACCESS_REVIEWS, review, self._codes)).status
        if keep:
            # Not the reasons: they are the server's, and as long as it likes.
            kept = SubjectAccessReviewStatus(allowed=status.allowed, denied=status.denied)
            self._cache.put(key, kept, trio.current_time(), self._ttls[status.allowed])
        return status


def _question(user: User, attributes: Attributes) -> SubjectAccessReview:
    what = ResourceAttributes(
        verb=attributes.verb,
        version=API_VERSION,
        resource=RESOURCE,
        subresource=attributes.subresource,
        name=attributes.node_name,
    )
    extra = {name: tuple(values) for name, values in user.extra.items()}
    return SubjectAccessReview(
        spec=SubjectAccessReviewSpec(what, user=user.name, groups=user.groups, extra=extra, uid=user.uid)
    )
