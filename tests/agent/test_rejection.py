"""A pod that this node cannot run as it asks fails at once, and nothing of it is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from tests.agent.sim_node import static_pod
from trikubelet.admission.types import Admitted, Rejected, Verdict, Wait
from trikubelet.api import Pod
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import simulated_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from trikubelet.api import Node


@attrs.define
class Judge:
    """Admission as a test wants it."""

    verdict: Callable[[Pod], Verdict]

    def admit(self, pod: Pod, others: Sequence[Pod], *, node: Node, fresh: bool) -> Verdict:
        return self.verdict(pod)


async def test_a_rejected_pod_fails_with_the_reason_and_an_event(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    pod = static_pod("web")
    verdict = Rejected("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
    async with simulated_node(sim, admission=Judge(lambda _: verdict)) as node:
        node.source().put(pod)
        await trio.sleep(120)
        status = node.agent.statuses.get_pod_status(pod.metadata.uid)
        assert status is not None
        assert (status.phase, status.reason) == ("Failed", "SysctlForbidden")
        assert status.message == f"Pod was rejected: {verdict.message}"
        events = [(one.reason, one.message, one.count) for one in node.agent.recorder.events_of(pod.metadata.uid)]
        assert events == [(verdict.reason, verdict.message, 1)]
        assert node.agent.workers.states.phases() == {}
        node.source().remove(pod)
        await trio.sleep(10)
        assert node.agent.statuses.get_pod_status(pod.metadata.uid) is None
    assert sim.machine.sandboxes == {}


async def test_a_pod_that_has_run_here_is_judged_again_after_a_restart_of_the_agent(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever(), container="main")
    pod, other = static_pod("web"), static_pod("other")
    async with simulated_node(sim) as node:
        node.source().put(pod, other)
        await trio.sleep(30)

    def stricter(judged: Pod) -> Verdict:
        return Rejected("Changed", "the rules are stricter now") if judged.full_name == pod.full_name else Admitted()

    async with simulated_node(sim, admission=Judge(stricter)) as node:
        node.source().put(pod, other)
        await trio.sleep(120)
        status = node.agent.statuses.get_pod_status(pod.metadata.uid)
        assert status is not None
        assert (status.phase, status.reason) == ("Failed", "Changed")
        assert [container.sandbox.config.metadata.uid for container in sim.running_containers()] == [other.metadata.uid]
    assert len(sim.started("main")) == 2


async def test_a_pod_waits_until_the_question_can_be_answered(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever(), container="main")
    pod = static_pod("web")

    def undecided(_: Pod) -> Verdict:
        return Wait("the runtime has not said yet what it can do") if trio.current_time() < 60 else Admitted()

    async with simulated_node(sim, admission=Judge(undecided)) as node:
        node.source().put(pod)
        await trio.sleep(50)
        assert sim.machine.sandboxes == {}
        await trio.sleep(20)
        assert len(sim.running_containers(pod.metadata.uid)) == 1
