"""preStop hooks in kills, and kills that end early because their container did, on the simulated runtime."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import Container, ExecAction, Lifecycle, LifecycleHandler, SleepAction, TCPSocketAction
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.runtime.containers.life import PodContainers, containers_without_pod
from trikubelet.runtime.hooks import HookRunner
from trikubelet.runtime.kill import Grace, Killer
from trikubelet.runtime.plan import KillReason
from trikubelet.sim.programs import ExecOutcome, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.runtime.results import SyncResult

FAILED_HOOK = ("FailedPreStopHook", "PreStopHook failed")


async def no_ips(_: Pod) -> Sequence[str]:
    return ()


@attrs.define
class Kills:
    """The ends of one pod's containers on a node, and what they are told of ended containers when `watching`."""

    node: Node
    watching: bool = False
    killer: Killer = attrs.field(init=False)
    containers: PodContainers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        client = RuntimeClient(self.node.channel)
        ended = self.ended if self.watching else None
        hooks = HookRunner(client, self.node.recorder, no_ips, ended=ended)
        self.killer = Killer(client, self.node.recorder, hooks, ended=ended)
        self.containers = PodContainers(self.node.nursery, self.killer)

    async def ended(self, pod_uid: str, container_id: str, *, delay: float = 0.0) -> None:
        while any(container.id == container_id for container in self.node.sim.running_containers(pod_uid)):
            await trio.sleep(0.1)

    async def kill(self, pod: Pod, grace_override: int | None = None, *, forgotten: bool = False) -> list[SyncResult]:
        """Kill all that runs of a pod; `forgotten`: its manifest is gone."""
        running = (await self.node.status(pod)).as_running_pod("simulated")
        deadline = None if grace_override is None else trio.current_time() + grace_override
        return await self.containers.kill_pod(running, None if forgotten else pod, deadline)

    async def seconds(self, pod: Pod, grace_override: int | None = None, *, forgotten: bool = False) -> float:
        """How long a kill takes that ends everything."""
        began = trio.current_time()
        assert [result for result in await self.kill(pod, grace_override, forgotten=forgotten) if result.failed] == []
        assert self.node.sim.running_containers() == []
        return trio.current_time() - began

    @property
    def hooks_run(self) -> int:
        return self.node.sim.calls.count("ExecSync")


async def no_tasks_left(node: Node) -> bool:
    """True if nothing runs for containers any more."""
    await trio.testing.wait_all_tasks_blocked()
    return not node.nursery.child_tasks


def with_hook(name: str = "main", handler: LifecycleHandler | None = None, **fields: Any) -> Container:
    handler = handler or LifecycleHandler(exec=ExecAction(command=("drain",)))
    return make_container(name, lifecycle=Lifecycle(pre_stop=handler), **fields)


def sleeping(seconds: int, name: str = "main", **fields: Any) -> Container:
    return with_hook(name, LifecycleHandler(sleep=SleepAction(seconds=seconds)), **fields)


def drains_in(seconds: float, *, exit_code: int = 0, sigterm: float | None = None) -> Program:
    """A process that ignores SIGTERM, unless told otherwise, and whose hook takes that long."""
    program = Program.runs_forever(sigterm=sigterm)
    return attrs.evolve(program, exec=lambda _: ExecOutcome(seconds=seconds, exit_code=exit_code))


