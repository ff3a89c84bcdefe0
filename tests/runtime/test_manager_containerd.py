"""The runtime manager against a real containerd: the life of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.runtime.conftest import make_pod
from tests.runtime.containerd_stage import shell, stage_on
from trikubelet.api import VolumeMount

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
