from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.sim import SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock


@attrs.frozen
class Connected:
    """A simulated runtime, and the clients of the agent connected to it."""

    sim: SimulatedRuntime
    runtime: RuntimeClient
    images: ImageClient


@pytest.fixture
async def node(autojump_clock: MockClock) -> AsyncIterator[Connected]:
    sim = SimulatedRuntime(seed=1)
    async with sim.connect() as channel:
        yield Connected(sim, RuntimeClient(channel), ImageClient(channel))
