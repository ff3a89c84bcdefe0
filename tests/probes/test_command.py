"""Commands as probes: the kubelet's `TestExec`, the command lines of its `TestProbe`, and what the runtime is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.probes.test_prober import make_target
from tests.rpc.cri.test_client import ScriptedChannel
from trikubelet.api import Container, EnvVar, EnvVarSource, ExecAction
from trikubelet.probes.command import MOST_OUTPUT, ask_exec
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeTarget
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient

if TYPE_CHECKING:
    from trio.testing import MockClock

TEN_KIB = b"logs-123" * 128 * 10
ELEVEN_KIB = b"logs-123" * 128 * 11


def target_with(*env: EnvVar) -> ProbeTarget:
    plain = make_target()
    return ProbeTarget(plain.pod, Container(name="main", env=env), plain.container_id, plain.pod_ip, plain.kind)


async def ask(channel: ScriptedChannel, *command: str, env: tuple[EnvVar, ...] = (), timeout: float = 1) -> ProbeAnswer:
    action = ExecAction(command=command or ("check",))
    return await ask_exec(RuntimeClient(channel), target_with(*env), action, timeout)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (v1.ExecSyncResponse(stdout=b"OK"), ProbeAnswer(Outcome.SUCCESS, "OK")),
        (v1.ExecSyncResponse(stdout=TEN_KIB), ProbeAnswer(Outcome.SUCCESS, TEN_KIB.decode())),
        (v1.ExecSyncResponse(stdout=ELEVEN_KIB), ProbeAnswer(Outcome.SUCCESS, TEN_KIB.decode())),
        (v1.ExecSyncResponse(exit_code=1, stdout=b"Fail"), ProbeAnswer(Outcome.FAILURE, "Fail")),
        (v1.ExecSyncResponse(exit_code=255), ProbeAnswer(Outcome.FAILURE)),
        (v1.ExecSyncResponse(exit_code=-1, stderr=b"no"), ProbeAnswer(Outcome.FAILURE, "no")),
        (v1.ExecSyncResponse(exit_code=2, stdout=b"out ", stderr=b"err"), ProbeAnswer(Outcome.FAILURE, "out err")),
        (v1.ExecSyncResponse(stderr=b"only err"), ProbeAnswer(Outcome.SUCCESS, "only err")),
    ],
)
async def test_the_exit_code_decides_and_the_output_is_kept(reply: v1.ExecSyncResponse, answer: ProbeAnswer) -> None:
    assert await ask(ScriptedChannel(reply=reply)) == answer


async def test_a_command_that_no_process_can_be_given_is_not_asked() -> None:
    env = (EnvVar(name="A", value="x" * 100_000),)
    answer = await ask(ScriptedChannel(reply=v1.ExecSyncResponse()), "check", "$(A)" * 1000, env=env)
    assert answer.outcome is Outcome.UNKNOWN
    assert "longer than 128 KiB" in answer.error


async def test_output_of_both_kinds_shares_the_limit() -> None:
    reply = v1.ExecSyncResponse(exit_code=1, stdout=b"o" * (MOST_OUTPUT - 3), stderr=b"e" * MOST_OUTPUT)
    answer = await ask(ScriptedChannel(reply=reply))
    assert answer.output == "o" * (MOST_OUTPUT - 3) + "eee"


async def test_output_that_is_no_text_is_told_as_far_as_it_is() -> None:
    answer = await ask(ScriptedChannel(reply=v1.ExecSyncResponse(exit_code=1, stdout=b"caf\xc3\xa9 \xff")))
    assert answer == ProbeAnswer(Outcome.FAILURE, "café \ufffd")


@pytest.mark.parametrize(("timeout", "limit"), [(1, "1s"), (90, "1m30s")])
async def test_a_command_that_takes_too_long_has_failed(timeout: int, limit: str) -> None:
    late = GRPCError(Status.DEADLINE_EXCEEDED, "failed to exec in container: timeout exceeded")
    answer = await ask(ScriptedChannel(error=late), "sh", "-c", 'echo "hi"; sleep 99', timeout=timeout)
    text = f'command timed out: "sh -c echo \\"hi\\"; sleep 99" timed out after {limit}'
    assert answer == ProbeAnswer(Outcome.FAILURE, text)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GRPCError(Status.UNKNOWN, "test error"), "rpc error: code = Unknown desc = test error"),
        (GRPCError(Status.NOT_FOUND, "no container"), "rpc error: code = NotFound desc = no container"),
        (GRPCError(Status.UNAVAILABLE, "gone"), "rpc error: code = Unavailable desc = gone"),
    ],
)
async def test_a_runtime_that_cannot_run_it_says_nothing_of_the_container(error: GRPCError, text: str) -> None:
    assert await ask(ScriptedChannel(error=error)) == ProbeAnswer(Outcome.UNKNOWN, error=text)


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ((), "some $(A) $(B)"),
        ((EnvVar(name="A", value="script"),), "some script $(B)"),
        ((EnvVar(name="A", value="old"), EnvVar(name="A", value="new")), "some new $(B)"),
        ((EnvVar(name="B", value_from=EnvVarSource()),), "some $(A) "),
    ],
    ids=["no variables", "one is known", "the last one counts", "a value from elsewhere is not looked up"],
)
async def test_the_command_gets_the_values_that_the_spec_has(env: tuple[EnvVar, ...], word: str) -> None:
    channel = ScriptedChannel(reply=v1.ExecSyncResponse())
    await ask(channel, "/bin/bash", "-c", "some $(A) $(B)", env=env, timeout=7)
    assert channel.rpc == "ExecSync"
    assert channel.request_message == v1.ExecSyncRequest(
        container_id="foobar", cmd=["/bin/bash", "-c", word], timeout=7
    )


async def test_a_runtime_that_never_answers_counts_as_a_command_that_takes_too_long(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    answer = await ask(ScriptedChannel(hangs=True), timeout=3)
    assert answer == ProbeAnswer(Outcome.FAILURE, 'command timed out: "check" timed out after 3s')
    assert trio.current_time() - began == pytest.approx(120 + 3)


async def test_cancelling_does_not_wait_for_the_command(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    with trio.move_on_after(0.5) as scope:
        await ask(ScriptedChannel(hangs=True), timeout=10)
    assert scope.cancelled_caught
    assert trio.current_time() - began == pytest.approx(0.5)
