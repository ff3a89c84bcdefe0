"""The HTTP request of an `httpGet` hook or probe, from its spec. Pure; `get` sends it.

What servers in containers see is what they see from the kubelet (pkg/probe/http/request.go), down to the header names.
That includes what Go's client does on its own: which redirects it follows, and which headers it never sends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urljoin, urlsplit

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Container, HTTPGetAction

KUBERNETES_VERSION: Final = "1.36"

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;=-._~[]"
_NEVER_SENT: Final = frozenset({"host", "content-length", "transfer-encoding", "trailer"})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@frozen
class HTTPRequestError(Exception):
    """No request can be made of a spec or a redirect."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class HTTPRequest:
    """A GET request."""

    scheme: str
    host: str
    """A name or an address, IPv6 without brackets."""
    port: int
    path: str = ""
    """With its query, escaped; may be empty."""
    headers: tuple[tuple[str, str], ...] = ()
    """All but Host."""
    host_header: str = ""
    """Instead of the host and port, for servers that choose by name."""
    referer: str = ""
    """Where a redirect came from; a header of the spec is stronger."""

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.path}"

    @property
    def target(self) -> str:
        """What the request line asks for."""
        return self.path if self.path.startswith("/") else f"/{self.path}"

    def header_lines(self) -> list[tuple[str, str]]:
        """All headers in the order they are sent. The connection serves one request."""
        lines = [("Host", self.host_header or self.address), *self.headers]
        named = {name.lower() for name, _ in self.headers}
        if self.referer and "referer" not in named:
            lines.append(("Referer", self.referer))
        if "connection" not in named:
            lines.append(("Connection", "close"))
        return lines

    def without_header(self, name: str) -> HTTPRequest:
        return attrs.evolve(self, headers=tuple(line for line in self.headers if line[0].lower() != name.lower()))


def http_get_request(action: HTTPGetAction, container: Container, pod_ip: str, purpose: str) -> HTTPRequest:
    """The request that an action asks for. `purpose` is part of the user agent: `probe` or `lifecycle`.

    Its port may name one of the container's. Raises HTTPRequestError.
    """
    named = [(header.name, header.value) for header in action.http_headers]
    return HTTPRequest(
        scheme=action.scheme.lower() or "http",
        host=action.host or pod_ip,
        port=resolve_port(action.port, container),
        path=escaped_path(action.path),
        headers=_headers(named, purpose),
        host_header=next((value.strip() for name, value in named if name.lower() == "host"), ""),
    )


def resolve_port(port: int | str, container: Container) -> int:
    """The number of a port that may be the name of one of the container's. Raises HTTPRequestError."""
    number = port if isinstance(port, int) else _port_by_name(port, container)
    if not 0 < number < 65536:
        raise HTTPRequestError(f"invalid port number: {number}")
    return number


def _port_by_name(name: str, container: Container) -> int:
    for port in container.ports:
        if port.name == name:
            return port.container_port
    try:
        return int(name)
    except ValueError:
        raise HTTPRequestError(f"port {name} not found in container {container.name}") from None


def escaped_path(path: str) -> str:
    """Path and query as they go into a URL.

    A path that is no part of a URL is too late to reject: all of it becomes the path, as it is.
    """
    try:
        parts = urlsplit(path)
    except ValueError:
        parts = None
    if parts is None or _BAD_ESCAPE.search(parts.path) or _CONTROL.search(path):
        return _rooted(quote(path, safe=_PATH_CHARACTERS))
    escaped = _rooted(quote(parts.path, safe=_PATH_CHARACTERS + "%"))
    if parts.query:
        escaped += "?" + quote(parts.query, safe=_PATH_CHARACTERS + "%?")
    return escaped


def redirected(request: HTTPRequest, status: int, location: str) -> HTTPRequest | None:
    """The request that a redirect asks for; None when the answer is to be taken as it is.

    Only redirects to the same host are followed: a pod must not make its node talk to others. Raises HTTPRequestError.
    """
    if status not in _REDIRECTS or not location:
        return None
    base = f"{request.scheme}://{request.address}{request.target}"
    try:
        parts = urlsplit(urljoin(base, location))
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise HTTPRequestError(f"failed to parse Location header {location!r}: {error}") from error
    if host.lower() != request.host.lower():
        return None
    if parts.scheme not in _DEFAULT_PORTS:
        raise HTTPRequestError(f'unsupported protocol scheme "{parts.scheme}"')
    return attrs.evolve(
        request,
        # As Go's client tells it: never what was encrypted on an open connection.
        referer="" if (request.scheme, parts.scheme) == ("https", "http") else request.url,
        scheme=parts.scheme,
        port=_DEFAULT_PORTS[parts.scheme] if port is None else port,
        path=escaped_path(parts._replace(scheme="", netloc="", fragment="").geturl()),
        # A redirect that names a host means that one.
        host_header="" if urlsplit(location).netloc else request.host_header,
    )


def _rooted(path: str) -> str:
    return path if not path or path.startswith("/") else f"/{path}"


def _headers(named: list[tuple[str, str]], purpose: str) -> tuple[tuple[str, str], ...]:
    """The spec's headers and the defaults. An empty User-Agent or Accept means none at all."""
    given = [(_canonical(name), _one_line(value)) for name, value in named if name.lower() not in _NEVER_SENT]
    agents = [value for name, value in given if name == "User-Agent"]
    accepted = [value for name, value in given if name == "Accept"]
    headers = []
    if agent := (agents or [f"kube-{purpose}/{KUBERNETES_VERSION}"])[0]:
        headers.append(("User-Agent", agent))
    if not accepted:
        headers.append(("Accept", "*/*"))
    dropped = {"User-Agent"} if not accepted or accepted[0] else {"User-Agent", "Accept"}
    return (*headers, *((name, value) for name, value in given if name not in dropped))


def _canonical(name: str) -> str:
    return "-".join(part.capitalize() for part in name.split("-"))


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ").strip()
