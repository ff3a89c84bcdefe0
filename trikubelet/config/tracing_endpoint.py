"""Where spans are sent: the `tracing.endpoint` of a KubeletConfiguration, named as gRPC names servers. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias
from urllib.parse import urlsplit

from trikubelet.formats.values import frozen

DEFAULT_ENDPOINT: Final = "localhost:4317"
_PORT: Final = 443
"""gRPC's, where an address names none."""


@frozen
class TcpEndpoint:
    host: str
    port: int


@frozen
class UnixEndpoint:
    address: str
    """A path, or `@` and an abstract name."""


Endpoint: TypeAlias = TcpEndpoint | UnixEndpoint


def parse_endpoint(text: str) -> Endpoint:
    """`HOST:PORT`, `dns:///HOST:PORT`, `unix:PATH`, `unix:///PATH` or `unix-abstract:NAME`.

    A name server that a dns endpoint may name is not asked: names are resolved as everywhere here. Raises ValueError.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "unix":
        return UnixEndpoint(_unix(rest, text))
    if colon and scheme == "unix-abstract":
        return UnixEndpoint("@" + _unix(rest, text).lstrip("/"))
    if colon and scheme == "dns":
        authority, _, name = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        return _tcp(name or authority, text)
    if "://" in text:
        raise ValueError(f'expected no scheme, "dns", "unix" or "unix-abstract", got "{text}"')
    return _tcp(text, text)


def _unix(rest: str, text: str) -> str:
    path = rest[2:] if rest.startswith("//") else rest
    if not path.strip("/") or "\0" in path:
        raise ValueError(f'expected a socket after the scheme, got "{text}"')
    return path


def _tcp(place: str, text: str) -> TcpEndpoint:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f'expected HOST:PORT, got "{text}": {error}') from None
    if not host or parts.netloc != place or "@" in place or "%" in host or not place.isprintable():
        raise ValueError(f'expected HOST:PORT, got "{text}"')
    return TcpEndpoint(host, _PORT if port is None else port)
