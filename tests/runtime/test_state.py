"""The runtime's conditions, as pods and health checks need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.runtime.state import PERIOD, RuntimeState
from trikubelet.sim import SimulatedRuntime
from trikubelet.supervision import follow

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


def network(*, ready: bool) -> v1.RuntimeCondition:
    return v1.RuntimeCondition(type="NetworkReady", status=ready, reason="Test", message="as the test says")


def problems(state: RuntimeState) -> tuple[str, str]:
    """Of the runtime and of its network; empty where there is none."""
    return state.conditions.runtime_problem or "", state.conditions.network_problem or ""


async def test_a_ready_runtime_has_no_problem(autojump_clock: MockClock) -> None:
    async with SimulatedRuntime().connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        assert all(problems(state)), "nothing is known before the first answer"
        await nursery.start(state.run)
        assert problems(state) == ("", "")
        nursery.cancel_scope.cancel()


async def test_a_network_that_goes_and_comes_back_is_noticed(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        await nursery.start(state.run)
        sim.runtime_service.network_ready = network(ready=False)
        await trio.sleep(PERIOD + 1)
        text = "container runtime network not ready: NetworkReady=false reason:Test message:as the test says"
        assert problems(state) == ("", text)
        sim.runtime_service.network_ready = network(ready=True)
        await trio.sleep(PERIOD + 1)
        assert problems(state) == ("", "")
        nursery.cancel_scope.cancel()


async def test_a_runtime_that_does_not_answer_is_a_problem_until_it_does(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        await nursery.start(state.run)
        sim.restart(downtime=20)
        await trio.sleep(PERIOD + 1)
        assert "container runtime is down" in problems(state)[0]
        await trio.sleep(60)
        assert problems(state) == ("", "")
        nursery.cancel_scope.cancel()


async def test_an_answer_that_nobody_thought_of_is_a_problem_of_the_runtime(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: v1.StatusResponse) -> None:
        raise TypeError("what is this?")

    monkeypatch.setattr("trikubelet.runtime.state._abilities", stumble)
    async with SimulatedRuntime().connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        await nursery.start(state.run)
        assert problems(state)[0] == "container runtime is down: what is this?"
        monkeypatch.undo()
        await trio.sleep(PERIOD + 1)
        assert problems(state) == ("", "")
        nursery.cancel_scope.cancel()


async def test_problems_are_told_one_by_one_in_the_kubelets_words(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        assert state.problems() == ("container runtime status check may not have completed yet",)
        await nursery.start(state.run)
        assert state.problems() == ()
        assert state.errors() is None
        state.add_health_check("PLEG", lambda: "pleg has yet to be successful")
        sim.runtime_service.runtime_ready = v1.RuntimeCondition(type="RuntimeReady", reason="R", message="M")
        await trio.sleep(PERIOD + 1)
        assert state.problems() == (
            "PLEG is not healthy: pleg has yet to be successful",
            "container runtime not ready: RuntimeReady=false reason:R message:M",
        )
        assert state.errors() == f"[{', '.join(state.problems())}]"
        nursery.cancel_scope.cancel()


async def test_changes_are_told(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        changes: list[str | None] = []
        nursery.start_soon(
            follow, state.changed.subscribe(), lambda _: changes.append(state.conditions.network_problem)
        )
        await nursery.start(state.run)
        await trio.sleep(60)
        assert changes == [None]
        sim.runtime_service.network_ready = network(ready=False)
        await trio.sleep(60)
        assert len(changes) == 2
        nursery.cancel_scope.cancel()


async def test_a_runtime_that_tells_its_features_differs_from_one_that_does_not(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        await nursery.start(state.run)
        assert state.abilities.features_told is False
        sim.abilities.supplemental_groups_policy = True
        await trio.sleep(PERIOD + 1)
        abilities = state.abilities
        assert abilities.features_told
        nursery.cancel_scope.cancel()
