"""CRI's Exec, Attach and PortForward: checked here, and answered with a URL of `streaming_server.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.embedded.inventory import STATES
from trikubelet.embedded.lifecycle import Lifecycle, WrongStateError
from trikubelet.embedded.records import Phase
from trikubelet.embedded.streaming_server import AttachSession, ExecSession, ForwardSession, StreamingServer
from trikubelet.http.streaming.command import CommandStreams
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from trikubelet.embedded.records import ContainerRecord

_LARGEST_PORT = 65535


class StreamRequestError(Exception):
    """A request for streams that cannot be had together."""


class StreamCalls:
    """Raises UnknownIdError, WrongStateError, StreamRequestError, TooManyTokensError, NotServingError."""

    def __init__(self, lifecycle: Lifecycle, server: StreamingServer) -> None:
        self._inventory = lifecycle.inventory
        self._server = server

    async def exec(self, request: v1.ExecRequest) -> v1.ExecResponse:
        container = self._running(request.container_id)
        streams = _streams(request)
        if not request.cmd:
            raise StreamRequestError("exec: no command")
        return v1.ExecResponse(url=await self._server.url(ExecSession(container, tuple(request.cmd), streams)))

    async def attach(self, request: v1.AttachRequest) -> v1.AttachResponse:
        container = self._running(request.container_id)
        return v1.AttachResponse(url=await self._server.url(AttachSession(container, _streams(request))))

    async def port_forward(self, request: v1.PortForwardRequest) -> v1.PortForwardResponse:
        sandbox = self._inventory.sandbox(request.pod_sandbox_id)
        if not sandbox.ready:
            raise WrongStateError("sandbox container is not running")
        for port in request.port:
            if not 0 < port <= _LARGEST_PORT:
                raise StreamRequestError(f"invalid port {port}: expected 1 to {_LARGEST_PORT}")
        return v1.PortForwardResponse(url=await self._server.url(ForwardSession(sandbox, tuple(request.port))))

    def _running(self, container_id: str) -> ContainerRecord:
        container = self._inventory.container(container_id)
        if container.phase is not Phase.RUNNING:
            raise WrongStateError(f"container is in {STATES[container.phase].name} state")
        return container


def _streams(request: v1.ExecRequest | v1.AttachRequest) -> CommandStreams:
    if request.tty and request.stderr:
        raise StreamRequestError("tty and stderr cannot both be true")
    if not (request.stdin or request.stdout or request.stderr):
        raise StreamRequestError("one of stdin, stdout, or stderr must be set")
    return CommandStreams(stdin=request.stdin, stdout=request.stdout, stderr=request.stderr, tty=request.tty)
