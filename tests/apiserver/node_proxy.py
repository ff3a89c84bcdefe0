"""What the API server does not answer itself: it asks the node, as itself, and hands over what the node says.

The node is found by its status, and shown the API server's client certificate; whose the node's own certificate is
does not matter, as it does not to an API server without `--kubelet-certificate-authority`. A log is passed on piece by
piece. A connection that a client wants to upgrade is passed on byte by byte, and is closed as soon as either side ends
it, without half-closes (`proxy.UpgradeAwareHandler`): between the node and a client there may be nothing kinder.

Clients that want WebSockets get them when the node declares `ExtendWebSocketsToKubelet`. Otherwise, or with
`websockets` switched off, they are refused, as by servers that know only SPDY, and kubectl then comes with that.
"""

from __future__ import annotations

import ssl
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import h11
import trio

from tests.apiserver.errors import ApiFailure, bad_request
from tests.apiserver.node_targets import NodeTarget, node_target, on_node
from tests.apiserver.resources import NODES
from tests.apiserver.store import encode
from tests.apiserver.users import MASTERS
from trikubelet.http.messages import JSON, AnyResponse, Response, StreamResponse, Takeover, UpgradeResponse, Writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.apiserver.identities import Identities
    from tests.apiserver.requests import Call
    from tests.apiserver.store import Store
    from trikubelet.http.messages import Request

NAME: Final = "kube-apiserver-kubelet-client"
"""Who the API server is to nodes."""
_BLOCK: Final = 32 * 2**10
_DIAL_TIMEOUT: Final = 10.0
_LONGEST_REFUSAL: Final = 64 * 2**10
_FORWARDED: Final = ("accept", "accept-encoding", "content-type", "user-agent")
"""Of a request that is not upgraded."""
_ABOUT_THE_CONNECTION: Final = ("connection", "content-length", "content-type", "transfer-encoding", "date")
"""Of an answer."""


