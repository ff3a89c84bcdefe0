"""The node's ports: what listens where, and what is served there.

    node         `address`, `port`: TLS, for the API server, metrics collectors and other authorized clients
    read-only    `address`, `readOnlyPort`: the little that anybody may know, in the clear; off by default
    health       `healthzBindAddress`, `healthzPort`: for this machine (kubeadm waits for it)

A port that cannot be had ends the agent, as in the kubelet; the one for health is tried again instead. The kubelet does
so every five seconds and logs an error each time; here the pauses grow, and each problem is logged once. As in Go,
"0.0.0.0" and "::" both mean every address of both families, where the machine has them.

A connection costs a task, a descriptor and, at worst, about what `NODE_LIMITS` adds up to. How many there may be is
limited for each port by itself, so one that is full does not close the others.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen
from trikubelet.http.limits import Limits
from trikubelet.http.messages import Handler, Peer
from trikubelet.http.server import HttpServer, HttpStatistics
from trikubelet.node.port_holder import Holder, port_holder
from trikubelet.node_api.tls_settings import TlsSettings, read_tls_settings
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.kube_client.certificates.serving import ServingCertificate
    from trikubelet.node_api.serving_tls import ServingTls

log = get_logger("http")

NODE_LIMITS: Final = Limits(header_size=64 * 2**10, body_size=64 * 2**10)
"""Go's server takes a head of 1 MiB. Here its lines are taken apart in Python, by the loop that everything else waits
for, before authentication: 300 ms for 1 MiB of short lines, 16 ms for 64 KiB. The longest heads are those
of exec, whose command is in the URL. No route has a use for a body."""
HEALTH_LIMITS: Final = attrs.evolve(NODE_LIMITS, connections=100, header_size=16 * 2**10, body_size=2**10)

RETRIES: Final = Backoff(first=5.0, longest=60.0)
"""Between two tries for a port that is not worth ending for (kubelet: `wait.UntilWithContext`, every 5 s)."""
PAUSES: Final = Backoff(first=0.05, longest=1.0)
"""Without accepting after that failed, for the lack of descriptors mostly."""

_KEEPALIVE_IDLE: Final = 15
_KEEPALIVE_PROBES: Final = 9
"""Seconds, and how often: what Go's listeners ask for. A peer that has vanished is noticed after 2.5 minutes."""
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT, errno.EINVAL})


Secure = Callable[[trio.abc.Stream, str], Awaitable[tuple[trio.abc.Stream, Peer] | None]]
"""`ServingTls.begin`: a connection and its address become TLS."""


class PortError(Exception):
    """A port cannot be listened on. The text tells why, and what to change."""


@frozen(kw_only=True)
class Port:
    """One to listen on, and what to serve there."""

    name: str
    address: str
    """An IP address."""
    number: int
    """0: any that is free."""
    handler: Handler
    limits: Limits = NODE_LIMITS
    secure: Secure | None = None
    """None: in the clear."""
    tried_again: bool = False
    """Instead of failing when the port cannot be had."""
    address_option: str = "address (--address)"
    number_option: str = "port (--port)"
    """What a user would change, by its names."""


def node_ports(
    configuration: KubeletConfiguration,
    *,
    node: Handler,
    read_only: Handler,
    health: Handler,
    certificate: ServingCertificate | None = None,
    client_authorities: Callable[[], bytes] = bytes,
) -> tuple[Port, ...]:
    """The ports that the configuration asks for.

    Somebody else runs `certificate`; None: the node's port is not served. `client_authorities` gives the PEM bundle of
    `clientCAFile` as it is now; empty: clients are not asked for certificates.

    Raises TlsSettingsError.
    """
    ports: list[Port] = []
    if configuration.enable_server and certificate is not None:
        secure = _secured(read_tls_settings(configuration), certificate, client_authorities)
        port = Port(name="node", address=configuration.address, number=configuration.port, handler=node, secure=secure)
        ports.append(port)
    if configuration.read_only_port:
        port = Port(
            name="read-only",
            address=configuration.address,
            number=configuration.read_only_port,
            handler=read_only,
            number_option="readOnlyPort (--read-only-port)",
        )
        ports.append(port)
    if configuration.healthz_port:
        port = Port(
            name="health",
            address=configuration.healthz_bind_address,
            number=configuration.healthz_port,
            handler=health,
            limits=HEALTH_LIMITS,
            tried_again=True,
            address_option="healthzBindAddress (--healthz-bind-address)",
            number_option="healthzPort (--healthz-port)",
        )
        ports.append(port)
    return tuple(ports)


def _secured(settings: TlsSettings, certificate: ServingCertificate, client_authorities: Callable[[], bytes]) -> Secure:
    """Has OpenSSL imported with the first client, or at once to check what it is asked to do."""
    if settings != TlsSettings():
        from trikubelet.node_api.serving_tls import check_settings

        check_settings(settings)
    loaded: list[ServingTls] = []
    loading = trio.Lock()

    def load() -> ServingTls:
        """Takes a tenth of a second, and with some keys half a second, in which others want to be served."""
        from trikubelet.node_api.serving_tls import ServingTls

        tls = ServingTls(settings, certificate, client_authorities)
        tls.context()
        return tls

    async def begin(transport: trio.abc.Stream, address: str) -> tuple[trio.abc.Stream, Peer] | None:
        async with loading:
            if not loaded:
                loaded.append(await trio.to_thread.run_sync(load))
        return await loaded[0].begin(transport, address)

    return begin


