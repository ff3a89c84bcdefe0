"""The live page that the agent serves itself (`--ui ADDRESS`): where, and for whom.

On a loopback address it is for those who have a link, which the agent's socket gives. Elsewhere it is TLS with the
node's certificate, and the node's authentication and authorization stand before it: one needs the right to
`nodes/proxy`, as for the logs of all pods. Where the node cannot tell who somebody is, it is not served elsewhere.
"""

from __future__ import annotations

import ipaddress
import secrets
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.http.messages import HTTPError, Request, Response, json_response
from trikubelet.linux.durable_files import write_atomically
from trikubelet.node_api.listeners import NODE_LIMITS, Port
from trikubelet.node_api.ui.access import KEY_SIZE, Sessions, loopback_ui, node_ui

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trikubelet.http.messages import Handler
    from trikubelet.node_api.auth.build import NodeAuth
    from trikubelet.node_api.listeners import Secure

UI: Final = "ui"
"""The port's name."""
KEY_FILE: Final = "ui.key"
"""In the root folder: browsers that were let in stay so when the agent starts anew."""
LIMITS: Final = attrs.evolve(NODE_LIMITS, connections=100, header_size=16 * 2**10, body_size=2**10)


class UiError(Exception):
    """The page cannot be served as the command line says. The text tells what to change."""


def loopback_port(address: tuple[str, int], api: Handler, sessions: Sessions) -> Port:
    """The port of a page for this machine."""
    return _port(address, loopback_ui(api, sessions), None)


def guarded_port(
    address: tuple[str, int], api: Handler, auth: NodeAuth | None, secure: Secure | None, names: Sequence[str]
) -> Port:
    """The port of a page for others. Raises UiError when nobody can be told from others here."""
    if auth is None or secure is None:
        raise UiError(
            f"cannot serve the page on {address[0]} (--ui): the node's own port is not served, so nobody's right to it "
            "can be checked; give a loopback address, or configure authentication and authorization"
        )
    return _port(address, auth.guard(node_ui(api, names)), secure)


def is_loopback(address: tuple[str, int]) -> bool:
    return ipaddress.ip_address(address[0]).is_loopback


def kept_sessions(root_dir: Path) -> Sessions:
    """With the key of the root folder, which is made when there is none. Raises UiError."""
    path = root_dir / KEY_FILE
    try:
        key = path.read_bytes() if path.exists() else b""
        if len(key) != KEY_SIZE:
            key = secrets.token_bytes(KEY_SIZE)
            write_atomically(path, key)
    except OSError as error:
        raise UiError(f"cannot keep the key of the page (--ui): {error}") from error
    return Sessions(key)


def link_handler(sessions: Sessions | None, addresses: Callable[[], Mapping[str, tuple[str, int]]]) -> Handler:
    """POST `/ui/link` on the agent's socket: {"url"}, an address that shows the page once."""

    async def link(_: Request) -> Response:
        bound = addresses().get(UI)
        if sessions is None or bound is None:
            raise HTTPError(404, "this agent serves no page on a loopback address: it was started without --ui")
        host, number = bound
        shown = f"[{host}]" if ":" in host else host
        return json_response({"url": f"http://{shown}:{number}{sessions.link()}"})

    return link


def _port(address: tuple[str, int], handler: Handler, secure: Secure | None) -> Port:
    host, number = address
    return Port(
        name=UI,
        address=host,
        number=number,
        handler=handler,
        limits=LIMITS,
        secure=secure,
        address_option="--ui",
        number_option="--ui",
    )
