"""The routes of the page, below one folder:

    GET  PLACE/                           the page
    GET  PLACE/FILE                       its scripts, its style, its icon
    GET  PLACE/api/journal                `/journal?watch=1` as server-sent events
    GET  PLACE/api/manifests              `/manifests?watch=1` as server-sent events
    GET  PLACE/api/pods/NS/NAME           the pod with its status
    GET  PLACE/api/pods/NS/NAME/why       what it waits for
    GET  PLACE/api/tasks/UID              the tree of scopes of its life
    GET  PLACE/api/logs/NS/NAME/CONTAINER the last lines of a container's log, and those that follow

What is below `api` is asked of the agent's own API, see `local_api`. Nothing here changes anything.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import attrs

from trikubelet.http.messages import (
    AnyResponse,
    Handler,
    HTTPError,
    Request,
    Response,
    StreamResponse,
    UpgradeResponse,
    Writer,
    error_response,
)
from trikubelet.http.routing import Route, Router

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_LINES: Final = 200
"""Of a container's log that are shown at first."""
RETRY: Final = 1000
"""Milliseconds after which a browser opens a lost stream again."""
SECURITY: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
"""Header fields of every answer."""
INDEX: Final = "index.html"
_TYPES: Final = {
    INDEX: "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "details.js": "text/javascript; charset=utf-8",
    "timeline.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that there are."""


def ui_pages(api: Handler, place: str) -> Handler:
    """The page below `/PLACE/`. `api` answers like the agent's own API, and is only asked to look."""
    pages = _Pages(api, place)
    router = Router(
        [
            Route("GET", f"/{place}", pages.index),
            Route("GET", f"/{place}/{{file}}", pages.file),
            Route("GET", f"/{place}/api/journal", pages.journal),
            Route("GET", f"/{place}/api/manifests", pages.manifests),
            Route("GET", f"/{place}/api/pods/{{namespace}}/{{name}}", pages.pod),
            Route("GET", f"/{place}/api/pods/{{namespace}}/{{name}}/why", pages.why),
            Route("GET", f"/{place}/api/tasks/{{uid}}", pages.tasks),
            Route("GET", f"/{place}/api/logs/{{namespace}}/{{name}}/{{container}}", pages.logs),
        ]
    )
    return secured(router)


def secured(handler: Handler) -> Handler:
    """Whatever `handler` answers, with the header fields that tell a browser to distrust it."""

    async def answer(request: Request) -> AnyResponse:
        try:
            response = await handler(request)
        except HTTPError as error:
            response = error_response(error)
        if isinstance(response, UpgradeResponse):
            return response
        return attrs.evolve(response, headers=(*response.headers, *SECURITY))

    return answer


def see_other(path: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Go and get `path` instead."""
    return Response(status=303, headers=(("Location", path), *headers))


class _Pages:
    def __init__(self, api: Handler, place: str) -> None:
        self._api = api
        self._place = place

    async def index(self, request: Request) -> Response:
        """The page finds everything else beside it, so its address has to end with a slash."""
        if not request.path.endswith("/"):
            return see_other(f"/{self._place}/")
        return _file(INDEX)

    async def file(self, request: Request) -> Response:
        name = request.params["file"]
        if name not in _TYPES:
            raise HTTPError(404, f"there is nothing at {request.path}")
        return _file(name)

    async def journal(self, _: Request) -> AnyResponse:
        return await self._follow("journal")

    async def manifests(self, _: Request) -> AnyResponse:
        return await self._follow("manifests")

    async def _follow(self, what: str) -> AnyResponse:
        """The lines of a watch as server-sent events."""
        lines = await self._ask(what, query={"watch": "1"})
        if not isinstance(lines, StreamResponse):
            return lines

        async def produce(writer: Writer) -> None:
            await lines.produce(_Events(writer))

        return StreamResponse(produce, content_type="text/event-stream; charset=utf-8")

    async def pod(self, request: Request) -> AnyResponse:
        return await self._ask("pods", request.params["namespace"], request.params["name"])

    async def why(self, request: Request) -> AnyResponse:
        return await self._ask("pods", request.params["namespace"], request.params["name"], "why")

    async def tasks(self, request: Request) -> AnyResponse:
        return await self._ask("debug", "tasks", query={"pod": request.params["uid"], "format": "json"})

    async def logs(self, request: Request) -> AnyResponse:
        names = (request.params[name] for name in ("namespace", "name", "container"))
        return await self._ask("containerLogs", *names, query={"follow": "true", "tailLines": str(LOG_LINES)})

    async def _ask(self, *segments: str, query: Mapping[str, str] = {}) -> AnyResponse:
        path = "".join(f"/{quote(segment, safe='')}" for segment in segments)
        target = f"{path}?{urlencode(query)}" if query else path
        asked = {name: (value,) for name, value in query.items()}
        return await self._api(Request("GET", path, asked, target=target))


class _Events:
    """A writer that makes a server-sent event of each line."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._begun = False
        self._rest = b""

    async def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = b"".join(b"data: %b\n\n" % line for line in lines)
        if not self._begun:
            self._begun = True
            events = b"retry: %d\n\n%b" % (RETRY, events)
        if events:
            await self._writer.write(events)


@cache
def _file(name: str) -> Response:
    """Read when first asked for."""
    body = (resources.files(__package__) / "static" / name).read_bytes()
    return Response(body, content_type=_TYPES[name])
