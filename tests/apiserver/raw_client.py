"""A client that knows HTTP/1.1 and nothing of Kubernetes: what the server's own tests ask it with."""

from __future__ import annotations

import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import attrs
import h11
import trio

from tests.apiserver.identities import NO_CHECK_TIME, Certificate
from tests.apiserver.server import HOST, ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_RECEIVE: Final = 65536
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


@attrs.frozen
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Of a Status."""
        return str(self.document.get("message", ""))


def client_context(
    server: ApiServer, certificate: Certificate | None, protocols: Sequence[str] = ("http/1.1",)
) -> ssl.SSLContext:
    """TLS that trusts the server and shows the certificate."""
    return tls_context(server.ca_pem, certificate, protocols)


def tls_context(ca_pem: bytes, certificate: Certificate | None, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca_pem.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # The server tells the time by its own clock, and so do the certificates that it signs.
    context.verify_flags |= NO_CHECK_TIME
    context.set_alpn_protocols(list(protocols))
    if certificate is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pair.pem"
            path.write_bytes(certificate.cert_pem + certificate.key_pem)
            context.load_cert_chain(path)
    return context


@attrs.frozen
class Endpoint:
    """Where a server is and who asks it."""

    dial: Callable[[], Awaitable[trio.abc.Stream]]
    host: str
    context: ssl.SSLContext
    token: str = ""


class RawClient:
    """Requests as one user, each on a connection of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @classmethod
    def of(cls, server: ApiServer, certificate: Certificate | None = None, *, token: str = "") -> RawClient:
        return cls(Endpoint(server.connect, HOST, client_context(server, certificate), token))

    @classmethod
    def admin(cls, server: ApiServer) -> RawClient:
        return cls.of(server, server.admin_certificate())

    @classmethod
    def node(cls, server: ApiServer, name: str) -> RawClient:
        return cls.of(server, server.node_certificate(name))

    async def get(self, path: str, **query: str) -> Answer:
        return await self.request("GET", path, query=query)

    async def post(self, path: str, document: Any) -> Answer:
        return await self.request("POST", path, document)

    async def put(self, path: str, document: Any) -> Answer:
        return await self.request("PUT", path, document)

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Answer:
        return await self.request("PATCH", path, body, content_type=content_type)

    async def delete(self, path: str, options: Any = None) -> Answer:
        return await self.request("DELETE", path, options)

    async def request(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Raises trio.BrokenResourceError when the connection ends before the answer."""
        async with self._connected() as (stream, http):
            body = b"" if document is None else json.dumps(document).encode()
            await self._send(stream, http, method, path, query or {}, body, content_type)
            response = await _next(stream, http)
            assert isinstance(response, h11.Response), response
            received = bytearray()
            while isinstance(event := await _next(stream, http), h11.Data):
                received += event.data
            return Answer(response.status_code, _headers(response), bytes(received))

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a watch; the iterator ends with it. A refusal fails the test with its text."""
        async with self._connected() as (stream, http):
            await self._send(stream, http, "GET", path, {"watch": "true", **query}, b"", "")
            response = await _next(stream, http)
            assert isinstance(response, h11.Response)
            assert response.status_code == 200, (await _next(stream, http), response)
            yield _lines(stream, http)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[trio.SSLStream[trio.abc.Stream], h11.Connection]]:
        raw, host = await self._endpoint.dial(), self._endpoint.host
        stream = trio.SSLStream(raw, self._endpoint.context, server_hostname=host, https_compatible=True)
        try:
            yield stream, h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
        finally:
            await trio.aclose_forcefully(stream)

    async def _send(
        self,
        stream: trio.SSLStream[trio.abc.Stream],
        http: h11.Connection,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes,
        content_type: str,
    ) -> None:
        target = f"{path}?{urlencode(query)}" if query else path
        headers = [
            ("Host", self._endpoint.host),
            ("Content-Length", str(len(body))),
            ("User-Agent", "raw"),
            ("Connection", "close"),
        ]
        headers += [("Content-Type", content_type)] if body else []
        if self._endpoint.token:
            headers.append(("Authorization", f"Bearer {self._endpoint.token}"))
        data = http.send(h11.Request(method=method, target=target, headers=headers)) or b""
        data += http.send(h11.Data(data=body)) or b""
        await stream.send_all(data + (http.send(h11.EndOfMessage()) or b""))


async def _next(stream: trio.SSLStream[trio.abc.Stream], http: h11.Connection) -> Any:
    while (event := http.next_event()) is h11.NEED_DATA:
        data = await stream.receive_some(_RECEIVE)
        if not data:
            raise trio.BrokenResourceError("the server closed the connection")
        http.receive_data(bytes(data))
    return event


def _headers(response: h11.Response) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in response.headers}


async def _lines(stream: trio.SSLStream[trio.abc.Stream], http: h11.Connection) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    while isinstance(event := await _next(stream, http), h11.Data):
        *lines, rest = (rest + event.data).split(b"\n")
        for line in lines:
            yield json.loads(line)
