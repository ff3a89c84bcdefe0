"""Questions to the agent, and how they fail."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from trikubelet.cli.failures import CommandError
from trikubelet.cli.ui.asking import RefusedError, answer, asked
from trikubelet.http.messages import JSON, AnyResponse, HTTPError, Request, Response, StreamResponse, Writer
from trikubelet.http.server import HttpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


@asynccontextmanager
async def agent(root_dir: Path, handle: Callable[[Request], Awaitable[AnyResponse]]) -> AsyncIterator[Path]:
    """The socket of one that answers so."""
    socket = root_dir / "trikubelet.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(HttpServer(handle).serve_unix, socket)
        yield socket
        nursery.cancel_scope.cancel()


async def test_answers_and_what_was_asked(root_dir: Path) -> None:
    async def handle(request: Request) -> AnyResponse:
        return Response(f'["{request.method} {request.target}"]'.encode(), content_type=JSON)

    async with agent(root_dir, handle) as socket:
        assert await answer(socket, "/pods", {"uid": ["a", "b&c"], "watch": True}) == [
            "GET /pods?uid=a&uid=b%26c&watch=true"
        ]
        assert await answer(socket, "/a b", method="POST") == ["POST /a%20b"]


async def test_a_refusal_says_why(root_dir: Path) -> None:
    async def handle(_: Request) -> AnyResponse:
        raise HTTPError(409, "not now")

    async with agent(root_dir, handle) as socket:
        with pytest.raises(RefusedError, match=r"^not now$"):
            await answer(socket, "/pods")


async def test_what_is_no_json_is_told(root_dir: Path) -> None:
    async def handle(_: Request) -> AnyResponse:
        return Response(b"hello")

    async with agent(root_dir, handle) as socket:
        with pytest.raises(CommandError, match="answered no JSON"):
            await answer(socket, "/pods")


async def test_nobody_waits_for_ever(root_dir: Path) -> None:
    async def handle(request: Request) -> AnyResponse:
        async def stuck(writer: Writer) -> None:
            await writer.write(b"[1,")
            await trio.sleep_forever()

        if request.path == "/head":
            await trio.sleep_forever()
        return StreamResponse(stuck, content_type=JSON)

    async with agent(root_dir, handle) as socket:
        for path in ("/head", "/body"):
            with pytest.raises(CommandError, match="did not answer within 0 s"):
                await answer(socket, path, patience=0.2)


async def test_a_stream_comes_line_by_line_and_its_end_is_told(root_dir: Path) -> None:
    async def handle(_: Request) -> AnyResponse:
        async def lines(writer: Writer) -> None:
            for block in (b"on", b"e\ntw", b"o\n\nthree"):
                await writer.write(block)

        return StreamResponse(lines)

    async with agent(root_dir, handle) as socket, asked(socket, "/journal") as body:
        assert [await body.line() for _ in range(3)] == [b"one", b"two", b""]
        with pytest.raises(CommandError, match="has gone"):
            await body.line()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[1", b"SSH-2.0-what\r\n\r\n"])
async def test_whatever_else_answers_is_one_sentence(root_dir: Path, said: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(said)
        await stream.aclose()

    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(root_dir / "trikubelet.sock"))
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])
        with pytest.raises(CommandError):
            await answer(root_dir / "trikubelet.sock", "/pods")
        nursery.cancel_scope.cancel()


async def test_without_an_agent_it_says_so(root_dir: Path) -> None:
    with pytest.raises(CommandError, match="no agent answers on"):
        await answer(root_dir / "trikubelet.sock", "/pods")
