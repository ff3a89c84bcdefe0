"""Serves the live page from the command's own process, and asks the agent's socket.

Imports Trio: import it when needed. Each question has a connection of its own, so the page goes on when the agent was
restarted.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import httpx
import trio

from trikubelet.cli.client import TIMEOUT_SECONDS, lost_agent
from trikubelet.cli.failures import CommandError
from trikubelet.http.limits import Limits
from trikubelet.http.messages import AnyResponse, HTTPError, Request, StreamResponse, Writer
from trikubelet.http.server import HttpServer
from trikubelet.linux.socket_address import socket_address
from trikubelet.node_api.ui.access import KEY_SIZE, Sessions, loopback_ui
from trikubelet.supervision import contain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from trikubelet.http.messages import Handler

ADDRESS: Final = "127.0.0.1"
LIMITS: Final = Limits(connections=100, header_size=16 * 2**10, body_size=2**10)
_WITHOUT_END: Final = httpx.Timeout(TIMEOUT_SECONDS, read=None)


async def serve(socket: Path, port: int, tell: Callable[[str], None], ending: Iterable[int]) -> int:
    """Serve the page until one of these signals comes; returns it. `tell` gets the link, in a thread.

    Raises CommandError when the port cannot be had.
    """
    sessions = Sessions(secrets.token_bytes(KEY_SIZE))
    server = HttpServer(loopback_ui(asking(socket), sessions), limits=LIMITS)
    listener = await _listen(port)
    number = listener.socket.getsockname()[1]
    with trio.open_signal_receiver(*ending) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, partial(contain, server.serve_stream), [listener]))
            url = f"http://{ADDRESS}:{number}{sessions.link()}"
            nursery.start_soon(partial(trio.to_thread.run_sync, tell, url, abandon_on_cancel=True))
            async for signal in signals:
                nursery.cancel_scope.cancel()
                return signal
    raise AssertionError("unreachable")


def asking(socket: Path) -> Handler:
    """A handler that passes requests on to the agent, and its answers back as they come."""

    async def ask(request: Request) -> AnyResponse:
        async def produce(writer: Writer) -> None:
            with _failures(socket), socket_address(str(socket)) as address:
                transport = httpx.AsyncHTTPTransport(uds=address, verify=False)
                async with httpx.AsyncClient(transport=transport, timeout=_WITHOUT_END) as client:
                    async with client.stream(request.method, f"http://agent{request.target}") as answer:
                        if answer.status_code >= 400:
                            text = (await answer.aread()).decode(errors="replace")
                            raise HTTPError(answer.status_code, text)
                        await writer.write(b"")
                        async for block in answer.aiter_bytes():
                            await writer.write(block)

        return StreamResponse(produce)

    return ask


@contextmanager
def _failures(socket: Path) -> Iterator[None]:
    """That the agent does not answer, or no longer does, is told to who asks."""
    try:
        yield
    except (OSError, httpx.HTTPError) as error:
        cause = error
        while not isinstance(cause, OSError) and (before := cause.__cause__ or cause.__context__) is not None:
            cause = before  # type: ignore[assignment]
        raise HTTPError(502, lost_agent(socket, cause if isinstance(cause, OSError) else error).message) from None


async def _listen(port: int) -> trio.SocketListener:
    try:
        [listener] = await trio.open_tcp_listeners(port, host=ADDRESS)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "it is taken: give another --port" if taken else os.strerror(error.errno or 0).lower()
        raise CommandError(f"cannot listen on {ADDRESS}:{port}: {why}") from None
    return listener
