"""The agent as its local API shows it, on the simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from trikubelet.agent.view import LocalView
from trikubelet.cli.pod_columns import pod_row, pod_status
from trikubelet.cli.pod_description import describe_pod
from trikubelet.node_api.local_api import ImportRefusedError
from trikubelet.node_api.log_location import LogNotAvailableError
from trikubelet.sim import Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_health_tells_of_a_runtime_that_is_away(mock_clock: MockClock, tmp_path: Path) -> None:
    async with sim_node(tmp_path) as node:
        view = LocalView(node.agent)
        await trio.sleep(5)
        assert not any(view.health().values())
        node.sim.restart(downtime=300)
        await trio.sleep(200)
        problems = {name for name, problem in view.health().items() if problem}
        assert problems == {"pleg", "runtime", "syncloop"}
        await trio.sleep(200)
        assert not any(view.health().values())


async def test_a_pod_that_is_being_ended_is_still_shown_with_its_status(mock_clock: MockClock, tmp_path: Path) -> None:
    pod = static_pod("ending", terminationGracePeriodSeconds=20)
    async with sim_node(tmp_path) as node:
        view = LocalView(node.agent)
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        (shown,) = view.pods()
        assert shown.metadata.deletion_timestamp is None
        node.source.remove(pod)
        for _ in range(50):
            await trio.sleep(0.1)
            assert [shown.metadata.name for shown in view.pods()] == ["ending-node"], "it is never missing meanwhile"
        (shown,) = view.pods()
        assert shown.metadata.deletion_timestamp is not None
        assert shown.metadata.deletion_grace_period_seconds == 20
        assert shown.status.container_statuses[0].state.running is not None
        await node.until_gone(pod)
        assert view.pods() == []


def shown_words(view: LocalView) -> dict[str, str]:
    return {pod.metadata.name: pod_status(pod) for pod in view.pods()}


async def test_in_a_drain_pods_are_shown_as_ending_and_then_no_more(mock_clock: MockClock, tmp_path: Path) -> None:
    slow, quick = static_pod("slow"), static_pod("quick")
    done = static_pod("done", restartPolicy="Never")
    async with sim_node(tmp_path) as node, trio.open_nursery() as nursery:
        view = LocalView(node.agent)
        node.sim.program(Program.runs_forever(sigterm=None), pod="slow-node")
        node.sim.program(Program.exits(after=0.1), pod="done-node")
        node.source.put(slow, quick, done)
        await node.until_running(slow)
        await node.until_running(quick)
        await node.until_phase(done, "Succeeded")
        await trio.sleep(5)
        nursery.start_soon(node.agent.drain)
        await trio.sleep(10)
        assert shown_words(view) == {"slow-node": "Terminating", "done-node": "Completed"}
        await trio.sleep(30)
        assert shown_words(view) == {"done-node": "Completed"}
        nursery.cancel_scope.cancel()


async def test_a_pod_that_waits_for_its_predecessor_says_so(mock_clock: MockClock, tmp_path: Path) -> None:
    old, new = static_pod("edited", uid="old", terminationGracePeriodSeconds=20), static_pod("edited", uid="new")
    async with sim_node(tmp_path) as node:
        view = LocalView(node.agent)
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(old)
        await node.until_running(old)
        node.source.remove(old)
        node.source.put(new)
        asked = node.agent.clock.now()
        await trio.sleep(5)
        waiting, going = sorted(view.pods(), key=lambda pod: pod.metadata.uid)
        assert [pod.metadata.uid for pod in (waiting, going)] == ["new", "old"]
        assert waiting.status.phase == "Pending"
        assert waiting.status.message.startswith(
            "waits for the end of the pod of this name from before, old, which was asked to end at "
        )
        assert waiting.status.message.endswith(" and has 20s of grace")
        born = waiting.metadata.creation_timestamp
        assert born is not None
        assert abs((born - asked).total_seconds()) < 2
        described = describe_pod(waiting, [], node.agent.clock.now())
        assert "Waits Since:" in described
        assert pod_row(waiting, node.agent.clock.now()).age in ("4s", "5s", "6s")
        await node.until_running(new, within=30)
        [shown] = view.pods()
        assert (shown.status.message, shown.metadata.creation_timestamp) == ("", None)


async def test_a_subscriber_is_woken_by_every_kind_of_change(mock_clock: MockClock, tmp_path: Path) -> None:
    pod = static_pod("watched")

    async def woken(node: SimNode, view: LocalView) -> None:
        with view.subscribe() as changed, trio.fail_after(5):
            node.source.put(pod)
            while not (view.pods() and view.pods()[0].status.phase == "Running"):
                await changed.receive()
            node.source.remove(pod)
            while view.pods():
                await changed.receive()

    async with sim_node(tmp_path) as node, trio.open_nursery() as nursery:
        view = LocalView(node.agent)
        await nursery.start(view.run)
        await woken(node, view)
        nursery.cancel_scope.cancel()


async def test_logs_of_what_is_not_there_are_refused_in_words(mock_clock: MockClock, tmp_path: Path) -> None:
    pod = static_pod("quiet")
    async with sim_node(tmp_path) as node:
        view = LocalView(node.agent)
        with pytest.raises(LogNotAvailableError, match='pod "quiet-node" not found'):
            await view.log_files("default", "quiet-node", "main", previous=False)
        node.source.put(pod)
        await node.until_running(pod)
        target = await view.log_files("default", "quiet-node", "main", previous=False)
        assert target.running
        assert target.path == tmp_path / "logs/default_quiet-node_uid-of-quiet/main/0.log"
        with pytest.raises(LogNotAvailableError, match="previous terminated container"):
            await view.log_files("default", "quiet-node", "main", previous=True)


async def test_images_of_a_foreign_runtime_are_not_imported(mock_clock: MockClock, tmp_path: Path) -> None:
    async with sim_node(tmp_path) as node:
        view = LocalView(node.agent)
        with pytest.raises(ImportRefusedError, match="images of simulated are imported with its own tools"):
            await view.import_images(tmp_path / "image.tar")
        assert await view.images() == []
        assert view.statistics()["pod_workers"].tasks == 0
