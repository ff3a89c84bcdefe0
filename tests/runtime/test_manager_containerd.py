"""The runtime manager against a real containerd: the life of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.examples import IS_NIGHT
from tests.patience import PATIENCE
from tests.runtime.conftest import make_pod
from tests.runtime.containerd_stage import shell, stage_on
from trikubelet.api import VolumeMount
from trikubelet.container.model import ContainerState
from trikubelet.rpc.cri.client import RuntimeClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.containerd_node import ContainerdNode

pytestmark = [pytest.mark.containerd, pytest.mark.root]


async def test_a_pod_runs_is_adopted_and_goes_without_a_trace(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = make_pod(
        shell(
            "main",
            "trap 'exit 7' TERM; cat /shared/greeting; while :; do sleep 0.1; done",
            volume_mounts=(VolumeMount(name="shared", mount_path="/shared", read_only=True),),
        ),
        name="adopted",
        init_containers=(
            shell(
                "init",
                "echo hello > /shared/greeting",
                volume_mounts=(VolumeMount(name="shared", mount_path="/shared"),),
            ),
        ),
    )
    async with stage_on(containerd, tmp_path) as stage:
        first = await stage.until_running(pod)
        assert stage.manager.runtime_name == "containerd"
        assert (await stage.status(pod)).ips
    async with stage_on(containerd, tmp_path) as stage:
        status = await stage.status(pod)
        assert (await stage.sync_seen(pod, status)).results == []
        assert status.find_container("main") == first
        [seen] = [one for one in await stage.manager.get_pods() if one.uid == pod.metadata.uid]
        assert [one.name for one in seen.containers] == ["main"]
        await stage.until_line(pod, "hello")
        assert stage.lines(pod) == ["hello"]
        await stage.manager.kill_pod(status.as_running_pod(stage.manager.runtime_name), pod)
        assert (await stage.ended(pod)).exit_code == 7
        await stage.destroy(pod)
        assert not stage.log_folder(pod).exists()


async def test_a_crash_is_counted_and_waits(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = make_pod(shell("main", "exit 1"), name="crashing")
    async with stage_on(containerd, tmp_path) as stage:
        for attempt in (0, 1):
            await stage.start(pod)
            assert (await stage.ended(pod)).restart_count == attempt
        result = await stage.sync(pod)
        assert [one.reason for one in result.results] == ["CrashLoopBackOff"]
        assert 0 < result.backoffs["main"] - trio.current_time() <= 10
        await stage.manager.remove_pod_containers(await stage.status(pod))
        [kept] = (await stage.status(pod)).container_statuses
        assert kept.restart_count == 1
        await stage.destroy(pod)


async def test_the_runtimes_own_words_reach_the_user(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = make_pod(shell("main", "true"), name="wrong")
    broken = attrs.evolve(pod.spec.containers[0], command=("/no/such/program",))
    pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, containers=(broken,)))
    async with stage_on(containerd, tmp_path) as stage:
        result = await stage.sync(pod)
        assert result.results[-1].reason == "RunContainerError"
        assert "/no/such/program" in result.results[-1].message
        await stage.destroy(pod)


@pytest.mark.parametrize("policy", ["Always", "Never"])
@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.02, 0.04, 0.08] if IS_NIGHT else [0.005, 0.04])
async def test_a_start_that_is_cut_off_with_its_agent_costs_no_restart(
    containerd: ContainerdNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, policy: str
) -> None:
    """The agent dies so many seconds after it asked for the start."""
    pod = make_pod(shell("main", "echo ran; exec sleep 1000"), name="cut-off", restart_policy=policy)
    start = RuntimeClient.start_container

    async def start_for_a_moment(client: RuntimeClient, container_id: str) -> None:
        with trio.move_on_after(seconds):
            await start(client, container_id)
        agent.cancel()
        await trio.lowlevel.checkpoint()

    with trio.CancelScope() as agent, monkeypatch.context() as patch:
        patch.setattr(RuntimeClient, "start_container", start_for_a_moment)
        async with stage_on(containerd, tmp_path) as stage:
            await stage.sync(pod)
    assert agent.cancelled_caught
    async with stage_on(containerd, tmp_path) as stage:
        with trio.fail_after(PATIENCE):
            while True:
                await stage.sync(pod)
                (main, *earlier) = (await stage.status(pod)).container_statuses
                killed = main.state is ContainerState.EXITED and policy == "Never"
                if main.state is ContainerState.RUNNING or killed:
                    break
                await trio.sleep(0.1)
        stays = any("cannot delete running task" in message for _, message in stage.said(pod))
        if killed or earlier:
            # The process may have run for a moment, or containerd cannot remove what it gave up: so it counts.
            first = main if killed else earlier[0]
            assert stays or first.message.startswith("failed to start containerd task"), first
            assert first.restart_count == 0
        else:
            await stage.until_line(pod, "ran")
            assert (main.restart_count, stage.lines(pod)) == (0, ["ran"])
            assert "BackOff" not in [reason for reason, _ in stage.said(pod)]
        if not stays:  # else it goes with its containerd
            await stage.destroy(pod)
