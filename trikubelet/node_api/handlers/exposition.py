"""`/metrics…` and `/stats/summary`: the HTTP side of what others measure and count.

`metrics_page`, `text_page` and `summary_page` make handlers of what gives the content. What could not be measured is
told to the client, and the log has the details. Their clients ask every few seconds and may be given megabytes, so
compressing is done in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.content_coding import gzipped, takes_gzip
from trikubelet.http.messages import JSON, Handler, Request, Response
from trikubelet.node_api.handlers.health import Observe
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = get_logger("http")

METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
LIMIT_SECONDS: Final = 30.0
"""For one page. Scrapers have gone by then."""
_SMALLEST_PACKED: Final = 1024


@frozen(kw_only=True)
class Exposition:
    """The handlers of metrics and statistics. They answer GET, and the ones of metrics any other method too."""

    metrics: Handler
    resource: Handler
    cadvisor: Handler
    probes: Handler
    slis: Handler
    """DELETE resets them."""
    summary: Handler
    observe_health: Observe = attrs.field(default=lambda _name, _well: None)
    """Told of each check of `/healthz` (`/metrics/slis`)."""


def text_page(text: Callable[[], Awaitable[bytes]], reset: Callable[[], None] | None = None) -> Handler:
    """A page in Prometheus' text format; DELETE calls `reset`, if there is one."""

    async def answer(request: Request) -> Response:
        if request.method == "DELETE" and reset is not None:
            reset()
            return Response(b"metrics reset\n")
        return await _page(request, text, METRICS_TEXT)

    return answer


class ScrapedPage(Protocol):
    """A page that was written down as its client likes it (`metrics.exposition.Exposition`)."""

    @property
    def body(self) -> bytes: ...

    @property
    def content_type(self) -> str: ...

    @property
    def content_encoding(self) -> str: ...


def metrics_page(
    expose: Callable[[str, str], Awaitable[ScrapedPage]], reset: Callable[[], None] | None = None
) -> Handler:
    """A page that `expose` writes down as the headers `Accept` and `Accept-Encoding` say; DELETE calls `reset`."""

    async def answer(request: Request) -> Response:
        if request.method == "DELETE" and reset is not None:
            reset()
            return Response(b"metrics reset\n")
        try:
            with trio.fail_after(LIMIT_SECONDS):
                page = await expose(request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
        except Exception as error:  # noqa: BLE001
            return _failed(request, error)
        coding = (("Content-Encoding", page.content_encoding),) if page.content_encoding else ()
        return Response(page.body, content_type=page.content_type, headers=coding)

    return answer


def summary_page(summary: Callable[[bool], Awaitable[bytes]]) -> Handler:
    """`/stats/summary` as JSON; `?only_cpu_and_memory=true` is passed on."""

    async def answer(request: Request) -> Response:
        narrow = list(request.query.get("only_cpu_and_memory", ())) == ["true"]
        return await _page(request, lambda: summary(narrow), JSON)

    return answer


async def _page(request: Request, text: Callable[[], Awaitable[bytes]], content_type: str) -> Response:
    try:
        with trio.fail_after(LIMIT_SECONDS):
            body = await text()
    except Exception as error:  # noqa: BLE001
        return _failed(request, error)
    if len(body) < _SMALLEST_PACKED or not takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(body, content_type=content_type)
    return Response(await gzipped(body), content_type=content_type, headers=(("Content-Encoding", "gzip"),))


def _failed(request: Request, error: Exception) -> Response:
    problem = str(error) or f"not done within {LIMIT_SECONDS:g} seconds"
    log.error("a page of statistics failed", path=request.path, exc_info=error)
    return Response(f"Internal Error: {problem}\n".encode(), 500)
