"""Dialling for real, on this machine."""

from __future__ import annotations

import socket
import ssl
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trustme

from tests.http.streaming.fake_runtime import SPDY_ANSWER, read_head
from trikubelet.http.streaming.runtime_upgrade import RuntimeStreamError, dial, runtime_address, runtime_upgrade

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HEADERS = [("host", "h"), ("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]


@asynccontextmanager
async def streaming_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Says yes to everybody, and then gives back what it gets. Its port."""

    async def serve(stream: trio.SocketStream) -> None:
        connection = stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await read_head(connection)
            await connection.send_all(SPDY_ANSWER)
            await connection.send_all(await connection.receive_some())
            await connection.aclose()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def tls_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_a_connection_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise AssertionError("an address needs no name server")

    monkeypatch.setattr(trio.to_thread, "run_sync", resolve)
    async with streaming_server() as port:
        async with runtime_upgrade(f"http://127.0.0.1:{port}/exec/t", "POST", HEADERS) as runtime:
            assert runtime.half_closeable
            await runtime.stream.send_all(b"hello")
            assert await runtime.stream.receive_some() == b"hello"


async def test_a_connection_that_rests_is_kept_alive() -> None:
    async with streaming_server() as port:
        stream = await dial(runtime_address(f"http://127.0.0.1:{port}/"))
        assert isinstance(stream, trio.SocketStream)
        async with stream:
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


async def test_a_port_that_nobody_listens_on_is_named_in_the_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(RuntimeStreamError, match=f"error dialing backend: 127.0.0.1:{port}: .*refused"):
            await dial(runtime_address(f"http://127.0.0.1:{port}/exec/SeCrEtTk"))


async def test_an_encrypted_connection_is_checked_by_the_machine_s_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = trustme.CA(), trustme.CA()
    known.cert_pem.write_to_path(str(tmp_path / "authorities.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    async with streaming_server(tls_of(known)) as port:
        async with runtime_upgrade(f"https://127.0.0.1:{port}/exec/t", "POST", HEADERS) as runtime:
            assert not runtime.half_closeable
            await runtime.stream.send_all(b"hello")
            assert await runtime.stream.receive_some() == b"hello"
    async with streaming_server(tls_of(unknown)) as port:
        with pytest.raises(RuntimeStreamError, match="certificate verify failed"):
            await dial(runtime_address(f"https://127.0.0.1:{port}/exec/t"))
