"""Whom an agent asks for the address of its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.agent.sim_node import clock_without_threads
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import SIMULATED_MACHINE, simulated_node

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_an_agent_by_itself_starts_without_a_name_server(mock_clock: MockClock) -> None:
    asked = []

    async def silent(name: str) -> None:
        asked.append(name)
        await trio.sleep_forever()

    began = trio.current_time()
    async with simulated_node(SimulatedRuntime(seed=1), machine=attrs.evolve(SIMULATED_MACHINE, lookup=silent)):
        assert trio.current_time() - began < 0.5
        await trio.sleep(60)
    assert asked == []
