"""Images that somebody else brings to a foreign runtime start the pods that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import clock_without_threads, sim_node, static_pod
from trikubelet.agent.image_arrivals import watch_listed_images
from trikubelet.node.observer import IMAGES_PERIOD
from trikubelet.sim import Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_pods_start_when_their_image_is_listed(mock_clock: MockClock, tmp_path: Path) -> None:
    container = {"name": "main", "image": "private:1"}
    pods = [
        static_pod(policy.lower(), containers=[{**container, "imagePullPolicy": policy}])
        for policy in ("IfNotPresent", "Never")
    ]
    async with sim_node(tmp_path) as node, trio.open_nursery() as nursery:
        nursery.start_soon(watch_listed_images, node.agent)
        node.sim.program(Program.runs_forever(), container="main")
        node.sim.images.withdraw("private:1")
        node.source.put(*pods)
        await trio.sleep(1200)  # now the pause between two pulls is at its longest
        assert [node.status(pod).phase for pod in pods] == ["Pending", "Pending"]
        node.sim.images.add("private:1")
        took = [await node.until_running(pod, within=90) for pod in pods]
        assert sum(took) < IMAGES_PERIOD + 2
        nursery.cancel_scope.cancel()
