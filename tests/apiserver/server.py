"""The server: connections, TLS, who asks, may they, and then the store.

A request goes this way: TLS says who the client is (`users.py`; or a token does), the path says what is asked
(`requests.py`), a fault may strike (`faults.py`), the authorizer decides (`authorization.py`), and reads, watches,
writes and subresources answer (`reading.py`, `watches.py`, `registry.py`, `subresources.py`).

Tests on a mock clock take memory streams (`connect`): bytes that travel through a socket are not seen by the clock,
which would jump while they do. Either way the TLS is real.
"""

from __future__ import annotations

import base64
import json
import random
import ssl
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio
import trio.testing

from tests.apiserver.admin import Admin
from tests.apiserver.authorization import NodeAuthorizer
from tests.apiserver.errors import ApiFailure, unauthorized
from tests.apiserver.faults import Faults
from tests.apiserver.handling import Handling
from tests.apiserver.identities import Certificate, Identities
from tests.apiserver.node_proxy import NodeProxy
from tests.apiserver.reading import Reader
from tests.apiserver.registry import Registry
from tests.apiserver.requests import Call, read_call
from tests.apiserver.restriction import NodeRestriction
from tests.apiserver.reviews import Reviews
from tests.apiserver.store import Store, encode
from tests.apiserver.subresources import Subresources
from tests.apiserver.users import ANONYMOUS, User
from tests.apiserver.watches import WatchHub
from trikubelet.http.connection import HttpConnection
from trikubelet.http.limits import Limits
from trikubelet.http.messages import JSON, Response, UpgradeResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trustme

    from trikubelet.clock import WallClock
    from trikubelet.http.messages import AnyResponse, Request

HOST: Final = "apiserver.test"
NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_HANDSHAKE_TIMEOUT: Final = 10.0
_LIMITS: Final = Limits(body_size=8 * 2**20, idle_timeout=3600.0, header_timeout=3600.0, write_timeout=3600.0)
_REMEMBERED_CALLS: Final = 50_000


@attrs.frozen
class Answered:
    """A call and what became of it."""

    call: Call
    code: int
    """0: no answer, the connection broke."""
    at: float
    """Trio's time at which it arrived."""


