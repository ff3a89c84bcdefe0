"""A whole agent that serves all of its ports, and those who ask it, over real sockets.

The agent is a simulated one. Its clock runs as fast as the world's, so that bytes can travel through sockets, and can
be told to jump, so that caches and deadlines run out. Every port is one that is free.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import h11
import trio
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.agent.sim_node import SimNode, static_pod
from tests.apiserver.access import ServerAccess
from tests.apiserver.server import ApiServer, open_api_server
from tests.node_api.auth.people import authority
from trikubelet.agent.node_view import NodeView
from trikubelet.agent.server import AgentServer
from trikubelet.config.kubelet_configuration import Authentication, KubeletConfiguration, X509Authentication
from trikubelet.kube_client.certificates.self_signed import write_pair
from trikubelet.kube_client.certificates.signing import self_signed
from trikubelet.kube_client.client import open_client
from trikubelet.rpc.grpc.unix import connect_unix
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from tests.node_api.auth.people import Signer
    from trikubelet.http.server import HttpStatistics
    from trikubelet.node_api.listeners import Port

NODE: Final = "simulated"
POD: Final = "web-node"
UID: Final = "uid-of-web"
PORTS: Final = ("node", "read-only", "health")
PATIENCE: Final = 120.0
"""Seconds; more than any clock here jumps at once."""


class OnFreePorts(AgentServer):
    """What an agent serves, with other port numbers: 0 in a configuration means none."""

    def _ports(self) -> Sequence[Port]:
        return [attrs.evolve(port, number=0) for port in super()._ports()]

    def statistics(self) -> Mapping[str, HttpStatistics]:
        """Of the ports by name, and of the `socket`."""
        return {"socket": self._local.statistics(), **self._listeners.statistics()}


@attrs.define
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


@attrs.define(eq=False)
class Served(SimNode):
    """An agent that runs the static pod `default/web-node`, its servers, and the API server that it asks."""

    server: OnFreePorts
    folder: Path
    api: ApiServer | None

    @property
    def client_ca(self) -> Path:
        """The file of the authorities of client certificates."""
        return self.folder / "clients.pem"

    async def dial(self, port: str, context: ssl.SSLContext | None = None) -> trio.abc.Stream:
        """A connection to a port as it wants it, or to the agent's `socket`."""
        if port == "socket":
            return await connect_unix(self.agent.options.socket)
        stream = await trio.open_tcp_stream(*self.server.addresses[port])
        if port != "node":
            return stream
        return trio.SSLStream(stream, context or client_context(), https_compatible=True)

    def caller(self, port: str = "node", certificate: Signer | None = None, token: str = "") -> Caller:
        context = client_context() if certificate is None else client_context(self.folder, certificate)
        return Caller(partial(self.dial, port, context), token)


