"""Spans of requests to the API server: names and attributes are those of OpenTelemetry's transport for Go's net/http.

Imported only when `tracing` is configured, in a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.http.httpx_library import httpx
from trikubelet.kube_client.exchange import BODY
from trikubelet.tracing.spans import Kind

if TYPE_CHECKING:
    from trikubelet.kube_client.exchange import Body
    from trikubelet.tracing.spans import Span, Tracer, Value

SCOPE: Final = "trikubelet/cluster"
_PORTS: Final = {"http": 80, "https": 443}


class TracedTransport(httpx.AsyncBaseTransport):
    """Sends requests by another transport. A span lasts until the answer's body was read, or let go."""

    def __init__(self, transport: httpx.AsyncBaseTransport, tracer: Tracer) -> None:
        self._transport = transport
        self._tracer = tracer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        attributes = request_attributes(request)
        span = self._tracer.start(f"HTTP {request.method}", scope=SCOPE, kind=Kind.CLIENT, attributes=attributes)
        request.headers.update(span.context.headers())
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException as error:
            span.set("error.type", type(error).__name__)
            span.fail(error)
            span.end()
            raise
        span.set("http.response.status_code", response.status_code)
        if response.status_code >= 400:
            span.set("error.type", str(response.status_code))
            span.fail_with("")
        response.extensions[BODY] = TracedBody(response.extensions[BODY], span)
        return response


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


def request_attributes(request: httpx.Request) -> dict[str, Value]:
    """What a request says of itself. Credentials are in its headers, which are not told."""
    url = request.url.copy_with(userinfo=b"")
    found: dict[str, Value] = {
        "http.request.method": request.method,
        "url.full": str(url),
        "server.address": url.host,
    }
    port = url.port or _PORTS.get(url.scheme)
    if port is not None and port != _PORTS.get(url.scheme):
        found["server.port"] = port
    return found
