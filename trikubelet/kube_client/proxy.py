"""Proxies between the agent and an API server: which one, and how to get a stream through it.

The kubeconfig's `proxy-url` counts, or else the environment, read as Go reads it (`HTTPS_PROXY`, `HTTP_PROXY`,
`NO_PROXY`, each in small letters too). An http proxy is asked to connect (`CONNECT`), a socks5 proxy likewise in its
own language; both get the server's name and look it up themselves.
"""

from __future__ import annotations

import ipaddress
from base64 import b64encode
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import attrs
import h11

from trikubelet.formats.values import frozen
from trikubelet.kube_client.kubeconfig_schema import proxy_problem, without_password

if TYPE_CHECKING:
    from collections.abc import Mapping

    import trio

DEFAULT_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080}
_SOCKS_PROBLEMS: Final = {
    1: "general SOCKS server failure",
    2: "connection not allowed by ruleset",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "TTL expired",
    7: "command not supported",
    8: "address type not supported",
}


@frozen
class ProxyError(Exception):
    """A proxy refused, or is none."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class Proxy:
    """Where a proxy is and what it speaks."""

    scheme: str
    """`http`, `https` or `socks5`."""
    host: str
    port: int
    username: str = ""
    password: str = attrs.field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Raises ProxyError."""
        problem = proxy_problem(url)
        if problem is not None:
            raise ProxyError(f'invalid proxy address "{without_password(url)}": {problem}')
        parts = urlsplit(url)
        return cls(
            parts.scheme,
            parts.hostname or "",
            parts.port or DEFAULT_PORTS[parts.scheme],
            unquote(parts.username or ""),
            unquote(parts.password or ""),
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


def choose_proxy(configured: str, scheme: str, host: str, port: int, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy for a server, None for none. Raises ProxyError when it is written wrongly."""
    if configured:
        return Proxy.parse(configured)
    url = _variable(environment, "HTTPS_PROXY" if scheme == "https" else "HTTP_PROXY")
    if not url or _goes_direct(host, port, _variable(environment, "NO_PROXY")):
        return None
    return Proxy.parse(url if "://" in url else f"http://{url}")


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _goes_direct(host: str, port: int, exceptions: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host.lower(), address, port) for entry in exceptions.split(","))


def _matches(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if not entry:
        return False
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, _, wanted = entry.rpartition(":") if _address(entry) is None else (entry, "", "")
    if not name:
        name, wanted = entry, ""
    if wanted and wanted != str(port):
        return False
    name = name.strip("[]")
    if address is not None:
        return _address(name) == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


async def ask_proxy(stream: trio.abc.Stream, proxy: Proxy, host: str, port: int) -> None:
    """Have the stream, which leads to the proxy, lead to a server. Raises ProxyError and Trio's stream errors."""
    if proxy.scheme == "socks5":
        await _ask_socks(stream, proxy, host, port)
    else:
        await _ask_http(stream, proxy, host, port)


async def _ask_http(stream: trio.abc.Stream, proxy: Proxy, host: str, port: int) -> None:
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = [("Host", target)]
    if proxy.username:
        login = b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
        headers.append(("Proxy-Authorization", f"Basic {login}"))
    connection = h11.Connection(h11.CLIENT)
    await stream.send_all(connection.send(h11.Request(method="CONNECT", target=target, headers=headers)) or b"")
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                break
            if event is h11.NEED_DATA:
                # No byte of the server can follow the head: TLS servers say nothing before they are spoken to.
                connection.receive_data(bytes(await stream.receive_some(4096)))
            elif not isinstance(event, h11.InformationalResponse):
                raise ProxyError(f"proxy {proxy}: the connection was closed")
    except h11.RemoteProtocolError as error:
        raise ProxyError(f"proxy {proxy}: expected an HTTP response: {error}") from error
    if event.status_code != 200:
        reason = bytes(event.reason).decode("latin-1")
        raise ProxyError(f"proxy {proxy} refused: {event.status_code} {reason}".rstrip())


async def _ask_socks(stream: trio.abc.Stream, proxy: Proxy, host: str, port: int) -> None:
    """RFC 1928, with user name and password of RFC 1929."""
    await stream.send_all(b"\x05\x02\x00\x02" if proxy.username else b"\x05\x01\x00")
    version, method = await _receive(stream, proxy, 2)
    if version != 5:
        raise ProxyError(f"proxy {proxy}: expected SOCKS version 5, got {version}")
    if method == 2:
        user, password = proxy.username.encode()[:255], proxy.password.encode()[:255]
        await stream.send_all(b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password)
        if (await _receive(stream, proxy, 2))[1] != 0:
            raise ProxyError(f"proxy {proxy}: username/password authentication failed")
    elif method != 0:
        raise ProxyError(f"proxy {proxy}: no acceptable authentication methods")
    await stream.send_all(b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2, "big"))
    _, answer, _, kind = await _receive(stream, proxy, 4)
    if answer != 0:
        raise ProxyError(f"proxy {proxy}: {_SOCKS_PROBLEMS.get(answer, f'unknown error {answer}')}")
    lengths = {1: 4, 4: 16}
    length = lengths[kind] if kind in lengths else (await _receive(stream, proxy, 1))[0]
    await _receive(stream, proxy, length + 2)


def _socks_address(host: str) -> bytes:
    address = _address(host)
    if address is not None:
        return (b"\x01" if address.version == 4 else b"\x04") + address.packed
    name = host.encode("idna")
    return b"\x03" + bytes([len(name)]) + name


async def _receive(stream: trio.abc.Stream, proxy: Proxy, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        if not more:
            raise ProxyError(f"proxy {proxy}: the connection was closed")
        data += bytes(more)
    return data
