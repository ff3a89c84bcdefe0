"""When a call is tried again by the client itself, and after how long. Pure.

Only two kinds of failure are hidden from callers. A server that is overloaded, or starting, says how long it wants to
be left alone (Retry-After): the client does so, since it is the same for every caller. And a connection that broke is
replaced when the call only reads, for the caller would do just that. A write whose fate is unknown is the caller's:
patches here can be repeated, and a creation that took place shows as AlreadyExists, but both need a look at the object.

Sources: client-go's rest/with_retry.go; a server without Retry-After is the caller's business there too.
"""

from __future__ import annotations

from typing import Final

from trikubelet.kube_client.errors import ApiError, ApiStatusError, ApiUnreachable

MAX_ASKED_RETRIES: Final = 10
"""How often a request is repeated because the server asked for that."""
RECONNECT_DELAYS: Final = (0.05, 0.5)
"""Seconds before each repetition of a read that got no answer; each is stretched by up to its double."""


def retry_delay(error: ApiError, attempts: int, *, reads: bool, chance: float) -> float | None:
    """Seconds to wait before the request is sent again; None when the error is the caller's.

    `attempts` counts those that failed, this one included; `chance` is random in [0, 1). `reads`: the request changes
    nothing.
    """
    if isinstance(error, ApiStatusError):
        if error.retry_after is None or not (error.too_many or error.server_fault):
            return None
        if error.version_too_large:
            # Another version is the better request, and only the caller can choose it.
            return None
        return error.retry_after if attempts <= MAX_ASKED_RETRIES else None
    if isinstance(error, ApiUnreachable) and reads and attempts <= len(RECONNECT_DELAYS):
        return RECONNECT_DELAYS[attempts - 1] * (1 + chance)
    return None
