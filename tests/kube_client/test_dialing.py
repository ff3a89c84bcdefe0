from __future__ import annotations

import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.pki import authority, pem_of
from trikubelet.kube_client.dialing import open_access
from trikubelet.kube_client.errors import ApiUnreachable, CredentialsError
from trikubelet.kube_client.kubeconfig import ClusterAccess, CredentialSettings, KubeconfigError, TlsSettings
from trikubelet.kube_client.proxy import Proxy, ProxyError, choose_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from trikubelet.kube_client.access import Access

NOBODY = 1
"""A port on which nothing listens."""

# Which proxy


@pytest.mark.parametrize(
    ("environment", "scheme", "host", "expected"),
    [
        ({}, "https", "a.b", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https", "a.b", "http://p:1"),
        ({"https_proxy": "p:1"}, "https", "a.b", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http", "a.b", None),
        ({"HTTP_PROXY": "http://p"}, "http", "a.b", "http://p:80"),
        ({"HTTPS_PROXY": "socks5://p"}, "https", "a.b", "socks5://p:1080"),
        ({"HTTPS_PROXY": "http://p:1"}, "https", "localhost", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https", "127.0.0.1", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https", "::1", None),
    ],
)
def test_the_environment_names_the_proxy(
    environment: dict[str, str], scheme: str, host: str, expected: str | None
) -> None:
    proxy = choose_proxy("", scheme, host, 6443, environment)
    assert (str(proxy) if proxy else None) == expected


@pytest.mark.parametrize(
    ("entry", "host", "direct"),
    [
        ("*", "a.b", True),
        ("a.b", "a.b", True),
        ("a.b", "x.a.b", True),
        ("a.b", "xa.b", False),
        (".a.b", "a.b", False),
        (".a.b", "x.a.b", True),
        ("*.a.b", "x.a.b", True),
        ("A.B:6443", "a.b", True),
        ("a.b:443", "a.b", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:6443", "10.1.2.3", True),
        ("fd00::1", "fd00::1", True),
        ("[fd00::1]:6443", "fd00::1", True),
        ("fd00::/8", "fd00::1", True),
        ("x, a.b", "a.b", True),
        ("", "a.b", False),
    ],
)
def test_some_hosts_need_no_proxy(entry: str, host: str, direct: bool) -> None:
    environment = {"HTTPS_PROXY": "http://p:1", "no_proxy": entry}
    assert (choose_proxy("", "https", host, 6443, environment) is None) == direct


def test_the_proxy_of_the_kubeconfig_counts_also_for_hosts_that_need_none() -> None:
    proxy = choose_proxy("https://u%40:s3cret@p", "https", "127.0.0.1", 1, {"NO_PROXY": "*"})
    assert proxy == Proxy("https", "p", 443, "u@", "s3cret")
    assert "s3cret" not in repr(proxy) + str(proxy)


def test_a_proxy_that_is_none_is_refused() -> None:
    with pytest.raises(ProxyError, match="unsupported scheme"):
        choose_proxy("", "https", "a.b", 1, {"HTTPS_PROXY": "ftp://u:s3cret@p"})


# Connecting


@attrs.define
class Network:
    """An API server and proxies on the loopback device."""

    nursery: trio.Nursery
    requests: list[bytes] = attrs.field(factory=list)

    async def _listen(self, handler: Callable[[trio.SocketStream], Awaitable[object]]) -> int:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.nursery.start_soon(trio.serve_listeners, handler, listeners)
        port: int = listeners[0].socket.getsockname()[1]
        return port

    async def api(self) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority().issue_cert("127.0.0.1").configure_cert(context)
        context.set_alpn_protocols(["h2"])

        async def serve(stream: trio.SocketStream) -> None:
            encrypted = trio.SSLStream(stream, context, server_side=True)
            with suppress(trio.BrokenResourceError):
                await encrypted.send_all(b"api")
            await trio.aclose_forcefully(encrypted)

        return await self._listen(serve)

    async def http_proxy(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> int:
        async def serve(stream: trio.SocketStream) -> None:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += bytes(await stream.receive_some())
            self.requests.append(request)
            await stream.send_all(answer)
            await self._relay(stream, int(request.split()[1].rpartition(b":")[2]))

        return await self._listen(serve)

    async def socks_proxy(self, status: int = 0) -> int:
        async def serve(stream: trio.SocketStream) -> None:
            self.requests.append(bytes(await stream.receive_some()))
            await stream.send_all(b"\x05\x02" if b"\x02" in self.requests[-1][2:] else b"\x05\x00")
            self.requests.append(bytes(await stream.receive_some()))
            if self.requests[-1][0] == 1:
                await stream.send_all(b"\x01\x00")
                self.requests.append(bytes(await stream.receive_some()))
            await stream.send_all(bytes([5, status, 0, 1, 0, 0, 0, 0, 0, 0]))
            await self._relay(stream, int.from_bytes(self.requests[-1][-2:], "big"))

        return await self._listen(serve)

    async def _relay(self, stream: trio.SocketStream, port: int) -> None:
        async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in source:
                    await sink.send_all(data)
            await sink.aclose()

        if port == NOBODY:
            return
        async with stream, await trio.open_tcp_stream("127.0.0.1", port) as api, trio.open_nursery() as nursery:
            nursery.start_soon(copy, stream, api)
            nursery.start_soon(copy, api, stream)


@pytest.fixture
def network(nursery: trio.Nursery) -> Network:
    return Network(nursery)


def access_to(port: int, proxy: str = "", scheme: str = "https") -> Access:
    where = ClusterAccess(f"{scheme}://127.0.0.1:{port}", TlsSettings(pem_of(authority())), proxy_url=proxy)
    return open_access(where, environment={})


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator[tuple[trio.abc.Stream, str]]:
    with trio.fail_after(20):
        stream, protocol = await access.connect()
    try:
        yield stream, protocol
    finally:
        await trio.aclose_forcefully(stream)


async def test_a_connection_is_made_and_encrypted(network: Network) -> None:
    async with connected(access_to(await network.api())) as (stream, protocol):
        assert protocol == "h2"
        assert bytes(await stream.receive_some()) == b"api"


async def test_an_http_proxy_is_asked_to_connect(network: Network) -> None:
    port = await network.api()
    proxy = f"http://me:pass@127.0.0.1:{await network.http_proxy()}"
    async with connected(access_to(port, proxy)) as (stream, protocol):
        assert protocol == "h2"
        assert bytes(await stream.receive_some()) == b"api"
    (request,) = network.requests
    assert request.startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % port)
    assert b"Basic bWU6cGFzcw==\r\n" in request


@pytest.mark.parametrize("login", ["", "me:pass@"])
async def test_a_socks_proxy_is_asked_to_connect(network: Network, login: str) -> None:
    port = await network.api()
    proxy = f"socks5://{login}127.0.0.1:{await network.socks_proxy()}"
    async with connected(access_to(port, proxy)) as (stream, _):
        assert bytes(await stream.receive_some()) == b"api"
    assert network.requests[-1] == b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2, "big")
    assert (b"\x01\x02me\x04pass" in network.requests) == bool(login)


async def test_a_proxy_that_refuses_is_named(network: Network) -> None:
    port = await network.http_proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    with pytest.raises(ApiUnreachable, match=f"proxy http://127.0.0.1:{port} refused: 407 Proxy Authentication Requ"):
        await access_to(NOBODY, f"http://127.0.0.1:{port}").connect()
    port = await network.socks_proxy(status=5)
    with pytest.raises(ApiUnreachable, match="connection refused"):
        await access_to(NOBODY, f"socks5://127.0.0.1:{port}").connect()
    port = await network.http_proxy(b"SSH-2.0-x\r\n\r\n")
    with pytest.raises(ApiUnreachable, match="expected an HTTP response"):
        await access_to(NOBODY, f"http://127.0.0.1:{port}").connect()


async def test_a_refused_connection_says_where_and_why() -> None:
    with pytest.raises(ApiUnreachable) as failed:
        await access_to(NOBODY).connect()
    assert failed.value.cause == "dial tcp 127.0.0.1:1: connect: connection refused"
    assert not failed.value.sent


async def test_without_encryption_there_is_no_protocol_to_agree_on(network: Network) -> None:
    async with connected(access_to(await network.api(), scheme="http")) as (_, protocol):
        assert protocol == ""


async def test_credentials_that_are_missing_are_no_unreachable_server(tmp_path: Path) -> None:
    credentials = CredentialSettings(certificate=tmp_path / "c.pem", key=tmp_path / "c.pem")
    access = open_access(ClusterAccess("https://127.0.0.1:1", credentials=credentials))
    with pytest.raises(CredentialsError, match=r"open .*c\.pem: no such file or directory"):
        await access.connect()


def test_a_kubeconfig_is_opened_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError):
        open_access(tmp_path / "none")


def test_the_agent_names_itself() -> None:
    access = open_access(ClusterAccess("https://x"))
    assert access.user_agent.startswith("trikubelet/")
    assert "(linux/" in access.user_agent
    assert open_access(ClusterAccess("https://x"), user_agent="me").user_agent == "me"
