"""Spans of requests to the API server: names and attributes are those of OpenTelemetry's transport for Go's net/http.

Imported only when `tracing` is configured, in a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from trikubelet.tracing.spans import Kind

if TYPE_CHECKING:
    from trikubelet.kube_client.exchange import Body, Reply, Request, Sends
    from trikubelet.tracing.spans import Span, Tracer, Value

SCOPE: Final = "trikubelet/cluster"
_PORTS: Final = {"http": 80, "https": 443}


class TracedTransport:
    """Sends requests by another transport. A span lasts until the answer's body was read, or let go.

    Implements `Sends`.
    """

    def __init__(self, transport: Sends, tracer: Tracer) -> None:
        self._transport = transport
        self._tracer = tracer

    async def send(self, request: Request) -> Reply:
        attributes = request_attributes(request)
        span = self._tracer.start(f"HTTP {request.method}", scope=SCOPE, kind=Kind.CLIENT, attributes=attributes)
        request.headers += [(name.encode(), value.encode()) for name, value in span.context.headers()]
        try:
            reply = await self._transport.send(request)
        except BaseException as error:
            span.set("error.type", type(error).__name__)
            span.fail(error)
            span.end()
            raise
        span.set("http.response.status_code", reply.status)
        if reply.status >= 400:
            span.set("error.type", str(reply.status))
            span.fail_with("")
        reply.body = TracedBody(reply.body, span)
        return reply


class TracedBody:
    """The body of an answer, whose end is its span's. Implements `Body`."""

    def __init__(self, body: Body, span: Span) -> None:
        self._body = body
        self._span = span

    async def receive(self) -> bytes:
        try:
            piece = await self._body.receive()
        except Exception as error:
            self._span.fail(error)
            self._span.end()
            raise
        if not piece:
            self._span.end()
        return piece

    async def aclose(self) -> None:
        self._span.end()
        await self._body.aclose()


def request_attributes(request: Request) -> dict[str, Value]:
    """What a request says of itself. Credentials are in its headers, which are not told."""
    url = urlsplit(request.url)
    found: dict[str, Value] = {
        "http.request.method": request.method,
        "url.full": request.url,
        "server.address": url.hostname or "",
    }
    port = url.port or _PORTS.get(url.scheme)
    if port is not None and port != _PORTS.get(url.scheme):
        found["server.port"] = port
    return found