@attrs.frozen
class _Asked:
    """A node's answer, up to its body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    stream: trio.abc.Stream
    http: h11.Connection

    @property
    def content_type(self) -> str:
        return next((value for name, value in self.headers if name == "content-type"), "text/plain")

    async def body(self) -> AsyncIterator[bytes]:
        """Piece by piece. Raises trio.BrokenResourceError and h11.RemoteProtocolError when it is cut off."""
        while isinstance(event := await _next(self.stream, self.http), h11.Data):
            yield bytes(event.data)

    async def text(self) -> str:
        """As much of the body as a message may have."""
        found = b""
        async for data in self.body():
            found += data
            if len(found) >= _LONGEST_REFUSAL:
                break
        return found.decode(errors="replace")


class NodeProxy:
    """Answers with what nodes answer."""

    def __init__(self, store: Store, identities: Identities) -> None:
        self._store = store
        self._identities = identities
        self.websockets = True
        """Off: as API servers that always turn a WebSocket into SPDY, but without that skill."""

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        certificate = self._identities.certificate(NAME, MASTERS)
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "pair.pem"
            pair.write_bytes(certificate.cert_pem + certificate.key_pem)
            context.load_cert_chain(pair)
        return context

    async def answer(self, request: Request, call: Call) -> AnyResponse:
        """For a call of one of the subresources that nodes have. Raises ApiFailure."""
        target = node_target(self._store, request, call)
        if "upgrade" in request.headers:
            if request.headers["upgrade"].lower() == "websocket" and not (
                self.websockets and target.extends_websockets
            ):
                raise bad_request("unable to upgrade: expected SPDY/3.1, for this node is not reached by WebSockets")
            return UpgradeResponse(partial(self._upgrade, request, target))
        if call.subresource in ("exec", "attach", "portforward"):
            raise bad_request("Upgrade request required")
        if call.info is NODES:
            return await self._whole(request, target)
        return await self._log(target)

    async def get(self, node: str, path: str) -> bytes:
        """The body of a node's page, for those who collect metrics. Raises ApiFailure for anything but 200."""
        async with self._asked("GET", on_node(self._store, node, path), {}, b"") as asked:
            if asked.status != 200:
                raise ApiFailure(500, "InternalError", f"Internal error occurred: {await asked.text()}")
            return b"".join([data async for data in asked.body()])

    async def _whole(self, request: Request, target: NodeTarget) -> AnyResponse:
        """What a node says under its proxy, as it says it."""
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        async with self._asked(request.method, target, headers, request.body) as asked:
            body = b"".join([data async for data in asked.body()])
            kept = tuple((name, value) for name, value in asked.headers if name in ("content-encoding", "allow"))
            return Response(body, asked.status, asked.content_type, kept)

    async def _log(self, target: NodeTarget) -> StreamResponse:
        async with AsyncExitStack() as stack:
            asked = await stack.enter_async_context(self._asked("GET", target, {}, b""))
            if asked.status != 200:
                raise _refused(asked.status, await asked.text())
            connected = stack.pop_all()

        async def produce(writer: Writer) -> None:
            async with connected:
                await writer.write(b"")
                async for data in asked.body():
                    await writer.write(data)

        return StreamResponse(produce)

    @asynccontextmanager
    async def _asked(
        self, method: str, target: NodeTarget, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[_Asked]:
        """Ask a node; the connection lasts as long as the context. Raises ApiFailure."""
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
        fields = [("Host", f"{target.host}:{target.port}"), *headers.items(), ("Connection", "close")]
        fields.append(("Content-Length", str(len(body))))
        data = http.send(h11.Request(method=method, target=target.target, headers=fields)) or b""
        data += http.send(h11.Data(data=body)) or b""
        data += http.send(h11.EndOfMessage()) or b""
        async with self._dialled(target) as stream:
            await stream.send_all(data)
            yield await _head(stream, http)

    @asynccontextmanager
    async def _dialled(self, target: NodeTarget) -> AsyncIterator[trio.abc.Stream]:
        try:
            with trio.fail_after(_DIAL_TIMEOUT):
                raw = await trio.open_tcp_stream(target.host, target.port)
                stream = trio.SSLStream(raw, self._context, https_compatible=True)
                await stream.do_handshake()
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            why = f"error dialing backend: {target.host}:{target.port}: {error!r}"
            raise ApiFailure(500, "InternalError", f"Internal error occurred: {why}") from error
        try:
            yield stream
        finally:
            await trio.aclose_forcefully(stream)

    async def _upgrade(self, request: Request, target: NodeTarget, takeover: Takeover) -> None:
        try:
            await self._pass_upgrade(request, target, takeover)
        except ApiFailure as failure:
            await takeover.answer(Response(encode(failure.status()), failure.code, JSON))

    async def _pass_upgrade(self, request: Request, target: NodeTarget, takeover: Takeover) -> None:
        """Pass a client's own request on, and after a 101 everything."""
        fields = [(name, value) for name, value in request.raw_headers if name != "authorization"]
        fields.append(("x-forwarded-for", "127.0.0.1"))
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
        data = http.send(h11.Request(method=request.method, target=target.target, headers=fields)) or b""
        async with self._dialled(target) as node:
            await node.send_all(data + (http.send(h11.EndOfMessage()) or b""))
            asked = await _head(node, http)
            if asked.status != 101:
                kept = tuple(pair for pair in asked.headers if pair[0] not in _ABOUT_THE_CONNECTION)
                await takeover.answer(Response((await asked.text()).encode(), asked.status, asked.content_type, kept))
                return
            client = await takeover.accept(asked.headers)
            first = http.trailing_data[0]
            if first:
                await client.send_all(first)
            await _pass_on(client, node)


async def _pass_on(client: trio.abc.Stream, node: trio.abc.Stream) -> None:
    """Copy both ways until either side ends."""
    async with trio.open_nursery() as nursery:

        async def copy(source: trio.abc.Stream, sink: trio.abc.Stream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while data := await source.receive_some(_BLOCK):
                    await sink.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(copy, client, node)
        nursery.start_soon(copy, node, client)


async def _head(stream: trio.abc.Stream, http: h11.Connection) -> _Asked:
    event = await _next(stream, http)
    headers = tuple((name.decode().lower(), value.decode("latin-1")) for name, value in event.headers)
    return _Asked(event.status_code, headers, stream, http)


async def _next(stream: trio.abc.Stream, http: h11.Connection) -> Any:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(bytes(await stream.receive_some(_BLOCK)))
    return event


def _refused(status: int, text: str) -> ApiFailure:
    """A node's refusal as the API server tells it (`rest.GenericHttpResponseChecker`)."""
    if status == 400:
        return bad_request(text)
    if status == 500:
        return ApiFailure(500, "InternalError", f"Internal error occurred: {text}")
    reason = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 422: "Invalid"}.get(status, "")
    return ApiFailure(status, reason, text)
