"""Which handler a probe is asked by."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.probes.test_prober import make_target
from tests.rpc.cri.test_client import ScriptedChannel
from trikubelet.api import ExecAction, GRPCAction, HTTPGetAction, Probe, TCPSocketAction
from trikubelet.probes import asking, grpc_health, http
from trikubelet.probes.asking import NetworkAndExec
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeKind, ProbeTarget
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient


async def test_a_command_is_run_in_the_container_with_the_probes_timeout() -> None:
    channel = ScriptedChannel(reply=v1.ExecSyncResponse(exit_code=3, stdout=b"down"))
    probe = Probe(exec=ExecAction(command=("check", "it")), timeout_seconds=4)
    answer = await NetworkAndExec(RuntimeClient(channel))(make_target(ProbeKind.STARTUP, probe))
    assert answer == ProbeAnswer(Outcome.FAILURE, "down")
    assert channel.request_message == v1.ExecSyncRequest(container_id="foobar", cmd=["check", "it"], timeout=4)


@pytest.mark.parametrize(
    ("probe", "module", "name"),
    [
        (Probe(http_get=HTTPGetAction(port=80), timeout_seconds=5), http, "ask_http"),
        (Probe(tcp_socket=TCPSocketAction(port="web"), timeout_seconds=5), asking, "ask_tcp"),
        (Probe(grpc=GRPCAction(port=9090), timeout_seconds=5), grpc_health, "ask_grpc"),
    ],
    ids=["http", "tcp", "grpc"],
)
async def test_the_network_is_asked_with_the_probes_own_action_and_timeout(
    probe: Probe, module: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    async def ask(target: ProbeTarget, action: object, timeout: float) -> ProbeAnswer:
        await trio.lowlevel.checkpoint()
        asked.extend((target, action, timeout))
        return ProbeAnswer(Outcome.WARNING, "it was me")

    monkeypatch.setattr(module, name, ask)
    target = make_target(ProbeKind.READINESS, probe)
    unused = RuntimeClient(ScriptedChannel(error=GRPCError(Status.INTERNAL, "nobody calls")))
    assert await NetworkAndExec(unused)(target) == ProbeAnswer(Outcome.WARNING, "it was me")
    assert asked == [target, probe.http_get or probe.tcp_socket or probe.grpc, 5.0]


async def test_a_probe_that_says_no_way_to_ask_is_an_error() -> None:
    answer = await NetworkAndExec(RuntimeClient(ScriptedChannel()))(make_target(ProbeKind.LIVENESS, Probe()))
    assert answer == ProbeAnswer(Outcome.UNKNOWN, error="missing probe handler for web_default(uid-web):main")