async def test_the_hook_comes_before_the_stop_and_out_of_the_grace_period(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(drains_in(10))
    pod = make_pod(with_hook())
    await node.sync(pod)
    assert await Kills(node).seconds(pod) == pytest.approx(30, abs=0.5)
    [hook], [stop] = node.sim.calls.of("ExecSync"), node.sim.calls.of("StopContainer")
    assert hook.outcome == "ok"
    assert stop.time - hook.time == pytest.approx(10, abs=0.1)
    assert FAILED_HOOK not in node.said(pod)


async def test_a_hook_that_takes_all_of_the_grace_period_leaves_two_seconds(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    assert await Kills(node).seconds(pod) == pytest.approx(32, abs=0.5)
    assert FAILED_HOOK not in node.said(pod)


@pytest.mark.parametrize("watching", [False, True])
async def test_a_hook_beyond_its_grace_lives_until_its_container_has_ended(
    autojump_clock: MockClock, node: Node, watching: bool
) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    await Kills(node, watching=watching).seconds(pod)
    [hook] = node.sim.calls.of("ExecSync")
    [container] = node.sim.started("main")
    assert hook.ended_at == pytest.approx(container.ended_at, abs=0.1)
    assert await no_tasks_left(node)


async def test_a_hook_that_fails_beyond_its_grace_is_no_news(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(31, exit_code=1))
    pod = make_pod(with_hook())
    await node.sync(pod)
    assert await Kills(node).seconds(pod) == pytest.approx(32, abs=0.5)
    [hook] = node.sim.calls.of("ExecSync")
    assert hook.outcome == "ok"
    assert FAILED_HOOK not in node.said(pod)


@pytest.mark.parametrize("watching", [False, True])
async def test_a_hook_that_the_runtime_does_not_end_is_left_with_its_container(
    autojump_clock: MockClock, node: Node, watching: bool
) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod(with_hook())
    await node.sync(pod)
    node.sim.faults.hang_next("ExecSync")
    assert await Kills(node, watching=watching).seconds(pod) == pytest.approx(32, abs=0.5)
    [hook] = node.sim.calls.of("ExecSync")
    assert hook.outcome == "cancelled"
    assert await no_tasks_left(node)


async def test_a_stop_that_fails_does_not_end_the_hook(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    node.sim.faults.fail_next("StopContainer", message="stuck")
    [container] = node.sim.running_containers()
    assert (await kills.containers.kill_container(pod, container.id, "main")).failed
    await trio.sleep(10)
    [hook] = node.sim.calls.of("ExecSync")
    assert hook.outcome == "in progress"
    assert await kills.seconds(pod, 5) == pytest.approx(5, abs=0.5)
    assert hook.outcome == "ok"
    assert kills.hooks_run == 1
    assert await no_tasks_left(node)


async def test_a_hook_ends_with_its_pods_life(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    async with trio.open_nursery() as life:
        kills = Kills(attrs.evolve(node, nursery=life))
        with trio.move_on_after(31):
            await kills.kill(pod)
        life.cancel_scope.cancel()
    [hook] = node.sim.calls.of("ExecSync")
    assert (hook.outcome, len(node.sim.running_containers())) == ("cancelled", 1)


async def test_hooks_of_sidecars_that_do_not_exit_end_together_two_seconds_after_the_grace(
    autojump_clock: MockClock, node: Node
) -> None:
    """As in Kubernetes' node test "should terminate sidecars simultaneously if prestop doesn't exit"."""
    names = ("side-1", "side-2", "side-3")
    for name in names:
        node.sim.program(drains_in(math.inf, sigterm=5), container=name)
    node.sim.program(Program.exits(5), container="main")
    sidecars = tuple(with_hook(name, restart_policy="Always") for name in names)
    pod = make_pod(init_containers=sidecars, restart_policy="Never")
    await node.settle(pod, 8)
    assert {container.name for container in node.sim.running_containers()} == set(names)
    assert await Kills(node, watching=True).seconds(pod) == pytest.approx(32, abs=0.5)
    hooks = node.sim.calls.of("ExecSync")
    assert [hook.ended_at - hook.time for hook in hooks if hook.ended_at] == [pytest.approx(32, abs=0.2)] * 3
    ends = [node.sim.started(name)[0] for name in names]
    assert [end.exit_code for end in ends] == [137] * 3
    assert await no_tasks_left(node)


async def test_the_override_is_the_hooks_grace_too(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    assert await Kills(node).seconds(pod, 5) == pytest.approx(7, abs=0.5)


async def test_without_grace_there_is_no_hook(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    await kills.seconds(pod, 0)
    assert kills.hooks_run == 0


async def test_a_hook_that_fails_is_told_without_its_words_and_the_container_stopped(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(drains_in(3, exit_code=1, sigterm=0))
    pod = make_pod(with_hook())
    await node.sync(pod)
    assert await Kills(node).seconds(pod) == pytest.approx(3, abs=0.5)
    assert FAILED_HOOK in node.said(pod)
    reasons = [reason for reason, _ in node.said(pod)]
    assert reasons.index("Killing") < reasons.index("FailedPreStopHook")


async def test_a_hook_that_cannot_be_run_fails(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(with_hook(handler=LifecycleHandler(tcp_socket=TCPSocketAction(port=80))))
    await node.sync(pod)
    await Kills(node).seconds(pod)
    assert FAILED_HOOK in node.said(pod)


async def test_a_mistake_in_running_a_hook_concerns_its_container_only(
    autojump_clock: MockClock, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: object) -> None:
        raise ExceptionGroup("of a nursery", [UnicodeEncodeError("ascii", "é", 0, 1, "nobody thought of that")])

    monkeypatch.setattr(HookRunner, "run", run)
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    await kills.seconds(pod)
    assert FAILED_HOOK in node.said(pod)


async def test_a_sleep_is_a_hook(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(sleeping(7))
    await node.sync(pod)
    kills = Kills(node)
    assert await kills.seconds(pod) == pytest.approx(7, abs=0.5)


async def test_a_pod_without_a_manifest_has_its_hooks_all_the_same(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(sleeping(7))
    await node.sync(pod)
    assert await Kills(node).seconds(pod, forgotten=True) == pytest.approx(7, abs=0.5)


async def test_all_hooks_begin_at_once_and_sidecars_wait_for_their_turn_after_theirs(
    autojump_clock: MockClock, node: Node
) -> None:
    for name in ("main", "side"):
        node.sim.program(drains_in(6, sigterm=3), container=name)
    pod = make_pod(with_hook(), init_containers=(with_hook("side", restart_policy="Always"),))
    await node.settle(pod, 4)
    assert await Kills(node).seconds(pod) == pytest.approx(12, abs=0.5)
    first, second = node.sim.calls.of("ExecSync")
    assert first.time == second.time
    ends = [node.sim.started(name)[0].ended_at or 0 for name in ("main", "side")]
    assert ends[1] - ends[0] == pytest.approx(3, abs=0.2)


async def test_a_single_container_is_killed_with_its_hook(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(sleeping(4))
    await node.sync(pod)
    [container] = node.sim.running_containers()
    began = trio.current_time()
    result = await Kills(node).containers.kill_container(
        pod, container.id, "main", message="failed", reason=KillReason.LIVENESS_PROBE
    )
    assert not result.failed
    assert trio.current_time() - began == pytest.approx(4, abs=0.5)


# Kills that are asked for again


async def test_a_hook_goes_on_when_its_kill_is_asked_for_again_and_does_not_run_twice(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(drains_in(10, sigterm=0))
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    with trio.move_on_after(3):
        await kills.kill(pod)
    assert await kills.seconds(pod, 20) == pytest.approx(7, abs=0.5)
    [hook] = node.sim.calls.of("ExecSync")
    assert hook.outcome == "ok"


async def test_a_shorter_grace_is_the_deadline_of_the_hook_that_runs(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    with trio.move_on_after(3):
        await kills.kill(pod)
    assert await kills.seconds(pod, 4) == pytest.approx(6, abs=0.5)
    assert kills.hooks_run == 1


async def test_no_grace_ends_a_hook_that_runs(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(1000))
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    with trio.move_on_after(3):
        await kills.kill(pod)
    assert await kills.seconds(pod, 0) == pytest.approx(2, abs=0.5)
    assert kills.hooks_run == 1


async def test_a_hook_that_is_over_does_not_run_again(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(drains_in(1, exit_code=1))
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    with trio.move_on_after(3):
        await kills.kill(pod)
    assert await kills.seconds(pod, 5) == pytest.approx(5, abs=0.5)
    assert kills.hooks_run == 1


async def test_without_a_pods_life_a_hook_is_cut_with_its_kill_and_does_not_run_again(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(drains_in(10))
    pod = make_pod(with_hook())
    await node.sync(pod)
    kills = Kills(node)
    with trio.move_on_after(3):
        async with containers_without_pod(kills.killer) as containers:
            await containers.kill_pod((await node.status(pod)).as_running_pod("simulated"), pod)
    [hook] = node.sim.calls.of("ExecSync")
    assert hook.outcome != "ok"
    assert await kills.seconds(pod, 5) == pytest.approx(5, abs=0.5)
    assert kills.hooks_run == 1


async def test_what_was_begun_is_forgotten_when_the_container_has_ended(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(sleeping(5))
    await node.sync(pod)
    kills = Kills(node)
    with trio.move_on_after(3):
        await kills.kill(pod)
    assert kills.killer.hooks_begun == 1
    await kills.seconds(pod)
    await trio.testing.wait_all_tasks_blocked()
    assert kills.killer.hooks_begun == 0


async def test_what_was_begun_is_forgotten_also_when_nobody_awaited_the_containers_end(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.exits(20))
    pod = make_pod(sleeping(15), restart_policy="Never")
    await node.sync(pod)
    running = (await node.status(pod)).as_running_pod("simulated")

    async def collect() -> None:
        await node.manager.garbage_collect(all_sources_ready=True, is_pod_removed=lambda _: False)

    with trio.move_on_after(3):
        await node.manager.kill_pod(running, pod)
    await collect()
    assert node.manager._killer.hooks_begun == 1, "it must not run again in there"
    await trio.sleep(30)
    await collect()
    assert node.manager._killer.hooks_begun == 0


# Containers that end early


async def test_a_container_that_ends_by_itself_ends_its_hook(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(10))
    pod = make_pod(sleeping(25), restart_policy="Never")
    await node.sync(pod)
    assert await Kills(node, watching=True).seconds(pod) == pytest.approx(10, abs=0.5)
    assert FAILED_HOOK not in node.said(pod)


async def test_nothing_is_left_of_a_kill_when_its_container_has_ended_by_itself(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.exits(10))
    pod = make_pod(sleeping(25), restart_policy="Never")
    await node.sync(pod)
    kills = Kills(node, watching=True)
    assert await kills.seconds(pod) == pytest.approx(10, abs=0.5)
    assert await no_tasks_left(node)
    assert FAILED_HOOK not in node.said(pod)


async def test_a_stop_that_hangs_is_over_when_the_container_has_ended(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(10))
    pod = make_pod(restart_policy="Never")
    await node.sync(pod)
    node.sim.faults.hang_next("StopContainer")
    assert await Kills(node, watching=True).seconds(pod) == pytest.approx(10, abs=0.5)


async def test_a_sidecar_that_ends_by_itself_does_not_wait_for_its_turn(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.runs_forever(sigterm=8), container="main")
    node.sim.program(Program.exits(8), container="side")
    pod = make_pod(init_containers=(make_container("side", restart_policy="Always"),), restart_policy="Never")
    await node.settle(pod, 4)
    assert len(node.sim.running_containers()) == 2
    await Kills(node, watching=True).seconds(pod)
    assert node.sim.calls.count("StopContainer") == 1  # that of the main container


async def test_a_container_whose_stop_failed_and_that_ended_holds_up_no_sidecar(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.exits(10), container="main")
    node.sim.program(Program.runs_forever(sigterm=0), container="side")
    pod = make_pod(init_containers=(make_container("side", restart_policy="Always"),), restart_policy="Never")
    await node.settle(pod, 4)
    node.sim.faults.fail_next("StopContainer", message="stuck")
    began = trio.current_time()
    results = await Kills(node, watching=True).kill(pod)
    assert [result.target for result in results if result.failed] == ["main"]
    assert trio.current_time() - began < 10


# Stops that are asked for again


@pytest.mark.parametrize("steps", range(5))
async def test_a_grace_that_gets_shorter_in_the_moment_in_which_a_stop_begins_is_not_missed(
    autojump_clock: MockClock, node: Node, steps: int
) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    for number in range(10):
        pod = make_pod(name=f"web-{number}")
        await node.sync(pod)
        [container] = node.sim.running_containers()
        began = trio.current_time()
        grace = Grace(began + 30)

        async def shorten(grace: Grace) -> None:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            grace.shorten(trio.current_time() + 3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(Kills(node).killer.stop_container, container.id, grace)
            nursery.start_soon(shorten, grace)
        assert trio.current_time() - began == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED])
async def test_a_stop_without_an_answer_is_asked_for_again(
    autojump_clock: MockClock, node: Node, status: Status
) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod()
    await node.sync(pod)
    node.sim.faults.fail_next("StopContainer", status=status, times=5)
    assert await Kills(node).seconds(pod) == pytest.approx(30, abs=0.5)
    assert node.sim.calls.count("StopContainer") == 6


async def test_a_stop_is_asked_for_as_long_as_there_is_grace(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    await node.sync(pod)
    node.sim.faults.fail_next("StopContainer", status=Status.UNAVAILABLE, times=1000)
    began = trio.current_time()
    [kill, sandbox] = await Kills(node).kill(pod)
    assert (kill.failed, sandbox.failed) == (True, False)
    assert "Unavailable" in kill.message
    assert trio.current_time() - began == pytest.approx(30, abs=1)


async def test_a_runtime_that_is_started_again_in_the_middle_finds_what_is_to_be_stopped(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.runs_forever(sigterm=10))
    pod = make_pod()
    await node.sync(pod)
    async with trio.open_nursery() as nursery:

        async def restart() -> None:
            await trio.sleep(2)
            node.sim.restart(downtime=5)

        nursery.start_soon(restart)
        assert await Kills(node).seconds(pod) < 31


async def test_a_stop_that_is_refused_is_not_asked_for_again(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    await node.sync(pod)
    node.sim.faults.fail_next("StopContainer", message="stuck")
    [kill, _] = await Kills(node).kill(pod)
    assert kill.failed
    assert node.sim.calls.count("StopContainer") == 1
