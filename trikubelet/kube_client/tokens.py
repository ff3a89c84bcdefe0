"""Tokens of service accounts, each fetched once and again before it ends (kubelet: `token.Manager`).

A token that is still good is used when no newer one can be had: a server that is away for a while stops no pod that has
its token already.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import BoundObjectReference, ObjectMeta, TokenRequest, TokenRequestSpec
from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.errors import ApiError
from trikubelet.kube_client.types import SERVICE_ACCOUNTS, Urgency
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.types import ApiClient

LONGEST_USE: Final = timedelta(hours=24)
"""Tokens are replaced at this age however long they are good for."""
LAST_SHARE: Final = 0.2
"""Of a token's life; when it begins, a new one is fetched."""
JITTER: Final = 10.0
"""Seconds that a refresh comes earlier, at most, so that tokens of one age are not all replaced at once."""
RETRY: Final = timedelta(seconds=30)
"""After this, a caller that waits for a failed renewal makes its own request."""
PRUNE_SECONDS: Final = 60.0

log = get_logger("cluster")


@frozen
class TokenError(Exception):
    """There is no token."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class BoundPod:
    """The pod with which a token ends."""

    name: str
    uid: str

    def reference(self) -> BoundObjectReference:
        return BoundObjectReference(kind="Pod", api_version="v1", name=self.name, uid=self.uid)


@frozen
class TokenKey:
    """What a token is for. May be shown in logs."""

    namespace: str
    account: str
    audiences: tuple[str, ...] = ()
    """Empty: the API server's own."""
    expiration_seconds: int | None = None
    """None: the server's choice, an hour."""
    bound: BoundPod | None = None
    account_uid: str = ""
    """If given, only a token of the account with this UID will do."""

    def request(self) -> TokenRequest:
        bound = None if self.bound is None else self.bound.reference()
        spec = TokenRequestSpec(self.audiences, self.expiration_seconds, bound)
        return TokenRequest(metadata=ObjectMeta(uid=self.account_uid), spec=spec)

    def __str__(self) -> str:
        bound = "" if self.bound is None else f" bound to Pod {self.bound.name} ({self.bound.uid})"
        audiences = f" for {', '.join(self.audiences)}" if self.audiences else ""
        return f"{self.namespace}/{self.account}{audiences}{bound}"


def expired(token: TokenRequest, now: datetime) -> bool:
    """Whether the token is no longer accepted."""
    end = token.status.expiration_timestamp
    return end is not None and now > end


def renew_at(token: TokenRequest, jitter: float) -> datetime | None:
    """From when on a newer token should be used; `jitter` in seconds, up to JITTER.

    None for a token whose life is unknown, which is used on: the server always says it.
    """
    end, seconds = token.status.expiration_timestamp, token.spec.expiration_seconds
    if end is None or seconds is None:
        log.error("the API server did not say how long a token is good for", audiences=token.spec.audiences)
        return None
    issued = end - timedelta(seconds=seconds)
    last_share = timedelta(seconds=int(seconds * LAST_SHARE))
    return min(issued + LONGEST_USE, end - last_share) - timedelta(seconds=jitter)


def requires_refresh(token: TokenRequest, now: datetime, jitter: float) -> bool:
    """Whether `renew_at` is over."""
    due = renew_at(token, jitter)
    return due is not None and now >= due


@define
class _Entry:
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    token: TokenRequest | None = attrs.field(default=None, repr=False)
    jitter: float = 0.0
    """Seconds; the token's own, so that a timer for its renewal finds it due."""
    renewal_failed: datetime | None = None
    """When it was last tried in vain."""

    def take(self, token: TokenRequest, jitter: float) -> None:
        self.token, self.jitter, self.renewal_failed = token, jitter, None


class Tokens:
    """Fetches tokens and keeps them while they are good."""

    def __init__(self, client: ApiClient, *, clock: WallClock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._entries: dict[TokenKey, _Entry] = {}
        self._pruned_at = float("-inf")

    async def get(self, key: TokenKey) -> TokenRequest:
        """A token for `key`, with when it ends; raises TokenError.

        Callers that want the same token at the same time share one request. Cancelling one cancels only its own wait:
        the next one makes the request.
        """
        entry = self._entries.setdefault(key, _Entry())
        async with entry.lock:
            known = entry.token
            if known is not None and not requires_refresh(known, self._clock.now(), entry.jitter):
                return known
            try:
                fresh = await self._client.create_subresource(
                    SERVICE_ACCOUNTS, key.account, key.namespace, "token", key.request(), urgency=Urgency.URGENT
                )
            except ApiError as error:
                if known is None:
                    raise TokenError(f"failed to fetch token: {error}") from error
                if expired(known, self._clock.now()):
                    raise TokenError(f"token {key} expired and refresh failed: {error}") from error
                log.warning("a token could not be renewed; using the old one", token=str(key), problem=str(error))
                entry.renewal_failed = self._clock.now()
                return known
            finally:
                self._prune()
            entry.take(fresh, self._rng.random() * JITTER)
            return fresh

    def renew_at(self, key: TokenKey) -> datetime | None:
        """When it is worth to `get` the token again: it is due then, or another attempt to renew it is.

        None when no token is kept, or one whose life is unknown.
        """
        entry = self._entries.get(key)
        if entry is None or entry.token is None:
            return None
        due = renew_at(entry.token, entry.jitter)
        if due is not None and entry.renewal_failed is not None:
            return max(due, entry.renewal_failed + RETRY)
        return due

    def forget_pod(self, uid: str) -> None:
        """Drop the tokens that are bound to a pod, which end with it."""
        for key in [key for key in self._entries if key.bound is not None and key.bound.uid == uid]:
            del self._entries[key]

    @property
    def kept(self) -> int:
        """How many tokens are kept."""
        return sum(entry.token is not None for entry in self._entries.values())

    def _prune(self) -> None:
        """Drop tokens that have ended, and the places of those that could not be had."""
        now = trio.current_time()
        if now - self._pruned_at < PRUNE_SECONDS:
            return
        self._pruned_at = now
        today = self._clock.now()
        for key, entry in list(self._entries.items()):
            over = entry.token is None or expired(entry.token, today)
            if over and not entry.lock.locked():
                del self._entries[key]
