"""A pod that this node cannot run as it asks fails at once, and nothing of it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.agent.sim_node import static_pod
from trikubelet.pods.retry import NetworkNotReadyError
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import simulated_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from trikubelet.agent import Agent
    from trikubelet.api import Pod

Verdict = tuple[str, str] | None


def rejecting(rejection: Callable[[Pod], Verdict]) -> Callable[[Agent], None]:
    def prepare(agent: Agent) -> None:
        agent.workers._syncer.rejection = rejection  # type: ignore[attr-defined]

    return prepare


async def test_a_rejected_pod_fails_with_the_reason_and_an_event(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    pod = static_pod("web")
    verdict = ("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
    async with simulated_node(sim, prepare=rejecting(lambda _: verdict)) as node:
        node.source().put(pod)
        await trio.sleep(120)
        status = node.agent.statuses.get_pod_status(pod.metadata.uid)
        assert status is not None
        assert (status.phase, status.reason) == ("Failed", "SysctlForbidden")
        assert status.message == f"Pod was rejected: {verdict[1]}"
        events = [(one.reason, one.message, one.count) for one in node.agent.recorder.events_of(pod.metadata.uid)]
        assert events == [(*verdict, 1)]
    assert sim.machine.sandboxes == {}


async def test_a_pod_that_has_run_here_is_not_asked_about_again(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever(), container="main")
    pod = static_pod("web")
    async with simulated_node(sim) as node:
        node.source().put(pod)
        await trio.sleep(30)
    async with simulated_node(sim, prepare=rejecting(lambda _: ("Changed", "the rules are stricter now"))) as node:
        node.source().put(pod)
        await trio.sleep(120)
        status = node.agent.statuses.get_pod_status(pod.metadata.uid)
        assert status is not None
        assert status.phase == "Running"
    assert len(sim.started("main")) == 1


async def test_a_pod_waits_until_the_question_can_be_answered(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever(), container="main")
    pod = static_pod("web")

    def undecided(_: Pod) -> Verdict:
        if trio.current_time() < 60:
            raise NetworkNotReadyError("the runtime has not said yet what it can do")
        return None

    async with simulated_node(sim, prepare=rejecting(undecided)) as node:
        node.source().put(pod)
        await trio.sleep(50)
        assert sim.machine.sandboxes == {}
        await trio.sleep(20)
        assert len(sim.running_containers(pod.metadata.uid)) == 1
