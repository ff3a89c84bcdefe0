"""What an agent without any pod says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.agent.sim_node import clock_without_threads, sim_node, static_pod
from tests.captured_logs import capture_logs
from trikubelet.agent.sources import nothing_to_run, tell_of_nothing_to_run
from trikubelet.sim.node import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_an_agent_without_pods_says_so_once(mock_clock: MockClock, tmp_path: Path) -> None:
    async with sim_node(tmp_path) as node:
        with capture_logs() as lines:
            await tell_of_nothing_to_run(node.agent)
    assert [line["event"].partition(":")[0] for line in lines] == ["nothing to run"]


async def test_an_agent_with_a_pod_does_not(mock_clock: MockClock, tmp_path: Path) -> None:
    source = ScriptedSource("file")
    source.put(static_pod("web"))
    async with sim_node(tmp_path, source=source) as node:
        with capture_logs() as lines:
            await tell_of_nothing_to_run(node.agent)
    assert [line for line in lines if line["event"].startswith("nothing")] == []


async def test_what_is_missing_is_named(mock_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sim_node(tmp_path) as node:
        options = node.agent.options
    assert "--manifests FOLDER" in nothing_to_run(options)
    for_folder = attrs.evolve(options, manifests=tmp_path / "pods")
    assert f"{tmp_path}/pods is not there" in nothing_to_run(for_folder)
    (tmp_path / "pods").mkdir()
    monkeypatch.chdir(tmp_path)
    assert nothing_to_run(attrs.evolve(for_folder, console=True)).startswith("nothing to run: pods holds no pod")
    assert f"{tmp_path}/pods holds no pod" in nothing_to_run(for_folder)