@attrs.define(eq=False)
class Caller:
    """Somebody with a certificate, or a token, or neither. Keeps its connection from one request to the next."""

    dial: Callable[[], Awaitable[trio.abc.Stream]]
    token: str = ""
    host: str = "node"
    connections: int = 0
    """How many it has needed so far."""
    _stream: trio.abc.Stream | None = None
    _http: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))

    async def ask(self, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> Answer:
        with trio.fail_after(PATIENCE):
            try:
                return await self._ask(method, path, headers, body)
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                if self.connections == 0:
                    raise
                await self.hang_up()  # it had been idle for long enough to be closed
                return await self._ask(method, path, headers, body)

    async def status(self, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> int:
        return (await self.ask(method, path, *headers, body=body)).status

    async def hang_up(self) -> None:
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
        self._stream = None

    async def shown(self) -> bytes:
        """DER of the certificate that the node shows on this connection."""
        await self.ask("GET", "/healthz")
        assert isinstance(self._stream, trio.SSLStream)
        der: bytes = self._stream.getpeercert(binary_form=True)
        return der

    async def _ask(self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        if self._stream is None:
            self._stream = await self.dial()
            self._http = h11.Connection(h11.CLIENT)
            self.connections += 1
        fields = [("Host", self.host), ("Content-Length", str(len(body))), *headers]
        if self.token:
            fields.append(("Authorization", f"Bearer {self.token}"))
        http = self._http
        data = http.send(h11.Request(method=method, target=path, headers=fields)) or b""
        data += http.send(h11.Data(data=body)) or b""
        await self._stream.send_all(data + (http.send(h11.EndOfMessage()) or b""))
        answer = await self._answer(self._stream)
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            http.start_next_cycle()
        else:
            await self.hang_up()
        return answer

    async def _answer(self, stream: trio.abc.Stream) -> Answer:
        answer = Answer(0, {}, b"")
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                answer = Answer(event.status_code, headers, b"")
            elif isinstance(event, h11.Data):
                answer.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return answer
            else:
                assert event is h11.NEED_DATA, event
                self._http.receive_data(bytes(await stream.receive_some()))


def client_context(folder: Path | None = None, shown: Signer | None = None) -> ssl.SSLContext:
    """A client that takes the node's certificate as it is, as API servers do. `folder` is for the file of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None and shown is not None:
        file = folder / f"{shown.certificate.serial_number}.pem"
        if not file.exists():
            file.write_bytes(shown.pem + key_pem(shown))
        context.load_cert_chain(file)
    return context


def key_pem(signer: Signer) -> bytes:
    return signer.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@asynccontextmanager
async def served(
    folder: Path, *, cluster: bool = True, ui_address: tuple[str, int] | None = None, **configuration: Any
) -> AsyncIterator[Served]:
    """An agent with all of its ports. `configuration` has fields of the KubeletConfiguration; without a cluster it has
    to say who is let in. `ui_address` is where the live page is, if there is to be one."""
    sim = SimulatedRuntime(seed=1, write_logs=True)
    api = None
    async with trio.open_nursery() as nursery:
        client = None
        if cluster:
            api = await nursery.start(_api_server, sim)
            client = await nursery.start(_api_client, api)
        (folder / "root").mkdir()
        (folder / "clients.pem").write_bytes(authority().pem)
        fields = {
            "authentication": authentication(folder),
            "read_only_port": 1,
            "kube_api_qps": 0,
            **configuration,
        }
        source = ScriptedSource("file")
        async with simulated_node(
            sim,
            sources={"file": source},
            folder=folder,
            configuration=attrs.evolve(KubeletConfiguration(), **fields),
            api_client=client,
            change_options=lambda options: attrs.evolve(options, ui_address=ui_address),
        ) as node:
            view = NodeView(node.agent, started_at=sim.clock.now())
            await nursery.start(view.run)
            write_pair(node.agent.options.root_dir / "pki", *self_signed(NODE, sim.clock.now()))
            server = await OnFreePorts.make(node.agent, view)
            await nursery.start(server.run)
            found = Served(node.agent, sim, source, node.targets, server, folder, api)
            pod = static_pod("web", nodeName=NODE)
            source.put(pod)
            await found.until_running(pod)
            yield found
            await server.shutdown()
            nursery.cancel_scope.cancel()


def authentication(folder: Path, **changes: Any) -> Authentication:
    """Tokens by the API server, and certificates of the cluster's authority."""
    return attrs.evolve(Authentication(x509=X509Authentication(client_ca_file=str(folder / "clients.pem"))), **changes)


async def _api_server(sim: SimulatedRuntime, *, task_status: trio.TaskStatus[ApiServer]) -> None:
    async with open_api_server(sim.clock) as api:
        task_status.started(api)
        await trio.sleep_forever()


async def _api_client(api: ApiServer, *, task_status: trio.TaskStatus[Any]) -> None:
    async with open_client(ServerAccess.node(api, NODE)) as client:
        task_status.started(client)
        await trio.sleep_forever()
