"""What a person has an agent do: manifests come and go, containers are restarted in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from tests.scenarios.stage import cluster_stage
from trikubelet.agent.acting import Acting
from trikubelet.agent.view import LocalView
from trikubelet.node_api.handlers.acting import ActingRefusedError
from trikubelet.sim import Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

MANIFEST = b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: x}]}\n"


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def acting(node: SimNode, folder: Path | None = None) -> Acting:
    """What a person may do to pods of a node with its root folder, and a person's manifests, in `folder`."""
    if folder is not None:
        node.agent.options = attrs.evolve(node.agent.options, root_dir=folder, manifests=folder / "mine")
    return Acting(node.agent, LocalView(node.agent).pod)


async def test_manifests_come_and_go(mock_clock: MockClock, tmp_path: Path) -> None:
    pod = attrs.evolve(static_pod("web"))
    async with sim_node() as node:
        actions = acting(node, tmp_path)
        answer = await actions.apply(MANIFEST, "web.yaml", dry_run=True)
        assert (answer["before"], answer["pods"]) == (None, ["default/web-simulated"])
        assert not (tmp_path / "applied").exists()
        await actions.apply(MANIFEST, "web.yaml", dry_run=False)
        assert (await actions.apply(MANIFEST, "web.yaml", dry_run=False))["before"] == MANIFEST.decode()
        with pytest.raises(ActingRefusedError, match=r"web\.yaml"):
            await actions.apply(b"kind: Pod\n", "web.yaml", dry_run=False)
        with pytest.raises(ActingRefusedError, match="--replace replaces it"):
            await actions.apply(MANIFEST, "web.yaml", dry_run=False, must_be_new=True)
        named = attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, name="web-simulated"))
        node.source.put(named)
        await node.until_running(named)
        assert await actions.delete("default", "web-simulated") == {
            "file": str(tmp_path / "applied/web.yaml"),
            "moved": {},
            "others": [],
            "uid": named.metadata.uid,
        }
        assert list((tmp_path / "applied").iterdir()) == []
        assert (await actions.delete("default", "web-simulated"))["file"] is None, "it is on its way out already"


async def test_a_persons_manifest_is_moved_only_when_asked(mock_clock: MockClock, tmp_path: Path) -> None:
    pod = static_pod("web")
    named = attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, name="web-simulated"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/web.yaml").write_bytes(MANIFEST)
    async with sim_node() as node:
        actions = acting(node, tmp_path)
        node.source.put(named)
        await node.until_running(named)
        with pytest.raises(ActingRefusedError, match=r"mine/web\.yaml, a file of yours"):
            await actions.apply(MANIFEST + b"#", "web.yaml", dry_run=False)
        with pytest.raises(ActingRefusedError, match="give --remove-file"):
            await actions.delete("default", "web-simulated")
        answer = await actions.delete("default", "web-simulated", remove_file=True)
        assert answer["moved"] == {str(tmp_path / "mine/web.yaml"): str(tmp_path / "removed/web.yaml")}


async def test_a_node_of_a_cluster_without_a_folder_says_so(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        with pytest.raises(ActingRefusedError, match="start it with --manifests FOLDER"):
            await Acting(stage.agent, LocalView(stage.agent).pod).apply(MANIFEST, "web.yaml", dry_run=False)


async def test_in_a_cluster_commands_write_beside_other_static_pods(autojump_clock: MockClock, tmp_path: Path) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (static / "web.yaml").write_bytes(theirs := MANIFEST.replace(b"web", b"api-server"))
    async with cluster_stage() as stage:
        agent = stage.agent
        agent.options = attrs.evolve(agent.options, root_dir=tmp_path, manifests=static)
        actions = Acting(agent, LocalView(agent).pod)
        applied = await actions.apply(MANIFEST, "web.yaml", dry_run=False)
        assert applied["file"] == str(static / "trikubelet-web.yaml")
        with pytest.raises(ActingRefusedError, match=r"web\.yaml, a file that no command wrote as it is now"):
            await actions.apply(theirs + b"#", "web.yaml", dry_run=False)
        (static / "trikubelet-web.yaml").write_bytes(edited := MANIFEST + b"# mine now\n")
        with pytest.raises(ActingRefusedError, match="a file that no command wrote as it is now"):
            await actions.apply(MANIFEST, "web.yaml", dry_run=False)
        assert {file.name: file.read_bytes() for file in static.iterdir()} == {
            "web.yaml": theirs,
            "trikubelet-web.yaml": edited,
        }


async def test_a_container_is_restarted_in_place_with_its_hook_and_the_others_run_on(mock_clock: MockClock) -> None:
    hook = {"preStop": {"exec": {"command": ["drain"]}}}
    containers = [{"name": "main", "image": "test:1", "lifecycle": hook}, {"name": "other", "image": "test:1"}]
    pod = static_pod("web", containers=containers)
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        sandbox = node.sim.running_containers()[0].sandbox.id
        assert await acting(node).restart("default", "web-node", "main") == ["main"]
        await node.until(lambda: len(node.sim.started("main")) == 2, within=5)
        await node.until_running(pod)
        assert len(node.sim.started("other")) == 1
        assert node.sim.calls.count("ExecSync") == 1
        assert {container.sandbox.id for container in node.sim.running_containers()} == {sandbox}
        events = [event.message for event in node.agent.recorder.events_of(pod.metadata.uid)]
        assert "Container main is restarted, as somebody asked for" in events
        for starts in range(2, 7):  # no back-off for who was told to restart
            await acting(node).restart("default", "web-node", None)
            await trio.sleep(3)
            assert len(node.sim.started("other")) == starts


async def test_a_container_in_a_back_off_starts_at_once(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.program(Program.crashes(4, after=0.5), container="main")
        node.source.put(pod)
        await node.until(lambda: len(node.sim.started("main")) == 4, within=300)
        await trio.sleep(2)
        await acting(node).restart("default", "web-node", None)
        await node.until(lambda: len(node.sim.started("main")) == 5, within=5)


async def test_what_would_not_start_again_is_left_alone(mock_clock: MockClock) -> None:
    pod = static_pod("web", restartPolicy="Never")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        actions = acting(node)
        with pytest.raises(ActingRefusedError, match="restart policy Never"):
            await actions.restart("default", "web-node", None)
        with pytest.raises(ActingRefusedError, match="no container x that runs on: it has main"):
            await actions.restart("default", "web-node", "x")
        with pytest.raises(ActingRefusedError, match="the agent has no pod default/nobody"):
            await actions.restart("default", "nobody", None)
        assert len(node.sim.running_containers()) == 1


async def test_a_runtime_that_does_not_stop_a_container_is_told_of(mock_clock: MockClock) -> None:
    pod = static_pod("web", terminationGracePeriodSeconds=5)
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        node.sim.faults.hang_next("StopContainer", times=100)
        with pytest.raises(ActingRefusedError, match="has not ended within 65 s"):
            await acting(node).restart("default", "web-node", None)


async def test_pods_of_a_cluster_are_restarted_and_not_deleted_here(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        stage.create_pod("web")
        await stage.until_ready("web")
        actions = Acting(stage.agent, LocalView(stage.agent).pod)
        assert await actions.restart("default", "web", None) == ["main"]
        await stage.until(lambda: stage.status("web")["containerStatuses"][0]["restartCount"] == 1, within=10)
        with pytest.raises(ActingRefusedError, match="kubectl delete pod -n default web"):
            await actions.delete("default", "web")
