"""A static pod that was rejected for what another pod holds starts when that one has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from trikubelet.sim import Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def on_port(name: str, port: int = 8080) -> Pod:
    container = {"name": "main", "image": "test:1", "ports": [{"containerPort": 80, "hostPort": port}]}
    return static_pod(name, containers=[container], terminationGracePeriodSeconds=5)


def events(node: SimNode, pod: Pod) -> list[str]:
    return [event.message for event in node.agent.recorder.events_of(pod.metadata.uid) if event.reason == "NodePorts"]


async def test_it_starts_when_the_holder_of_its_port_has_gone(mock_clock: MockClock, tmp_path: Path) -> None:
    holder, waiting = on_port("holder"), on_port("waiting")
    async with sim_node(tmp_path) as node:
        node.sim.program(Program.runs_forever(), container="main")
        node.source.put(holder)
        await node.until_running(holder)
        node.source.put(waiting)
        await node.until_phase(waiting, "Failed")
        message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
        status = node.status(waiting)
        assert status.reason == "NodePorts"
        held = "host port 8080/TCP is held by pod default/holder-node"
        assert status.message == f"Pod was rejected: {message}: {held}"
        assert events(node, waiting) == [message], "others look for the kubelet's words"
        node.source.remove(holder)
        await node.until_running(waiting, within=20)
        assert node.status(waiting).message == ""
        assert events(node, waiting) == [message]


async def test_one_of_several_gets_the_port_and_the_others_say_who_has_it_now(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    holder, first, second = on_port("holder"), on_port("first"), on_port("second")
    async with sim_node(tmp_path) as node:
        node.sim.program(Program.runs_forever(), container="main")
        node.source.put(holder)
        await node.until_running(holder)
        node.source.put(first)
        await node.until_phase(first, "Failed")
        node.source.put(second)
        await node.until_phase(second, "Failed")
        node.source.remove(holder)
        await node.until_running(first, within=20)
        await trio.sleep(60)
        assert node.status(second).phase == "Failed"
        assert node.status(second).message.endswith("is held by pod default/first-node")
        node.source.remove(first)
        await node.until_running(second, within=20)


async def test_it_starts_when_there_is_room(mock_clock: MockClock, tmp_path: Path) -> None:
    large = {"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "600"}}}
    one, other = static_pod("one", containers=[large]), static_pod("other", containers=[large])
    async with sim_node(tmp_path) as node:
        node.sim.program(Program.runs_forever(), container="main")
        node.source.put(one)
        await node.until_running(one)
        node.source.put(other)
        await node.until_phase(other, "Failed")
        assert node.status(other).reason == "UnexpectedAdmissionError", (
            "static pods are critical: nobody is in their way"
        )
        node.source.remove(one)
        await node.until_running(other, within=20)
