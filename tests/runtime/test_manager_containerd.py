"""The runtime manager against a real containerd."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.runtime.conftest import FakeMounts, make_container, make_pod
from trikubelet.api import EnvVar, EnvVarSource, HostAlias, ObjectFieldSelector, PodSecurityContext, VolumeMount
from trikubelet.clock import SystemClock
from trikubelet.cri.client import ImageClient, RuntimeClient
from trikubelet.events import EventRecorder
from trikubelet.grpc import open_unix_channel
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.model import ContainerState
from trikubelet.runtime.options import MachineFacts, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.containerd_node import ContainerdNode
    from trikubelet.api import Container, Pod
    from trikubelet.runtime.model import ContainerStatus, PodRuntimeStatus

pytestmark = [pytest.mark.containerd, pytest.mark.root]

IMAGE = "localhost/test:1"


def shell(name: str, script: str, **fields: Any) -> Container:
    return make_container(name, image=IMAGE, image_pull_policy="Never", command=("sh", "-c", script), **fields)


@asynccontextmanager
async def manager_on(containerd: ContainerdNode, folder: Path) -> AsyncIterator[RuntimeManager]:
    clock = SystemClock()
    mounts = FakeMounts(folder)
    mounts.paths["shared"] = folder / "shared"
    mounts.paths["shared"].mkdir(exist_ok=True)
    async with open_unix_channel(containerd.socket) as channel:
        manager = RuntimeManager(
            RuntimeClient(channel),
            ImageClient(channel),
            recorder=EventRecorder(clock),
            clock=clock,
            options=RuntimeOptions(
                root_dir=folder / "root",
                machine=MachineFacts.read(),
                pod_logs_dir=folder / "logs",
                legacy_log_symlinks_dir=folder / "containers",
                node_name="node-1",
                host_ips=("192.168.0.1",),
            ),
            mounts=mounts,
        )
        await manager.connect()
        yield manager


async def status_of(manager: RuntimeManager, pod: Pod) -> PodRuntimeStatus:
    return await manager.get_pod_status(pod.metadata.uid)


async def sync_until_running(manager: RuntimeManager, pod: Pod, container: str) -> ContainerStatus:
    with trio.fail_after(60):
        while True:
            status = await status_of(manager, pod)
            found = status.find_container(container)
            if found is not None and found.state is ContainerState.RUNNING:
                return found
            error = (await manager.sync_pod(pod, status)).error
            assert error is None, error
            await trio.sleep(0.05)


async def ended(manager: RuntimeManager, pod: Pod, container: str) -> ContainerStatus:
    with trio.fail_after(60):
        while True:
            found = (await status_of(manager, pod)).find_container(container)
            if found is not None and found.state is ContainerState.EXITED:
                return found
            await trio.sleep(0.05)


async def destroy(manager: RuntimeManager, pod: Pod) -> None:
    running = (await status_of(manager, pod)).as_running_pod(manager.runtime_name)
    await manager.kill_pod(running, pod, 2)
    await manager.garbage_collect(all_sources_ready=True, is_pod_removed=lambda uid: uid == pod.metadata.uid)
    left = await status_of(manager, pod)
    assert (left.container_statuses, left.sandbox_statuses) == ((), ())


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
    async with manager_on(containerd, tmp_path) as manager:
        first = await sync_until_running(manager, pod, "main")
        assert manager.runtime_name == "containerd"
        assert first.pid > 0
        assert (await status_of(manager, pod)).ips
    async with manager_on(containerd, tmp_path) as manager:
        status = await status_of(manager, pod)
        assert (await manager.sync_pod(pod, status)).results == []
        assert status.find_container("main") == first
        [seen] = [one for one in await manager.get_pods() if one.uid == pod.metadata.uid]
        assert [one.name for one in seen.containers] == ["main"]
        log = tmp_path / "logs" / "default_adopted_uid-adopted" / "main" / "0.log"
        assert log.read_text().endswith("stdout F hello\n")
        [link] = [one for one in (tmp_path / "containers").iterdir() if "main" in one.name]
        assert link.resolve() == log
        running = status.as_running_pod(manager.runtime_name)
        await manager.kill_pod(running, pod)
        over = await ended(manager, pod, "main")
        assert over.exit_code == 7
        await destroy(manager, pod)
        assert not (tmp_path / "logs" / "default_adopted_uid-adopted").exists()


async def test_a_container_sees_what_its_pod_asked_for(containerd: ContainerdNode, tmp_path: Path) -> None:
    script = """
    echo "$POD $NODE $GREETING"; id -u; cat /etc/hosts; cat /proc/sys/kernel/hostname; cat /etc/resolv.conf
    pwd; echo "last words" > /dev/termination-log; exit 3
    """
    variables = (
        EnvVar("POD", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="metadata.name"))),
        EnvVar("NODE", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.hostIP"))),
        EnvVar("GREETING", "hi $(POD) $$(POD)"),
    )
    pod = make_pod(
        shell(
            "main",
            script,
            env=variables,
            working_dir="/tmp",
            termination_message_path="/dev/termination-log",
            termination_message_policy="File",
        ),
        name="curious",
        restart_policy="Never",
        security_context=PodSecurityContext(run_as_user=1000, run_as_non_root=True),
        host_aliases=(HostAlias(ip="1.2.3.4", hostnames=("far",)),),
    )
    async with manager_on(containerd, tmp_path) as manager:
        result = await manager.sync_pod(pod, await status_of(manager, pod))
        assert result.error is None, result.error
        over = await ended(manager, pod, "main")
        assert (over.exit_code, over.message) == (3, "last words\n")
        log = (tmp_path / "logs" / "default_curious_uid-curious" / "main" / "0.log").read_text()
        lines = [line.split(" ", 3)[3] for line in log.splitlines()]
        assert lines[:2] == ["curious 192.168.0.1 hi curious $(POD)", "1000"]
        assert "1.2.3.4\tfar" in lines
        assert "curious" in lines
        assert lines[-1] == "/tmp"
        await destroy(manager, pod)


async def test_a_crash_is_counted_and_waits(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = make_pod(shell("main", "exit 1"), name="crashing")
    async with manager_on(containerd, tmp_path) as manager:
        for attempt in (0, 1):
            result = await manager.sync_pod(pod, await status_of(manager, pod))
            assert result.error is None, result.error
            assert (await ended(manager, pod, "main")).restart_count == attempt
        result = await manager.sync_pod(pod, await status_of(manager, pod))
        assert [one.reason for one in result.results] == ["CrashLoopBackOff"]
        assert 0 < result.backoffs["main"] - trio.current_time() <= 10
        await manager.remove_pod_containers(await status_of(manager, pod))
        [kept] = (await status_of(manager, pod)).container_statuses
        assert kept.restart_count == 1
        await destroy(manager, pod)


async def test_the_runtimes_own_words_reach_the_user(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = make_pod(shell("main", "true"), name="wrong")
    broken = attrs.evolve(pod.spec.containers[0], command=("/no/such/program",))
    pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, containers=(broken,)))
    async with manager_on(containerd, tmp_path) as manager:
        result = await manager.sync_pod(pod, await status_of(manager, pod))
        assert result.results[-1].reason == "RunContainerError"
        assert "/no/such/program" in result.results[-1].message
        await destroy(manager, pod)
