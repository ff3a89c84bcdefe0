"""Routes: a method and a path with `{names}` lead to a handler. The table can be walked, by tests and by the docs.

Paths are split into segments before they are decoded, so an encoded slash never makes a segment more, and a pattern
matches the same number of segments only. A slash at the end makes no difference, as in the kubelet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import attrs

from trikubelet.server.messages import AnyResponse, Handler, HTTPError, Request

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class Route:
    """One line of the table."""

    method: str
    pattern: str
    handler: Handler

    def match(self, segments: tuple[str, ...]) -> Mapping[str, str] | None:
        """The parameters when the path (its segments still encoded) fits, else None."""
        expected = _segments(self.pattern)
        if len(expected) != len(segments):
            return None
        params: dict[str, str] = {}
        for want, got in zip(expected, segments, strict=True):
            text = unquote(got)
            if want.startswith("{"):
                if not text:
                    return None
                params[want[1:-1]] = text
            elif want != text:
                return None
        return params


class Router:
    """Answers with the handler of the first route that fits. It is a handler itself."""

    def __init__(self) -> None:
        self._routes: list[Route] = []

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes)

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Add a route; GET answers HEAD too. Raises ValueError when method and pattern are there already."""
        if any((route.method, route.pattern) == (method, pattern) for route in self._routes):
            raise ValueError(f"there is a route for {method} {pattern} already")
        self._routes.append(Route(method, pattern, handler))

    async def __call__(self, request: Request) -> AnyResponse:
        """Raises HTTPError 404 for an unknown path, 405 (with `Allow`) for a path that knows other methods."""
        segments: Final = _segments(request.path)
        method = "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for route in self._routes:
            params = route.match(segments)
            if params is None:
                continue
            if route.method == method:
                return await route.handler(attrs.evolve(request, params=params))
            allowed.append(route.method)
        if not allowed:
            raise HTTPError(404, f"there is nothing at {request.path}")
        raise HTTPError(
            405,
            f"{request.method} is not possible at {request.path}, only {', '.join(allowed)}",
            [("Allow", ", ".join(allowed))],
        )


def _segments(path: str) -> tuple[str, ...]:
    trimmed = path.removeprefix("/")
    return tuple((trimmed[:-1] if trimmed.endswith("/") else trimmed).split("/"))
