"""A client and a server of one handler, on memory streams."""

from __future__ import annotations

import json
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio
import trio.testing

from tests.apiserver.http2 import Http2Connection
from trikubelet.http.limits import Limits
from trikubelet.http.messages import AnyResponse, Handler, Request, StreamResponse, Writer, json_response
from trikubelet.http.server import HttpServer
from trikubelet.kube_client.client import HttpApiClient, open_client
from trikubelet.kube_client.errors import ApiUnreachable, CredentialsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from trikubelet.kube_client.calls import WrapTransport
    from trikubelet.kube_client.types import RateLimit

Protocol = Literal["h2", "http/1.1"]


@attrs.define
class Connected:
    """A connection as the server holds it."""

    transport: trio.abc.Stream
    scope: trio.CancelScope
    http2: Http2Connection | None = None

    def cut(self) -> None:
        """End it without a word."""
        self.scope.cancel()


class StageAccess:
    """An `Access` that connects to a handler in the same process."""

    server = "https://api.test:6443"
    user_agent = "trikubelet/test"

    def __init__(self, nursery: trio.Nursery, handler: Handler, protocol: Protocol, max_streams: int) -> None:
        self.protocol = protocol
        self.reachable = True
        self.connections: list[Connected] = []
        self.connects = 0
        self.credentials: dict[str, str] = {"Authorization": "Bearer one"}
        self.credentials_problem = ""
        self.headers_take = 0.0
        self.rejections: list[Mapping[str, str]] = []
        self.renew: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[], None]] = []
        self._nursery = nursery
        self._handler = handler
        self._max_streams = max_streams
        # A watch is longer than what this server allows a client to stay silent.
        self._http1 = HttpServer(handler, limits=Limits(idle_timeout=1e6))

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        await trio.lowlevel.checkpoint()
        if not self.reachable:
            raise ApiUnreachable("connect", "Connection refused", sent=False)
        self.connects += 1
        ours, theirs = trio.testing.memory_stream_pair()
        await self._nursery.start(self._serve, theirs)
        return ours, self.protocol

    async def headers(self) -> Mapping[str, str]:
        await trio.sleep(self.headers_take)
        if self.credentials_problem:
            raise CredentialsError("", self.credentials_problem)
        return self.credentials

    def rejected(self, headers: Mapping[str, str]) -> None:
        self.rejections.append(headers)
        self.renew()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def change(self) -> None:
        for listener in self._listeners:
            listener()

    def cut_all(self) -> None:
        for connected in list(self.connections):
            connected.cut()

    async def _serve(self, stream: trio.abc.Stream, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as scope:
            connected = Connected(stream, scope)
            self.connections.append(connected)
            task_status.started()
            if self.protocol == "h2":
                connected.http2 = Http2Connection(stream, self._handler, self._max_streams)
                await connected.http2.run()
            else:
                await self._http1.serve_stream(stream)
        self.connections.remove(connected)


@asynccontextmanager
async def staged(
    handler: Handler,
    protocol: Protocol = "h2",
    *,
    limit: RateLimit | None = None,
    timeout: float = 30.0,
    max_streams: int = 250,
    wrap: WrapTransport | None = None,
) -> AsyncIterator[tuple[HttpApiClient, StageAccess]]:
    """`async with staged(handler) as (client, access)`."""
    async with trio.open_nursery() as nursery:
        access = StageAccess(nursery, handler, protocol, max_streams)
        async with open_client(access, limit=limit, timeout=timeout, rng=random.Random(1), wrap=wrap) as client:
            yield client, access
        nursery.cancel_scope.cancel()


class Script:
    """A handler that keeps what it was asked, and answers with what it is given, the last answer for ever."""

    def __init__(self, *answers: AnyResponse) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers)

    async def __call__(self, request: Request) -> AnyResponse:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @property
    def last(self) -> Request:
        return self.requests[-1]


def pod(name: str = "a", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "7", **metadata},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def status(code: int, reason: str, message: str = "no", retry_after: int | None = None) -> AnyResponse:
    """A refusal in the server's words."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    response = json_response({**body, "message": message}, code)
    if retry_after is None:
        return response
    return attrs.evolve(response, headers=(("Retry-After", str(retry_after)),))


def event(kind: str, obj: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def stream_of(*pieces: bytes, forever: bool = False) -> StreamResponse:
    """A watch that tells these bytes, and ends then or stays open."""

    async def produce(writer: Writer) -> None:
        await writer.write(b"")
        for piece in pieces:
            await writer.write(piece)
        if forever:
            await trio.sleep_forever()

    return StreamResponse(produce, content_type="application/json")
