"""Spans of requests to the node's HTTP API: names and attributes are those of OpenTelemetry's go-restful filter."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import attrs

from trikubelet.http.messages import AnyResponse, Handler, HTTPError, Request, Response, StreamResponse
from trikubelet.scopes import leaves
from trikubelet.tracing.context import TRACEPARENT, TRACESTATE, parse_traceparent
from trikubelet.tracing.spans import CURRENT, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.http.messages import Takeover, Writer
    from trikubelet.http.routing import Router
    from trikubelet.tracing.spans import Span, Tracer, Value

SCOPE: Final = "trikubelet/http"
SERVER: Final = "kubelet"
"""The server's name, as the kubelet gives it."""
STATUS: Final = "http.response.status_code"

_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_KUBELETS: Final = {"namespace": "podNamespace", "pod": "podID", "container": "containerName"}
"""What the kubelet calls the parts of a path."""
_PART: Final = re.compile(r"\{(\w+)")


def traced(routes: Router, tracer: Tracer, *, public: bool = False) -> Handler:
    """The routes' handler, with a span for each request, which continues the trace that the request comes from.

    `public`: anybody may ask. A request's own trace is only linked to then, so that nobody can make the node record.
    """

    async def answer(request: Request) -> AnyResponse:
        caller = parse_traceparent(request.headers.get(TRACEPARENT, ""), _state(request))
        route = routes.find(request.method, request.path).route
        pattern = "" if route is None else kubelets_pattern(route.pattern)
        span = tracer.start(
            pattern or request.method,
            scope=SCOPE,
            kind=Kind.SERVER,
            attributes={**request_attributes(request), **({"http.route": pattern} if pattern else {})},
            parent=None if public else caller,
            alone=True,
            links=(caller,) if public and caller is not None else (),
        )
        with _inside(span):
            response = await routes(request)
        return _ended(response, span, sends=request.method != "HEAD")

    return answer


def _ended(response: AnyResponse, span: Span, *, sends: bool) -> AnyResponse:
    """The answer. A span ends when it is there, or when all of it was sent."""
    if isinstance(response, Response):
        end(span, response.status)
        return response
    if isinstance(response, StreamResponse):
        produce, status = response.produce, response.status
        if not sends:
            end(span, status)
            return response

        async def produce_inside(writer: Writer) -> None:
            with _inside(span):
                await produce(writer)
            end(span, status)

        return attrs.evolve(response, produce=produce_inside)
    handle = response.handle

    async def handle_inside(takeover: Takeover) -> None:
        with _inside(span):
            await handle(takeover)
        end(span, 0)  # it may have been accepted, or answered

    return attrs.evolve(response, handle=handle_inside)


@contextmanager
def _inside(span: Span) -> Iterator[None]:
    """The block is in the span, which ends here only if the block raises."""
    token = CURRENT.set(span)
    try:
        yield
    except BaseException as error:
        answer = _answer(error)
        if answer is None:
            span.fail(error)
        end(span, 500 if answer is None and isinstance(error, Exception) else 0 if answer is None else answer.status)
        raise
    finally:
        CURRENT.reset(token)


def _answer(error: BaseException) -> HTTPError | None:
    """What a handler meant to raise, also if its nurseries have wrapped that."""
    if isinstance(error, BaseExceptionGroup):
        found = list(leaves(error))
        error = found[0] if len(found) == 1 else error
    return error if isinstance(error, HTTPError) else None


def end(span: Span, status: int) -> None:
    """With the answer's status; 0 when there was none. Only what is the server's fault is an error."""
    if status:
        span.set(STATUS, status)
    if status >= 500 and span.error is None:
        span.fail_with("")
    span.end()


def kubelets_pattern(pattern: str) -> str:
    """A route's pattern as the kubelet writes it: `/exec/{podNamespace}/{podID}/{containerName}`."""
    return _PART.sub(lambda part: "{" + _KUBELETS.get(part[1], part[1]), pattern)


def request_attributes(request: Request) -> dict[str, Value]:
    """What a request says of itself, but for its query, in which there may be commands."""
    found: dict[str, Value] = {
        "server.address": SERVER,
        "http.request.method": request.method if request.method in _METHODS else "GET",
        "url.scheme": "https" if request.peer.encrypted else "http",
    }
    if request.method not in _METHODS:
        found["http.request.method_original"] = request.method
    _, port = _host_and_port(request.headers.get("host", ""))
    if port and port != (443 if request.peer.encrypted else 80):
        found["server.port"] = port
    peer, peer_port = _host_and_port(request.peer.address)
    if peer:
        found["network.peer.address"] = peer
        if peer_port:
            found["network.peer.port"] = peer_port
    if agent := request.headers.get("user-agent"):
        found["user_agent.original"] = agent
    if client := request.headers.get("x-forwarded-for", "").split(",")[0].strip() or peer:
        found["client.address"] = client
    found["url.path"] = unquote(request.path)
    found["network.protocol.version"] = "1.1"
    return found


def _host_and_port(text: str) -> tuple[str, int]:
    """Empty and 0 for what is not there."""
    try:
        parts = urlsplit(f"//{text}")
        return parts.hostname or "", parts.port or 0
    except ValueError:
        return "", 0


def _state(request: Request) -> str:
    """Of several fields the sum, as W3C has it."""
    return ",".join(value for name, value in request.raw_headers if name == TRACESTATE)
