"""What stands before every handler: no request passes without a user, or without the user's right to it.

The answers are the kubelet's (`InstallAuthFilter`), to the letter, since people search for them: 401 `Unauthorized`
whatever was wrong with the credential, 403 with the user, the verb and the subresources that would have sufficed, and
500 when that could not be decided. Several subresources are tried in order; the first that is granted suffices, and an
error in between ends it.

Clients without rights can cause any number of refusals, so the log gets at most one line of each kind a second.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.messages import AnyResponse, Handler, Request, Response, User
from trikubelet.node_api.auth.attributes import RESOURCE, Attributes, request_attributes
from trikubelet.node_api.auth.authorization import AuthorizationError
from trikubelet.node_api.auth.tokens import without_credentials
from trikubelet.node_api.auth.union import AuthenticationError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.node_api.auth.authorization import Authorizer
    from trikubelet.node_api.auth.union import Authenticator

LOG_INTERVAL: Final = 1.0
UNAUTHORIZED: Final = Response(b"Unauthorized", 401)

log = get_logger("auth")


@frozen
class GuardStatistics:
    """Requests since the start."""

    passed: int
    without_credential: int
    unauthenticated: int
    """With one that was not accepted, or could not be checked."""
    forbidden: int
    undecided: int
    """Whether they were allowed could not be decided."""
    by_attributes: dict[tuple[str, str], int]
    """How often something was allowed, by verb and the subresource that granted it."""


class Guarded:
    """A handler that lets through to `handler` what may pass, with `request.user` set and credentials removed."""

    def __init__(self, handler: Handler, authenticator: Authenticator, authorizer: Authorizer, node_name: str) -> None:
        self._handler = handler
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._node_name = node_name
        self._counts: Counter[str] = Counter()
        self._allowed: Counter[tuple[str, str]] = Counter()
        self._log = _Log()

    def statistics(self) -> GuardStatistics:
        count = self._counts
        return GuardStatistics(
            sum(self._allowed.values()),
            count["without_credential"],
            count["unauthenticated"],
            count["forbidden"],
            count["undecided"],
            dict(self._allowed),
        )

    async def __call__(self, request: Request) -> AnyResponse:
        user = await self._user_of(request)
        if user is None:
            return UNAUTHORIZED
        alternatives = request_attributes(request.method, request.path, self._node_name)
        refusal = await self._refusal(user, alternatives)
        if refusal is not None:
            return refusal
        return await self._handler(attrs.evolve(without_credentials(request), user=user))

    async def _user_of(self, request: Request) -> User | None:
        try:
            user = await self._authenticator.authenticate(request)
        except AuthenticationError as error:
            self._counts["unauthenticated"] += 1
            self._log.write(
                "request is refused, its credential is not accepted", peer=request.peer.address, why=str(error)
            )
            return None
        if user is None:
            self._counts["without_credential"] += 1
        return user

    async def _refusal(self, user: User, alternatives: tuple[Attributes, ...]) -> Response | None:
        """None when one of the alternatives is allowed."""
        for attributes in alternatives:
            asked = f"user={user.name}, verb={attributes.verb}, resource={RESOURCE}"
            try:
                allowed = await self._authorizer.allows(user, attributes)
            except AuthorizationError as error:
                self._counts["undecided"] += 1
                self._log.write(
                    "request is refused, whether it is allowed cannot be decided", asked=asked, why=str(error)
                )
                text = f"Authorization error ({asked}, subresource={attributes.subresource})"
                return Response(_bytes(text), 500)
            if allowed:
                self._allowed[attributes.verb, attributes.subresource] += 1
                return None
        names = " ".join(attributes.subresource for attributes in alternatives)
        self._counts["forbidden"] += 1
        self._log.write("request is refused, it is forbidden", asked=asked, subresources=names)
        return Response(_bytes(f"Forbidden ({asked}, subresource(s)=[{names}])\n"), 403)


class _Log:
    """At most one line of each kind in LOG_INTERVAL, with the number of those that were left out."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def write(self, event: str, **fields: object) -> None:
        now = trio.current_time()
        if now - self._last.get(event, -math.inf) < LOG_INTERVAL:
            self._left_out[event] += 1
            return
        self._last[event] = now
        left_out = self._left_out.pop(event, 0)
        log.info(event, **fields, **({"left_out": left_out} if left_out else {}))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
