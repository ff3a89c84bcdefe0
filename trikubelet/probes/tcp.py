"""tcpSocket probes: a connection that can be opened is success (kubelet: pkg/probe/tcp)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.http.client.connect import close_quietly, connect_socket, dial_problem, dial_timeout
from trikubelet.http.client.request import HTTPRequestError, resolve_port
from trikubelet.probes.types import Outcome, ProbeAnswer

if TYPE_CHECKING:
    from trikubelet.api import TCPSocketAction
    from trikubelet.probes.types import ProbeTarget


async def ask_tcp(target: ProbeTarget, action: TCPSocketAction, timeout: float) -> ProbeAnswer:
    """Open a connection within `timeout` seconds, and close it.

    The host is the pod's address unless the action names one. An error, which says nothing about the container, is a
    port that is none, and a pod without an address. Cancelling closes the connection.
    """
    host = action.host or target.pod_ip
    if not host:
        return ProbeAnswer(Outcome.UNKNOWN, error="the pod has no IP address")
    try:
        port = resolve_port(action.port, target.container)
    except HTTPRequestError as error:
        return ProbeAnswer(Outcome.UNKNOWN, error=error.message)
    try:
        with trio.move_on_after(timeout):
            close_quietly(await connect_socket(host, port))
            return ProbeAnswer(Outcome.SUCCESS)
    except OSError as error:
        return ProbeAnswer(Outcome.FAILURE, dial_problem(host, port, error))
    return ProbeAnswer(Outcome.FAILURE, dial_timeout(host, port))
