"""Bearer tokens: in the Authorization header, or as a WebSocket subprotocol where a browser cannot send headers.

The API server says whose token it is. Good answers, and plain refusals, are kept for a while (`cacheTTL`), under a
keyed hash: the tokens themselves are in memory no longer than their request. A refusal with a reason is not kept, as by
the kubelet (`cacheErrs` is false there); API servers give a reason for every bad token, so in effect only good ones
are. A token that ends is therefore taken until its entry ends, by default two minutes.

Facts from `k8s.io/apiserver`: `request/bearertoken`, `request/websocket`, `token/cache`, `authenticator/token/webhook`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.messages import Request, User
from trikubelet.node_api.auth.expiring import ExpiringCache
from trikubelet.node_api.auth.reviews import TOKEN_REVIEWS, ReviewError, TokenReview, TokenReviewSpec
from trikubelet.node_api.auth.sharing import SharedLookups
from trikubelet.node_api.auth.union import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.node_api.auth.reviews import Reviewer

CACHED_TOKENS: Final = 4096
BEARER_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."
"""Begins a WebSocket subprotocol whose rest is a token in base64url without padding."""

_AUTHORIZATION: Final = "authorization"
_PROTOCOLS: Final = "sec-websocket-protocol"
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_INVALID: Final = "invalid bearer token"


class BearerTokens:
    """Tokens in the Authorization header."""

    def __init__(self, tokens: ReviewedTokens) -> None:
        self._tokens = tokens

    async def authenticate(self, request: Request) -> User | None:
        token = bearer_token(request)
        return await self._tokens.user_of(token) if token else None


class ProtocolTokens:
    """Tokens among the subprotocols of a WebSocket."""

    def __init__(self, tokens: ReviewedTokens) -> None:
        self._tokens = tokens

    async def authenticate(self, request: Request) -> User | None:
        token = protocol_token(request)
        return await self._tokens.user_of(token) if token else None


@frozen
class TokenStatistics:
    cached: int
    hits: int
    misses: int
    """Lookups that were begun or shared."""
    in_flight: int
    codes: dict[str, int]
    """TokenReviews by HTTP status, or `<error>`."""


@frozen
class _Verdict:
    """What is kept of an answer."""

    user: User | None


class ReviewedTokens:
    """Asks the API server by TokenReview, and remembers. `run` it."""

    def __init__(self, reviewer: Reviewer, *, ttl: float, capacity: int = CACHED_TOKENS) -> None:
        """`ttl` in seconds; 0: nothing is remembered."""
        self._reviewer = reviewer
        self._ttl = ttl
        self._secret = secrets.token_bytes(32)
        self._cache: ExpiringCache[_Verdict] = ExpiringCache(capacity)
        self._lookups: SharedLookups[_Verdict] = SharedLookups()
        self._codes: Counter[str] = Counter()
        self._hits = self._misses = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the place where questions are asked, until cancelled."""
        await self._lookups.run(task_status=task_status)

    def statistics(self) -> TokenStatistics:
        return TokenStatistics(len(self._cache), self._hits, self._misses, len(self._lookups), dict(self._codes))

    async def user_of(self, token: str) -> User:
        if not token.isascii():
            raise AuthenticationError(_INVALID)
        key = hmac.digest(self._secret, token.encode(), hashlib.sha256)
        verdict = self._cache.get(key, trio.current_time())
        if verdict is not None:
            self._hits += 1
        else:
            self._misses += 1
            try:
                verdict = await self._lookups.get(key, lambda: self._review(token, key))
            except ReviewError as error:
                raise AuthenticationError(error.message) from None
        if verdict.user is None:
            raise AuthenticationError(_INVALID)
        return verdict.user

    async def _review(self, token: str, key: bytes) -> _Verdict:
        question = TokenReview(spec=TokenReviewSpec(token))
        status = (await self._reviewer.ask(TOKEN_REVIEWS, question, self._codes)).status
        user = None
        if status.authenticated:
            named = status.user
            if not named.username:
                raise ReviewError("the API server takes the token for good, but does not say whose it is")
            user = User(named.username, named.uid, named.groups, named.extra)
        elif status.error:
            raise ReviewError(status.error)
        verdict = _Verdict(user)
        self._cache.put(key, verdict, trio.current_time(), self._ttl)
        return verdict


def bearer_token(request: Request) -> str:
    """The token in the Authorization header (the first one); empty when there is none."""
    header = next(_values(request, _AUTHORIZATION), "").strip(" \t")
    scheme, *rest = header.split(" ", 2)
    return rest[0] if rest and scheme.lower() == "bearer" else ""


def protocol_token(request: Request) -> str:
    """The token among the subprotocols of a WebSocket request; empty when there is none.

    Raises AuthenticationError for more than one, for one that cannot be read, and for one that stands alone: the answer
    has to name a subprotocol, and must not name that one.
    """
    if not _is_websocket(request):
        return ""
    others, encoded = _split_protocols(request)
    if not encoded:
        return ""
    if len(encoded) > 1:
        raise AuthenticationError("multiple bearer tokens among the WebSocket subprotocols")
    token = _decoded(encoded[0])
    if token and not others:
        raise AuthenticationError("expected another WebSocket subprotocol beside that of the bearer token")
    return token


def without_credentials(request: Request) -> Request:
    """The request without what it proved itself with, so that no handler passes that on to a container runtime.

    The kubelet removes the token that it took, and only that. Several headers with subprotocols become one.
    """
    others, encoded = _split_protocols(request)
    dropped = {_AUTHORIZATION} if _AUTHORIZATION in request.headers else set()
    if encoded:
        dropped.add(_PROTOCOLS)
    if not dropped:
        return request
    headers = {name: value for name, value in request.headers.items() if name not in dropped}
    raw = [(name, value) for name, value in request.raw_headers if name not in dropped]
    if encoded and others:
        headers[_PROTOCOLS] = ", ".join(others)
        raw.append((_PROTOCOLS, headers[_PROTOCOLS]))
    return attrs.evolve(request, headers=headers, raw_headers=tuple(raw))


def _split_protocols(request: Request) -> tuple[list[str], list[str]]:
    """The subprotocols offered, and the tokens among them, still encoded."""
    offered = [word.strip() for value in _values(request, _PROTOCOLS) for word in value.split(",")]
    tokens = [word.removeprefix(BEARER_PROTOCOL) for word in offered if word.startswith(BEARER_PROTOCOL)]
    return [word for word in offered if word and not word.startswith(BEARER_PROTOCOL)], tokens


def _decoded(text: str) -> str:
    if not _BASE64URL.fullmatch(text) or len(text) % 4 == 1:
        raise AuthenticationError("the bearer token among the WebSocket subprotocols is not base64url without padding")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except UnicodeDecodeError:
        raise AuthenticationError(_INVALID) from None


def _is_websocket(request: Request) -> bool:
    options = [word.strip().lower() for value in _values(request, "connection") for word in value.split(",")]
    upgrades = [value.strip().lower() for value in _values(request, "upgrade")]
    return "upgrade" in options and "websocket" in upgrades


def _values(request: Request, name: str) -> Iterator[str]:
    """Every value of a header field, in order."""
    if request.raw_headers:
        yield from (value for field, value in request.raw_headers if field == name)
    elif name in request.headers:
        yield request.headers[name]
