"""A pod's way to running, against the simulated runtime."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.cgroups.fake_driver import FakeDriver
from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import ContainerPort, EnvVar, EphemeralContainer, VolumeMount
from trikubelet.cgroups.pods import PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions
from trikubelet.container.model import ContainerState
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.runtime.results import SyncAction
from trikubelet.sim.programs import Life, Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


async def test_a_new_pod_gets_a_sandbox_and_its_containers(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    ready: list[tuple[str, ...]] = []
    result = await node.sync(pod, on_sandbox_ready=lambda _, ips: ready.append(ips))
    assert result.error is None
    assert [one.action for one in result.results] == [
        SyncAction.CREATE_POD_SANDBOX,
        SyncAction.START_CONTAINER,
        SyncAction.START_CONTAINER,
    ]
    status = await node.status(pod)
    assert [one.name for one in status.running_containers()] == ["b", "a"]
    assert len(status.sandbox_statuses) == 1
    assert status.ips == ready[0] != ()


async def test_a_sandbox_belongs_into_the_cgroup_of_its_pod(autojump_clock: MockClock, node: Node) -> None:
    cgroups = PodCgroupManager(FakeDriver(), ("kubepods",), CgroupOptions(), active_pods=tuple)
    pod, other = make_pod(name="own"), make_pod(name="other")
    manager = node.another_manager(cgroups=cgroups)
    await node.sync_with(manager, pod)
    await node.sync(other)
    parents = {one.config.metadata.uid: one.config.linux.cgroup_parent for one in node.sim.machine.sandboxes.values()}
    assert parents == {pod.metadata.uid: f"/kubepods/besteffort/pod{pod.metadata.uid}", other.metadata.uid: ""}


async def test_a_start_is_told_in_the_kubelets_words(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.offer("busybox", seconds=1.5, size=2048)
    pod = make_pod()
    await node.sync(pod)
    pulling, pulled, created, started = node.said(pod)
    assert pulling == ("Pulling", 'Pulling image "busybox"')
    assert pulled[0] == "Pulled"
    expected = (
        r'Successfully pulled image "busybox" in 1\.5\d*s \(1\.5\d*s including waiting\)\. Image size: 2048 bytes\.'
    )
    assert re.fullmatch(expected, pulled[1])
    assert created == ("Created", "Container created")
    assert started == ("Started", "Container started")


async def test_a_host_port_that_nothing_maps_is_told(
    autojump_clock: MockClock, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = (ContainerPort(container_port=80, host_port=8080), ContainerPort(container_port=90, host_port=90))
    with_network = make_pod(make_container(ports=ports))
    await node.sync(with_network)
    assert all(reason != "HostPortNotMapped" for reason, _ in node.said(with_network))

    monkeypatch.setattr(node.sim.machine, "_new_address", lambda: "192.168.0.1")
    on_machines = make_pod(make_container(ports=ports), name="other")
    await node.sync(on_machines)
    [message] = [message for reason, message in node.said(on_machines) if reason == "HostPortNotMapped"]
    assert message.startswith("host port 8080 does not lead to port 80: pods are on the machine's own network here")


async def test_a_pod_that_runs_is_left_alone(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    await node.sync(pod)
    before = node.sim.calls.total()
    status = await node.status(pod)
    calls = node.sim.calls.total()
    result = await node.manager.sync_pod(pod, status, node.containers(pod))
    assert result.results == []
    assert node.sim.calls.total() == calls
    assert calls - before == 2


async def test_an_agent_that_was_killed_adopts_what_runs(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container("a"), init_containers=(make_container("init"),))
    node.sim.program(Program.exits(1), container="init")
    await node.settle(pod, 4)
    started = len(node.sim.runs())
    manager = node.another_manager()
    for _ in range(3):
        result = await node.sync_with(manager, pod, await manager.get_pod_status(pod.metadata.uid))
        assert result.results == []
    assert len(node.sim.runs()) == started == 2


async def test_init_containers_run_one_after_the_other(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(5), container="one")
    node.sim.program(Program.exits(5), container="two")
    pod = make_pod(init_containers=(make_container("one"), make_container("two")))
    await node.settle(pod, 20)
    [one], [two], [main] = node.sim.started("one"), node.sim.started("two"), node.sim.started("main")
    assert one.ended_at is not None
    assert two.ended_at is not None
    assert one.ended_at <= two.started_at
    assert two.ended_at <= main.started_at


async def test_a_failed_init_container_holds_up_the_rest(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(1, exit_code=1), container="one")
    pod = make_pod(init_containers=(make_container("one"),))
    await node.settle(pod, 20)
    assert node.sim.started("main") == []
    assert len(node.sim.started("one")) == 3


async def test_a_sidecar_runs_before_and_beside_the_main_container(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(init_containers=(make_container("side", restart_policy="Always"),))
    await node.settle(pod, 3)
    assert {one.name for one in node.sim.running_containers()} == {"side", "main"}
    assert node.starts("side")[0] <= node.starts("main")[0]


async def test_an_ephemeral_container_is_started_once_and_sees_its_targets_processes(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod()
    await node.sync(pod)
    guest = EphemeralContainer(name="debug", image="busybox", target_container_name="main")
    pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, ephemeral_containers=(guest,)))
    node.sim.program(Program.exits(1), container="debug")
    await node.settle(pod, 5)
    [run] = node.sim.started("debug")
    made = next(one for one in node.sim.machine.containers.values() if one.id == run.container_id)
    assert made.config.linux.security_context.namespace_options.target_id == (await node.seen(pod, "main")).id.id


async def test_crashing_containers_wait_longer_each_time(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.crashes(100))
    pod = make_pod()
    for _ in range(18):
        result = await node.sync(pod)
        await trio.sleep_until(min(result.backoffs.values(), default=trio.current_time()))
    starts = node.starts("main")
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps[:8] == pytest.approx([0, 10, 20, 40, 80, 160, 300, 300], abs=0.5)


async def test_a_container_in_crash_loop_tells_how_long_it_waits(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.crashes(100))
    pod = make_pod()
    await node.sync(pod)
    await node.sync(pod)
    result = await node.sync(pod)
    [waiting] = result.results
    assert (waiting.reason, waiting.message) == (
        "CrashLoopBackOff",
        "back-off 10s restarting failed container=main pod=web_default(uid-web)",
    )
    assert result.error is None
    assert result.backoffs == {"main": pytest.approx(trio.current_time() + 10, abs=0.1)}
    assert node.manager.waiting_reasons("uid-web") == {"main": (waiting.reason, waiting.message)}
    assert ("BackOff", "Back-off restarting failed container main in pod web_default(uid-web)") in node.said(pod)
    await trio.sleep_until(result.backoffs["main"])
    assert (await node.sync(pod)).backoffs == {}
    assert node.manager.waiting_reasons("uid-web") == {}


async def test_a_container_that_ran_for_more_than_ten_minutes_starts_over(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program((*(Life(duration=0, exit_code=1),) * 4, Life(duration=700, exit_code=1), Life())))
    pod = make_pod()
    for _ in range(10):
        result = await node.sync(pod)
        await trio.sleep_until(min(result.backoffs.values(), default=trio.current_time()))
    assert len(node.starts("main")) == 5
    await trio.sleep(701)
    assert (await node.sync(pod)).backoffs == {}
    assert len(node.starts("main")) == 6


async def test_restart_counts_go_on_after_the_runtime_forgot_everything(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    logs = tmp_path / "logs" / "default_web_uid-web" / "main"
    logs.mkdir(parents=True)
    (logs / "4.log").write_text("")
    (logs / "3.log.20260101-000000").write_text("")
    pod = make_pod()
    await node.sync(pod)
    assert (await node.seen(pod, "main")).restart_count == 5


async def test_a_restarted_container_counts_on(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.crashes(1))
    pod = make_pod()
    await node.settle(pod, 3)
    assert [run.attempt for run in node.sim.started("main")] == [0, 1]
    assert (await node.seen(pod, "main")).log_path.endswith("main/1.log")


async def test_a_lost_sandbox_is_replaced_and_the_pod_starts_over(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(1), container="init")
    pod = make_pod(init_containers=(make_container("init"),))
    await node.settle(pod, 4)
    node.sim.fail_sandbox(next(iter(node.sim.machine.sandboxes.values())))
    await node.settle(pod, 5)
    status = await node.status(pod)
    assert [(one.attempt, one.ready) for one in status.sandbox_statuses] == [(1, True), (0, False)]
    assert [one.name for one in node.sim.running_containers()] == ["main"]
    assert len(node.sim.started("init")) == 2
    assert ("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.") in node.said(pod)


async def test_a_changed_image_restarts_the_container(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    await node.sync(pod)
    changed = make_pod(make_container(image="busybox:2"))
    await node.sync(changed)
    assert [one.name for one in node.sim.running_containers()] == ["main"]
    assert len(node.sim.started("main")) == 2
    assert ("Killing", "Container main definition changed, will be restarted") in node.said(pod)


# Failures


async def test_a_sandbox_that_cannot_be_made_is_an_error_and_an_event(autojump_clock: MockClock, node: Node) -> None:
    node.sim.faults.fail_next("RunPodSandbox", message="no network")
    pod = make_pod()
    result = await node.sync(pod)
    assert str(result.error) == (
        'failed to "CreatePodSandbox" for "web_default(uid-web)" with CreatePodSandboxError: Failed to create sandbox '
        'for pod "web_default(uid-web)": rpc error: code = Unknown desc = no network'
    )
    assert node.said(pod)[0] == (
        "FailedCreatePodSandBox",
        "Failed to create pod sandbox: rpc error: code = Unknown desc = no network",
    )
    assert (await node.sync(pod)).error is None


@pytest.mark.parametrize("rpc", ["RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "PullImage"])
async def test_a_lost_reply_doubles_nothing(autojump_clock: MockClock, node: Node, rpc: str) -> None:
    pod = make_pod()
    status = await node.status(pod)
    node.sim.faults.lose_next_reply(rpc)
    assert (await node.manager.sync_pod(pod, status, node.containers(pod))).error is not None
    await trio.sleep(60)
    await node.settle(pod, 3)
    assert [one.name for one in node.sim.running_containers()] == ["main"]
    assert len(node.sim.machine.sandboxes) == 1
    assert len([run for run in node.sim.started("main") if run.ended_at is None]) == 1


async def test_a_container_that_was_created_but_not_started_costs_no_restart(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod()
    status = await node.status(pod)
    node.sim.faults.lose_next_reply("CreateContainer")
    await node.manager.sync_pod(pod, status, node.containers(pod))
    assert (await node.seen(pod, "main")).state is ContainerState.CREATED
    await node.settle(pod, 2)
    assert [run.attempt for run in node.sim.started("main")] == [0]
    assert (await node.seen(pod, "main")).restart_count == 0
    assert len(node.sim.machine.containers) == 1


async def test_what_was_created_and_never_started_is_replaced_by_what_the_pod_is_now(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod()
    status = await node.status(pod)
    node.sim.faults.lose_next_reply("CreateContainer")
    await node.manager.sync_pod(pod, status, node.containers(pod))
    changed = make_pod(make_container(image="test/other:1", env=(EnvVar("NEW", "yes"),)))
    await node.settle(changed, 2)
    (container,) = node.sim.running_containers()
    assert container.config.image.user_specified_image == "test/other:1"
    assert container.config.metadata.attempt == 0
    assert b"yes" in [variable.value for variable in container.config.envs]


async def test_what_was_created_in_a_sandbox_that_is_gone_counts_no_restart_either(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod()
    status = await node.status(pod)
    node.sim.faults.lose_next_reply("CreateContainer")
    await node.manager.sync_pod(pod, status, node.containers(pod))
    node.sim.machine.reboot()
    await node.settle(pod, 2)
    assert [run.attempt for run in node.sim.started("main")] == [0]


async def test_a_start_that_was_under_way_after_all_is_left_alone(autojump_clock: MockClock, node: Node) -> None:
    """The inspection saw the container of an agent that was killed before the runtime had started it."""
    pod = make_pod()
    status = await node.status(pod)
    node.sim.faults.lose_next_reply("CreateContainer")
    await node.manager.sync_pod(pod, status, node.containers(pod))
    seen = await node.status(pod)
    (container,) = node.sim.machine.containers.values()
    await RuntimeClient(node.channel).start_container(container.id)
    result = await node.manager.sync_pod(pod, seen, node.containers(pod))
    assert result.results[-1].message == "container main has been started meanwhile"
    assert (await node.sync(pod)).results == []
    assert [run.attempt for run in node.sim.started("main")] == [0]


async def test_what_cannot_be_removed_gets_no_twin(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    status = await node.status(pod)
    node.sim.faults.lose_next_reply("CreateContainer")
    await node.manager.sync_pod(pod, status, node.containers(pod))
    node.sim.faults.fail_next("RemoveContainer", message="container is in starting state, can't be removed")
    result = await node.sync(pod)
    assert result.results[-1].reason == "CreateContainerError"
    assert len(node.sim.machine.containers) == 1
    assert (await node.sync(pod)).error is None
    assert [run.attempt for run in node.sim.started("main")] == [0]


@pytest.mark.parametrize(
    ("rpc", "reason"), [("CreateContainer", "CreateContainerError"), ("StartContainer", "RunContainerError")]
)
async def test_a_failed_start_has_its_reason_and_hides_ids(
    autojump_clock: MockClock, node: Node, rpc: str, reason: str
) -> None:
    pod = make_pod()
    node.sim.faults.fail_next(rpc, message="out of luck")
    result = await node.sync(pod)
    assert result.results[-1].reason == reason
    assert node.manager.waiting_reasons("uid-web") == {"main": (reason, "out of luck")}
    assert ("Failed", "Error: out of luck") in node.said(pod)


async def test_one_container_that_fails_does_not_stop_the_others(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program(create_error="bad device"), container="bad")
    result = await node.sync(make_pod(make_container("bad"), make_container("good")))
    assert [one.reason for one in result.results[1:]] == ["CreateContainerError", ""]
    assert [one.name for one in node.sim.running_containers()] == ["good"]


async def test_a_missing_volume_is_a_configuration_error(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container(volume_mounts=(VolumeMount(name="data", mount_path="/data"),)))
    result = await node.sync(pod)
    assert (result.results[-1].reason, result.results[-1].message) == (
        "CreateContainerConfigError",
        'cannot find volume "data" to mount into container "main"',
    )
    assert node.sim.calls.count("CreateContainer") == 0


async def test_volumes_hosts_and_termination_files_are_mounted(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    node.mounts.paths["data"] = tmp_path / "volume"
    container = make_container(
        env=(EnvVar("SUB", "inner"),),
        termination_message_path="/dev/termination-log",
        volume_mounts=(
            VolumeMount(name="data", mount_path="/data", read_only=True),
            VolumeMount(name="data", mount_path="/sub", sub_path_expr="$(SUB)"),
        ),
    )
    pod = make_pod(container)
    await node.sync(pod)
    [made] = node.sim.running_containers()
    mounts = {one.container_path: one for one in made.config.mounts}
    assert mounts["/data"].host_path == str(tmp_path / "volume")
    assert mounts["/data"].readonly
    assert mounts["/sub"].host_path == str(tmp_path / "volume" / "inner")
    hosts = tmp_path / "root" / "pods" / "uid-web" / "etc-hosts"
    assert mounts["/etc/hosts"].host_path == str(hosts)
    [address] = (await node.status(pod)).ips
    assert hosts.read_text().endswith(f"{address}\tweb\n")
    termination = mounts["/dev/termination-log"].host_path
    assert termination.startswith(str(tmp_path / "root" / "pods" / "uid-web" / "containers" / "main"))
    assert (tmp_path / "logs" / "default_web_uid-web" / "main").is_dir()


async def test_a_sub_path_that_leads_out_is_refused_without_details(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    node.mounts.paths["data"] = tmp_path
    mount = VolumeMount(name="data", mount_path="/data", sub_path="escape")
    result = await node.sync(make_pod(make_container(volume_mounts=(mount,))))
    assert result.results[-1].message == 'failed to prepare subPath for volumeMount "data" of container "main"'


async def test_a_cancelled_sync_leaves_nothing_that_the_next_cannot_repair(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.images.offer("busybox", seconds=100)
    pod = make_pod()
    with trio.move_on_after(5):
        await node.sync(pod)
    assert node.sim.running_containers() == []
    node.sim.images.add("busybox")
    assert (await node.sync(pod)).error is None
    assert len(node.sim.running_containers()) == 1
    assert len(node.sim.machine.sandboxes) == 1


async def test_a_runtime_that_is_away_is_an_error_to_be_repaired(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    status = await node.status(pod)
    node.sim.restart(downtime=5)
    result = await node.manager.sync_pod(pod, status, node.containers(pod))
    assert result.error is not None
    await trio.sleep(30)
    assert (await node.sync(pod)).error is None
