"""`/exec`, `/attach` and `/portForward`: what is asked, where the runtime streams it, and what carries the bytes.

Three ways lead from a client to the runtime, and the request's headers choose:

    WebSocket, `v5.channel.k8s.io`              translated to SPDY (exec and attach)
    WebSocket, `SPDY/3.1+portforward.k8s.io`    unpacked to SPDY (port-forward)
    anything else that asks for an upgrade      passed through

Runtimes know no v5, so the first two are what makes the node able to say `ExtendWebSocketsToKubelet`. Texts and
statuses are the kubelet's (`getExec`, `getAttach`, `getPortForward`, `streaming.WriteError`). The command of an exec,
the request's headers and the runtime's URL are in no log line: any of them may hold a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grpclib.const import Status

from trikubelet.http.messages import AnyResponse, HTTPError, Request, Takeover, UpgradeResponse
from trikubelet.http.streaming.command import CommandStreams
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    from trikubelet.api import Container, Pod
    from trikubelet.http.streaming.runtime_upgrade import RuntimeAddress
    from trikubelet.node_api.view import NodeApiView

WEBSOCKET_V5: Final = "v5.channel.k8s.io"
_TUNNEL: Final = ("SPDY/3.1+", ".k8s.io")
_RETRY_AFTER: Final = 60
"""Seconds that a runtime keeps a prepared stream."""


async def _dial(address: RuntimeAddress) -> trio.abc.Stream:
    from trikubelet.http.streaming.runtime_upgrade import dial  # as all that carries streams, for the first who asks

    return await dial(address)


class StreamHandlers:
    """The handlers, for the route table. The names in their paths: `namespace`, `pod`, `uid` (optional), `container`.

    `count` is called with the subresource of every request that is translated or unpacked
    (`kubelet_websocket_streaming_requests_total`). `translates`: whether that is done at all; otherwise everything is
    passed through.
    """

    def __init__(
        self,
        view: NodeApiView,
        count: Callable[[str], None] = lambda _: None,
        connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]] = _dial,
        *,
        translates: bool = True,
    ) -> None:
        self._translates = translates
        self._view = view
        self._count = count
        self._connect = connect

    async def exec(self, request: Request) -> AnyResponse:
        """GET and POST `/exec/{namespace}/{pod}[/{uid}]/{container}?command=…&input=1&output=1&error=1&tty=1`."""
        streams = requested_streams(request)
        pod = self._pod(request)
        uid, container = request.params.get("uid", ""), request.params["container"]
        try:
            container_id = await self._view.running_container(pod, uid, container)
            if container_id is None:
                raise HTTPError(500, f'container not found ("{container}")')
            url = await self._view.exec_url(container_id, request.query.get("command", ()), streams)
        except CRIError as error:
            raise runtime_error(error) from error
        return self._command("exec", request, url, streams)

    async def attach(self, request: Request) -> AnyResponse:
        """GET and POST `/attach/{namespace}/{pod}[/{uid}]/{container}?input=1&output=1&error=1`.

        Whether there is a terminal is the container's affair, not the request's.
        """
        asked = requested_streams(request)
        pod = self._pod(request)
        uid, container = request.params.get("uid", ""), request.params["container"]
        try:
            container_id = await self._view.running_container(pod, uid, container)
            spec = _container(pod, container)
            if container_id is None or spec is None:
                raise HTTPError(500, f"container {container} not found in pod {pod.full_name}")
            streams = CommandStreams(asked.stdin, asked.stdout, asked.stderr, tty=spec.tty)
            url = await self._view.attach_url(container_id, streams)
        except CRIError as error:
            raise runtime_error(error) from error
        return self._command("attach", request, url, streams)

    async def port_forward(self, request: Request) -> AnyResponse:
        """GET and POST `/portForward/{namespace}/{pod}[/{uid}]`; WebSocket clients say `?port=…`, others stream by
        stream."""
        tunnelled = self._translates and any(map(_tunnels, websocket_protocols(request)))
        ports = () if tunnelled else requested_ports(request)
        pod = self._pod(request)
        if request.params.get("uid", pod.metadata.uid) != pod.metadata.uid:
            raise HTTPError(404, "pod not found")
        try:
            url = await self._view.port_forward_url(pod, ports)
        except CRIError as error:
            raise runtime_error(error) from error
        if url is None:
            raise HTTPError(500, f'pod not found ("{pod.full_name}")')
        if tunnelled:
            self._count("portforward")
            return self._tunnelled(request, url)
        return self._proxied(request, url)

    def _pod(self, request: Request) -> Pod:
        """The pod of a request that may be granted: else nothing is prepared in the runtime."""
        pod = self._view.pod(request.params["namespace"], request.params["pod"])
        if pod is None:
            raise HTTPError(404, "pod does not exist")
        if not wants_upgrade(request):
            raise HTTPError(500, "Upgrade request required")
        return pod

    def _command(self, subresource: str, request: Request, url: str, streams: CommandStreams) -> AnyResponse:
        if not self._translates or WEBSOCKET_V5 not in websocket_protocols(request):
            return self._proxied(request, url)
        self._count(subresource)

        async def translate(takeover: Takeover) -> None:
            from trikubelet.http.streaming.translate import translate_command

            await translate_command(url, request, takeover, streams, self._connect)

        return UpgradeResponse(translate)

    def _tunnelled(self, request: Request, url: str) -> AnyResponse:
        async def tunnel(takeover: Takeover) -> None:
            from trikubelet.http.streaming.tunnel import tunnel_spdy

            await tunnel_spdy(url, request, takeover, self._connect)

        return UpgradeResponse(tunnel)

    def _proxied(self, request: Request, url: str) -> AnyResponse:
        async def proxy(takeover: Takeover) -> None:
            from trikubelet.http.streaming.proxy import proxy_upgrade

            await proxy_upgrade(url, request, takeover, self._connect)

        return UpgradeResponse(proxy)


def requested_streams(request: Request) -> CommandStreams:
    """Which streams a request asks for (`remotecommand.NewOptions`). Raises HTTPError 400 when it asks for none."""
    tty = request.text("tty") == "1"
    streams = CommandStreams(
        stdin=request.text("input") == "1",
        stdout=request.text("output") == "1",
        stderr=request.text("error") == "1" and not tty,
        tty=tty,
    )
    if not (streams.stdin or streams.stdout or streams.stderr):
        raise HTTPError(400, "you must specify at least 1 of stdin, stdout, stderr")
    return streams


def requested_ports(request: Request) -> tuple[int, ...]:
    """The ports that a WebSocket client names in its query (`portforward.NewV4Options`); none for others.

    Raises HTTPError 400.
    """
    if not is_websocket(request):
        return ()
    texts = request.query.get("port", ())
    if not texts:
        raise HTTPError(400, 'query parameter "port" is required')
    return tuple(port for text in texts for port in _ports(text))


def _ports(text: str) -> list[int]:
    if not text:
        raise HTTPError(400, 'query parameter "port" cannot be empty')
    ports = []
    for part in text.split(","):
        if not (part.isascii() and part.isdigit() and len(part) <= 10 and int(part) < 65536):
            raise HTTPError(400, f'unable to parse "{text}" as a port: expected a number from 1 to 65535')
        if not int(part):
            raise HTTPError(400, f'port "{text}" must be > 0')
        ports.append(int(part))
    return ports


def wants_upgrade(request: Request) -> bool:
    """Whether a request asks for another protocol (`httpstream.IsUpgradeRequest`)."""
    connection = [value.lower() for name, value in request.raw_headers if name == "connection"]
    return "upgrade" in request.headers and any("upgrade" in value for value in connection)


def is_websocket(request: Request) -> bool:
    return wants_upgrade(request) and request.headers["upgrade"].strip().lower() == "websocket"


def websocket_protocols(request: Request) -> tuple[str, ...]:
    """The protocols that a WebSocket client offers, in its order; none when it is no WebSocket client."""
    if not is_websocket(request):
        return ()
    offers = (value for name, value in request.raw_headers if name == "sec-websocket-protocol")
    return tuple(protocol.strip() for offer in offers for protocol in offer.split(","))


def runtime_error(error: CRIError) -> HTTPError:
    """How a call that prepares a stream failed."""
    if error.status is Status.NOT_FOUND:
        return HTTPError(404, str(error))
    if error.status is Status.RESOURCE_EXHAUSTED:
        return HTTPError(429, str(error), [("Retry-After", str(_RETRY_AFTER))])
    return HTTPError(500, str(error))


def _tunnels(protocol: str) -> bool:
    begin, end = _TUNNEL
    return protocol.startswith(begin) and protocol.endswith(end)


def _container(pod: Pod, name: str) -> Container | None:
    spec = pod.spec
    everything = (*spec.containers, *spec.init_containers, *spec.ephemeral_containers)
    return next((container for container in everything if container.name == name), None)
