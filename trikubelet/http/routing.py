"""Routes: a method and a path with `{names}` lead to a handler. The table can be walked, by tests and by the docs.

Paths are split into segments before they are decoded, so an encoded slash never makes a segment more, and a pattern
matches the same number of segments only; one that ends in `{name:*}` matches any number more, none included. Such a
tail is taken for a path, so its segments must be ones that cannot mean anything else: not empty, not `.` or `..`, and
without slash or null byte in them, however they were encoded. A slash at the end of a path makes no difference, as in
the kubelet.

The authorizer (`auth/attributes.py`) reads paths by the same rule, segment by segment, so that it and the router never
see two different paths in one text. Each route says which subresources of the node grant it; a test holds that against
the authorizer's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

import attrs

from trikubelet.formats.values import frozen
from trikubelet.http.messages import AnyResponse, Handler, HTTPError, Request

ANY_METHOD: Final = "*"
OTHER_BUCKET: Final = "other"
"""Where requests are counted that no route knows."""
_TAIL: Final = ":*}"


@frozen
class Route:
    """One line of the table."""

    method: str
    """`*`: every method."""
    pattern: str
    handler: Handler = attrs.field(repr=False)
    subresources: tuple[str, ...] = ("proxy",)
    """Any one of these subresources of the node grants the route."""
    read_only: bool = False
    """Served on the read-only port too, which asks for no authentication."""
    switch: str = ""
    """The field of the KubeletConfiguration that has to be true for it; "" when it is always there."""
    long_running: bool = False
    """As long as the client likes: its duration says nothing."""
    bucket: str = attrs.field()
    """Under what name its requests are counted (kubelet: `getURLRootPath`)."""
    _segments: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)

    @bucket.default
    def _root_of_pattern(self) -> str:
        first, *rest = _segments(self.pattern)
        return f"{first}/{rest[0]}" if first == "metrics" and rest else first

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_segments", _segments(self.pattern))

    def match(self, segments: tuple[str, ...]) -> Mapping[str, str] | None:
        """The parameters when the path (its segments still encoded) fits, else None."""
        expected = self._segments
        params: dict[str, str] = {}
        if expected[-1].endswith(_TAIL):
            tail = _tail(segments[len(expected) - 1 :])
            if tail is None:
                return None
            params[expected[-1][1 : -len(_TAIL)]] = tail
            expected, segments = expected[:-1], segments[: len(expected) - 1]
        if len(expected) != len(segments):
            return None
        for want, got in zip(expected, segments, strict=True):
            text = unquote(got)
            if want.startswith("{"):
                if not text:
                    return None
                params[want[1:-1]] = text
            elif want != text:
                return None
        return params


@frozen
class Match:
    """What the table says of a request."""

    route: Route | None
    """None: nothing is there, or not for this method."""
    params: Mapping[str, str] = attrs.field(factory=dict)
    allowed: tuple[str, ...] = ()
    """The methods for which something is there, when there is nothing for the request's."""

    @property
    def bucket(self) -> str:
        return OTHER_BUCKET if self.route is None else self.route.bucket


class Router:
    """Answers with the handler of the first route that fits. It is a handler itself."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._routes: list[Route] = []
        self.extend(routes)

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(self._routes)

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Add a route; GET answers HEAD too. Raises ValueError when method and pattern are there already."""
        self.extend([Route(method, pattern, handler)])

    def extend(self, routes: Iterable[Route]) -> None:
        """Add routes, those that are asked first before others. Raises ValueError as `add` does."""
        for route in routes:
            if any((known.method, known.pattern) == (route.method, route.pattern) for known in self._routes):
                raise ValueError(f"there is a route for {route.method} {route.pattern} already")
            self._routes.append(route)

    def find(self, method: str, path: str) -> Match:
        """Which route answers `method` at `path` (as sent, percent-encoded, without the query)."""
        segments: Final = _segments(path)
        wanted = "GET" if method == "HEAD" else method
        allowed: list[str] = []
        for route in self._routes:
            params = route.match(segments)
            if params is None:
                continue
            if route.method in (ANY_METHOD, wanted):
                return Match(route, params)
            if route.method not in allowed:
                allowed.append(route.method)
        return Match(None, allowed=tuple(allowed))

    async def __call__(self, request: Request) -> AnyResponse:
        """Raises HTTPError 404 for an unknown path, 405 (with `Allow`) for a path that knows other methods."""
        found = self.find(request.method, request.path)
        if found.route is not None:
            return await found.route.handler(attrs.evolve(request, params=found.params))
        if not found.allowed:
            raise HTTPError(404, f"there is nothing at {request.path}")
        raise HTTPError(
            405,
            f"{request.method} is not possible at {request.path}, only {', '.join(found.allowed)}",
            [("Allow", ", ".join(found.allowed))],
        )


def _segments(path: str) -> tuple[str, ...]:
    trimmed = path.removeprefix("/")
    return tuple((trimmed[:-1] if trimmed.endswith("/") else trimmed).split("/"))


def _tail(segments: tuple[str, ...]) -> str | None:
    """The rest of a path, decoded; None when it can be read in two ways."""
    decoded = [unquote(segment) for segment in segments]
    for segment in decoded:
        if segment in ("", ".", "..") or "/" in segment or "\0" in segment:
            return None
    return "/".join(decoded)