class NodeListeners:
    """Serves any number of ports. `run` it once."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = {port.name: _ServedPort(port) for port in ports}

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Address and number of each port that is listened on, by its name."""
        return {name: served.bound for name, served in self._ports.items() if served.bound is not None}

    def statistics(self) -> Mapping[str, HttpStatistics]:
        return {name: served.server.statistics() for name, served in self._ports.items()}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, or shut down. Started when every port that is not tried again is listened on.

        Raises PortError before that. When cancelled, handlers are cancelled and connections cut.
        """
        async with trio.open_nursery() as nursery:
            for served in self._ports.values():
                await nursery.start(served.run)
            task_status.started()

    async def shutdown(self, grace: float) -> None:
        """Accept no more connections, give answers in progress `grace` seconds. `run` returns then."""
        async with trio.open_nursery() as nursery:
            for served in self._ports.values():
                nursery.start_soon(served.server.shutdown, grace)


class _ServedPort:
    def __init__(self, port: Port) -> None:
        self._port = port
        self._pause = 0.0
        self.server = HttpServer(port.handler, limits=port.limits)
        self.bound: tuple[str, int] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as connections:
            with self.server.accepting():
                if self._port.tried_again:
                    task_status.started()
                    await supervise(self._listen, connections)
                else:
                    await supervise(self._listen, connections, task_status=task_status)

    async def _listen(
        self, connections: trio.Nursery, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with await self._listener() as listener:
            task_status.started()
            await self._accept(listener, connections)

    async def _listener(self) -> trio.SocketListener:
        port = self._port
        pause, told = RETRIES.first, ""
        while True:
            try:
                sock = await open_port(port)
                break
            except PortError as error:
                if not port.tried_again:
                    raise
                if str(error) != told:
                    told = str(error)
                    log.error(f"{told}. The agent goes on without this port, tries again, and says when it listens")
                await trio.sleep(pause)
                pause = RETRIES.after(pause)
        self.bound = sock.getsockname()[:2]
        if told:  # a warning, because whoever saw the error waits for it
            log.warning(f"listening on {_shown(*self.bound)} ({port.name}) after all")
        log.info("listening", port=port.name, address=_shown(*self.bound), tls=port.secure is not None)
        return trio.SocketListener(sock)

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if not self._pause:
                    log.error("nobody is let in for now", port=self._port.name, error=error.strerror)
                self._pause = PAUSES.after(self._pause) if self._pause else PAUSES.first
                await trio.sleep(self._pause)
            else:
                self._pause = 0.0
                connections.start_soon(contain, self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        secure = self._port.secure
        try:
            address = _shown(*stream.socket.getpeername()[:2])
        except OSError:  # gone already
            await trio.aclose_forcefully(stream)
            return
        if secure is None:
            await self.server.serve_stream(stream, Peer(address))
        else:
            await self.server.serve_transport(stream, partial(secure, stream, address), address)


async def open_port(port: Port) -> trio.socket.SocketType:
    """A socket that listens. Raises PortError."""
    holder = None
    try:
        try:
            return await _opened(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            holder = await trio.to_thread.run_sync(port_holder, port.address, port.number)
            if holder is not None:
                raise
        return await _opened(port)  # whoever had it has ended meanwhile
    except OSError as error:
        place = _shown(port.address, port.number)
        raise PortError(f"cannot listen on {place} ({port.name}): {_what_to_do(error, port, holder)}") from error


async def _opened(port: Port) -> trio.socket.SocketType:
    numeric = socket.AI_NUMERICHOST  # so that no name server is asked
    found = await trio.socket.getaddrinfo(port.address, port.number, type=socket.SOCK_STREAM, flags=numeric)
    family, *_, address = found[0]
    if not ipaddress.ip_address(str(address[0])).is_unspecified:
        return trio.socket.from_stdlib_socket(_listening(family, address))
    try:
        return trio.socket.from_stdlib_socket(_listening(socket.AF_INET6, ("::", port.number)))
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return trio.socket.from_stdlib_socket(_listening(socket.AF_INET, ("0.0.0.0", port.number)))


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Connections inherit these.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_IDLE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
        sock.bind(address)
        sock.listen(socket.SOMAXCONN)
    except BaseException:
        sock.close()
        raise
    return sock


def _what_to_do(error: OSError, port: Port, holder: Holder | None) -> str:
    if isinstance(error, socket.gaierror):
        return f"{port.address_option} has to be an IP address"
    what = os.strerror(error.errno or 0).lower()
    if error.errno == errno.EADDRINUSE:
        by = f"by {holder}" if holder is not None else "perhaps by a kubelet"
        return f"{what}, {by}: end it, or set another {port.number_option}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{what} on this machine: set another {port.address_option}"
    return f"{what}: set another {port.number_option} or {port.address_option}"


def _shown(address: object, number: object) -> str:
    """As in a URL; an IPv4 address that came by an IPv6 socket as what it is."""
    text = str(address).removeprefix("::ffff:") if "." in str(address) else str(address)
    return f"[{text}]:{number}" if ":" in text else f"{text}:{number}"
