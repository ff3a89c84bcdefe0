"""Asking containers for real: over the network and through the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.container.messages import describe_pod
from trikubelet.probes.command import ask_exec
from trikubelet.probes.tcp import ask_tcp
from trikubelet.probes.types import Outcome, ProbeAnswer

if TYPE_CHECKING:
    from trikubelet.probes.types import ProbeTarget
    from trikubelet.rpc.cri.client import RuntimeClient


class NetworkAndExec:
    """The `Asker` of a node: HTTP, TCP and gRPC to the pod's address, commands through the runtime."""

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime

    async def __call__(self, target: ProbeTarget, /) -> ProbeAnswer:
        """Ask once, as the target's probe says (kubelet: `prober.runProbe`). A probe that says nothing is an error."""
        probe = target.probe
        if probe is not None:
            timeout = float(probe.timeout_seconds)
            if probe.exec is not None:
                return await ask_exec(self._runtime, target, probe.exec, timeout)
            if probe.http_get is not None:
                from trikubelet.probes.http import ask_http  # with h11 and ssl, which not every node needs

                return await ask_http(target, probe.http_get, timeout)
            if probe.tcp_socket is not None:
                return await ask_tcp(target, probe.tcp_socket, timeout)
            if probe.grpc is not None:
                from trikubelet.probes.grpc_health import ask_grpc  # with generated messages, and few pods need it

                return await ask_grpc(target, probe.grpc, timeout)
        where = f"{describe_pod(target.pod)}:{target.container.name}"
        return ProbeAnswer(Outcome.UNKNOWN, error=f"missing probe handler for {where}")
