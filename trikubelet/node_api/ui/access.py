"""Who may see the page: somebody with a link to it, on this machine; elsewhere somebody whom the node knows.

On a loopback address everybody on the machine can connect, other users and containers with the host's network included,
and so can any page in the browser of its user. So the page is given to those only who bring a token that is good for
one time and for a while, or the cookie that they got for it. A browser sends a cookie to all ports of a host alike,
also to one that is a pod's: therefore the page lies below a folder whose name cannot be guessed, and the cookie belongs
to that folder.

A page of a stranger may have a name of its own that suddenly means this machine (DNS rebinding). It gives itself away
by that name in the `Host` header: an address of digits cannot be rebound, and other names than the node's are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import trio

from trikubelet.http.messages import AnyResponse, Handler, HTTPError, Request, Response
from trikubelet.node_api.ui.pages import secured, see_other, ui_pages

if TYPE_CHECKING:
    from collections.abc import Iterable

KEY_SIZE: Final = 32
LINK_LIFETIME: Final = 600.0
"""Seconds for which a link can be used."""
MOST_LINKS: Final = 100
"""That wait to be used; older ones are forgotten."""
COOKIE: Final = "trikubelet-ui"
ASK_FOR_LINK: Final = "`trikubelet web` prints a link that can be opened once"
NODE_PLACE: Final = "ui"
"""Where the page is behind the node's authentication."""
_ENTERED: Final = b"""<!doctype html>
<meta charset="utf-8"><meta http-equiv="refresh" content="0;url=./"><title>trikubelet</title>
<link rel="icon" href="icon.svg"><a href="./">Pods</a>
"""


class Sessions:
    """Links, and the cookie that one gets for them, which follows from a key: whoever keeps that keeps the sessions."""

    def __init__(self, key: bytes) -> None:
        """`key`: KEY_SIZE random bytes."""
        self._key = key
        self._links: dict[str, float] = {}
        """Tokens, and until when they are good, in Trio time; the oldest first."""
        self.place = self._derived("place")[:16]
        """The folder of the page."""

    def link(self) -> str:
        """Path and query of an address that shows the page to the first who opens it."""
        while len(self._links) >= MOST_LINKS:
            del self._links[next(iter(self._links))]
        token = secrets.token_urlsafe(32)
        self._links[token] = trio.current_time() + LINK_LIFETIME
        return f"/{self.place}/?token={token}"

    def spend(self, token: str) -> bool:
        """Whether the token is good; it is not any more then."""
        return self._links.pop(token, 0.0) > trio.current_time()

    def cookie(self) -> tuple[str, str]:
        """The header field that lets a browser in from now on."""
        value = f"{COOKIE}={self._derived('cookie')}; Path=/{self.place}/; HttpOnly; SameSite=Strict"
        return ("Set-Cookie", value)

    def knows(self, request: Request) -> bool:
        """Whether a request has the cookie."""
        try:
            shown = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return shown is not None and hmac.compare_digest(shown.value.encode(), self._derived("cookie").encode())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._key, purpose.encode(), hashlib.sha256).hexdigest()


def loopback_ui(api: Handler, sessions: Sessions) -> Handler:
    """The page for those with a link, on a loopback address."""
    pages = ui_pages(api, sessions.place)

    async def answer(request: Request) -> AnyResponse:
        _check_host(request, ["localhost"], loopback_only=True)
        token = request.text("token")
        if sessions.knows(request):
            # Also somebody who opens an old link once more; what is in the address can be read over one's shoulder.
            return await pages(request) if token is None else see_other(f"/{sessions.place}/")
        if token is None:
            raise HTTPError(403, f"this page is for those with a link: {ASK_FOR_LINK}")
        if request.method != "GET" or not sessions.spend(token):
            raise HTTPError(403, f"this link has been used, or is too old: {ASK_FOR_LINK}")
        # No redirect: one from another site, as a mail or a terminal in the browser, would come without the cookie.
        return Response(_ENTERED, content_type="text/html; charset=utf-8", headers=(sessions.cookie(),))

    return secured(answer)


def node_ui(api: Handler, names: Iterable[str]) -> Handler:
    """The page for those whom a guard before this handler has let through. `names`: how the node is called."""
    pages, known = ui_pages(api, NODE_PLACE), [name.lower() for name in names if name]

    async def answer(request: Request) -> AnyResponse:
        _check_host(request, known, loopback_only=False)
        return see_other(f"/{NODE_PLACE}/") if request.path == "/" else await pages(request)

    return secured(answer)


def _check_host(request: Request, names: Iterable[str], *, loopback_only: bool) -> None:
    """Raises HTTPError for a request that was meant for somebody else. Ports do not matter: they may be forwarded."""
    host = request.headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if name in names:
        return
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        address = None
    if address is None or (loopback_only and not address.is_loopback):
        raise HTTPError(421, f"this page is not that of {host!r}: open it by the address that it listens on")
