"""Whoever asks for the end of a pod, how often and with how much grace: the end never comes later for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.agent.sim_node import SimNode, sim_node
from tests.captured_logs import capture_logs
from tests.examples import examples
from tests.pods.test_tree import deleted, make_pod
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import ScriptedSource
from trikubelet.sim.programs import ExecOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPEC_GRACE: Final = 40
MINIMUM_STOP: Final = 2.0
"""Seconds that a container is given after its signal at least."""
SLACK: Final = 1.0
"""CRI counts in whole seconds."""
HOOK_SECONDS: Final = (0.5, 10.0, 1000.0)


@attrs.frozen
class Ask:
    """One request for the pod's end, so many seconds after the one before."""

    after: float
    kill: bool
    """By the agent itself, which waits for it; otherwise by a deletion."""
    grace: int

    @property
    def effective(self) -> int:
        return max(1, self.grace)


asks = st.lists(
    st.builds(
        Ask,
        after=st.sampled_from((0.0, 0.001, 0.002, 0.003, 0.5, 3.0, 12.0)),
        kill=st.booleans(),
        grace=st.integers(min_value=0, max_value=SPEC_GRACE),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(asks, st.sampled_from(HOOK_SECONDS))
def test_the_earliest_deadline_holds(asked: Sequence[Ask], hook: float) -> None:
    with capture_logs():
        trio.run(_ask_for_the_end, asked, hook, clock=MockClock(autojump_threshold=0))


async def _ask_for_the_end(asked: Sequence[Ask], hook: float) -> None:
    sim = SimulatedRuntime(seed=1)
    ignores = Program.runs_forever(sigterm=None)
    sim.program(attrs.evolve(ignores, exec=lambda _: ExecOutcome(seconds=hook)), container="main")
    container = {"name": "main", "image": "test:1", "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}}}
    pod = make_pod("web", grace=SPEC_GRACE, containers=[container])
    source = ScriptedSource("api")
    stops: list[tuple[float, int]] = []
    told: list[int] = []
    deadline, deletion = float("inf"), SPEC_GRACE
    async with sim_node(sim=sim, source=source) as node, trio.open_nursery() as killers:
        with _watched_stops(stops):
            source.put(pod)
            await node.until_running(pod)
            for number, ask in enumerate(asked):
                await trio.sleep(ask.after)
                if node.agent.workers.states.should_pod_be_finished("uid-web"):
                    told.append(number)
                    continue
                deadline = min(deadline, trio.current_time() + ask.effective)
                if ask.kill:
                    killers.start_soon(_kill, node, number, ask, told)
                else:
                    told.append(number)
                    # An API server only shortens it. So a version that the source never sent loses nothing.
                    deletion = min(deletion, ask.grace)
                    source.put(deleted(node, pod, deletion))
            await node.until(lambda: node.agent.workers.states.should_pod_be_finished("uid-web"), within=120)
    assert sorted(told) == list(range(len(asked))), "each is told once"
    assert sim.calls.count("ExecSync") <= 1
    seconds = [timeout for _, timeout in stops]
    assert seconds == sorted(seconds, reverse=True), "a runtime is never given more time than before"
    [run] = sim.started("main")
    assert run.ended_at is not None
    assert run.ended_at <= deadline + MINIMUM_STOP + SLACK
    for call in sim.calls.of("ExecSync"):
        assert call.ended_at == pytest.approx(min(call.time + hook, run.ended_at), abs=0.1), (
            "it ends with its container"
        )


async def _kill(node: SimNode, number: int, ask: Ask, told: list[int]) -> None:
    pod = node.source.pods["uid-web"]
    await node.agent.workers.kill_pod(pod, grace_period_override=ask.grace)
    assert not node.sim.running_containers("uid-web")
    told.append(number)


@contextmanager
def _watched_stops(stops: list[tuple[float, int]]) -> Iterator[None]:
    """Notes what the runtime is given for each stop."""
    original = RuntimeClient.stop_container

    async def stop_container(client: RuntimeClient, container_id: str, timeout: int) -> None:
        stops.append((trio.current_time(), timeout))
        await original(client, container_id, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuntimeClient, "stop_container", stop_container)
        yield