@attrs.define(eq=False)
class _Connection:
    """One client's connection; closing its stream cuts it."""

    stream: trio.abc.Stream
    user: User | None = None
    """By certificate; None without one."""
    expires: float = 0.0

    def cut(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(trio.aclose_forcefully, self.stream)


class ApiServer:
    """An API server for tests. `run` it (or use `open_api_server`), then connect.

    `store`, `registry` and `admin` may be used by the test, at any time; `calls` tells what clients have asked.
    """

    def __init__(self, clock: WallClock, *, seed: int = 0, http2: bool = True) -> None:
        rng = random.Random(seed)
        self.clock = clock
        self.store = Store()
        self.restriction = NodeRestriction(self.store)
        self.registry = Registry(self.store, clock=clock, rng=rng, admit=self.restriction.admit)
        self.reader = Reader(self.store)
        self.watches = WatchHub(self.store, self.reader, random.Random(seed + 1))
        self.faults = Faults(rng=random.Random(seed + 2), hub=self.watches, cut_all=self._cut_all)
        self.authorizer = NodeAuthorizer(self.store)
        self.identities = Identities(clock, HOST)
        self.subresources = Subresources(
            self.registry, clock=clock, admit=self.restriction.admit, on_token=self.identities.add_token
        )
        self.reviews = Reviews(self.identities)
        self.node_proxy = NodeProxy(self.store, self.identities)
        self.handling = Handling(
            self.registry, self.reader, self.watches, self.subresources, self.reviews, self.node_proxy
        )
        self.admin = Admin(self.registry, self.subresources)
        self.calls: deque[Answered] = deque(maxlen=_REMEMBERED_CALLS)
        self._context = self.identities.server_context(["h2", "http/1.1"] if http2 else ["http/1.1"])
        self._connections: set[_Connection] = set()
        self._nursery: trio.Nursery | None = None
        for name in NAMESPACES:
            self.admin.ensure_namespace(name)

    # Identities.

    @property
    def url(self) -> str:
        """For clients on memory streams; `serve_tcp` has its own port."""
        return f"https://{HOST}:6443"

    @property
    def ca(self) -> trustme.CA:
        return self.identities.ca

    @property
    def ca_pem(self) -> bytes:
        return self.identities.ca_pem

    def node_certificate(self, name: str) -> Certificate:
        """The client certificate of the node's agent."""
        return self.identities.node_certificate(name)

    def admin_certificate(self) -> Certificate:
        return self.identities.admin_certificate()

    def kubeconfig(self, certificate: Certificate, url: str = "") -> str:
        """A kubeconfig with everything in it, for this server at `url`. It is JSON, which is YAML too."""

        def inline(pem: bytes) -> str:
            return base64.b64encode(pem).decode()

        cluster = {"server": url or self.url, "certificate-authority-data": inline(self.ca_pem)}
        user = {
            "client-certificate-data": inline(certificate.cert_pem),
            "client-key-data": inline(certificate.key_pem),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        return json.dumps(config, indent=2)

    # Connections.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve what `connect` connects, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def connect(self) -> trio.abc.Stream:
        """The client's end of a new connection, before TLS. Raises ConnectionRefusedError while unreachable."""
        await trio.lowlevel.checkpoint()
        if not self.faults.is_reachable:
            raise ConnectionRefusedError(111, "Connection refused")
        assert self._nursery is not None, "run the server first"
        client, served = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, served)
        return client

    async def serve_tcp(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on a port (0: any) until cancelled; `started` with its number. Needs `run` too."""
        first = True
        while True:
            changed = self.faults.reachability_changed()
            if not self.faults.is_reachable:
                await changed.wait()
                continue
            listeners = await trio.open_tcp_listeners(port, host=host)
            port = listeners[0].socket.getsockname()[1]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(trio.serve_listeners, self._serve, listeners, handler_nursery=self._nursery))
                if first:
                    first = False
                    task_status.started(port)
                await changed.wait()
                nursery.cancel_scope.cancel()
            for listener in listeners:
                await listener.aclose()

    def _cut_all(self) -> None:
        assert self._nursery is not None, "run the server first"
        for connection in list(self._connections):
            connection.cut(self._nursery)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        connection = _Connection(stream)
        self._connections.add(connection)
        try:
            await self._serve_tls(connection)
        finally:
            self._connections.discard(connection)
            await trio.aclose_forcefully(stream)

    async def _serve_tls(self, connection: _Connection) -> None:
        tls = trio.SSLStream(connection.stream, self._context, server_side=True, https_compatible=True)
        try:
            with trio.fail_after(_HANDSHAKE_TIMEOUT):
                await tls.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, ssl.SSLError):
            return
        connection.user, connection.expires = self.identities.of_certificate(tls.getpeercert())
        handler = partial(self.handle, connection)
        if tls.selected_alpn_protocol() == "h2":
            from tests.apiserver.http2 import serve_http2

            await serve_http2(tls, handler)
        else:
            await HttpConnection(tls, handler, _LIMITS).run()

    # Requests.

    async def handle(self, connection: _Connection, request: Request) -> AnyResponse:
        """One request of a connection."""
        at = trio.current_time()
        call = Call(request.method.lower(), request.path)
        lost = ""
        try:
            user = self._authenticate(connection, request)
            call = read_call(request, user.name)
            lost = await self.faults.strike(call)
            if lost == "request":
                await self._cut(connection, call, at)
            self.authorizer.authorize(user, call)
            response = await self.handling.answer(request, call, user)
        except ApiFailure as failure:
            response = failed(failure)
        if lost == "reply":
            await self._cut(connection, call, at)
        code = 101 if isinstance(response, UpgradeResponse) else response.status
        self.calls.append(Answered(call, code, at))
        return response

    async def _cut(self, connection: _Connection, call: Call, at: float) -> None:
        """Never returns: the connection's end cancels it."""
        self.calls.append(Answered(call, 0, at))
        assert self._nursery is not None
        connection.cut(self._nursery)
        await trio.sleep_forever()

    def _authenticate(self, connection: _Connection, request: Request) -> User:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            user = self.identities.of_token(token.strip())
            if user is None:
                raise unauthorized()
            return user
        if connection.user is None:
            return ANONYMOUS
        if connection.expires <= self.clock.now().timestamp():
            raise unauthorized()
        return connection.user


def failed(failure: ApiFailure) -> Response:
    """The answer that tells of a failure."""
    headers = (("Retry-After", str(failure.retry_after)),) if failure.retry_after is not None else ()
    return Response(encode(failure.status()) + b"\n", failure.code, JSON, headers)


@asynccontextmanager
async def open_api_server(clock: WallClock, *, seed: int = 0, http2: bool = True) -> AsyncIterator[ApiServer]:
    """A server that runs while the context is open."""
    server = ApiServer(clock, seed=seed, http2=http2)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()
