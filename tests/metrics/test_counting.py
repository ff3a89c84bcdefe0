"""What an agent counts while it lives, by what a scrape tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status

from tests.agent.sim_node import clock_without_threads, sim_node, static_pod
from tests.metrics.lives import families, metrics_of, until_failed_start, value
from tests.probes.stage import READINESS
from tests.scenarios.health import Health, probed
from tests.scenarios.stage import cluster_stage
from trikubelet.plugins.registration import PluginStatus
from trikubelet.runtime.images.credentials.accounts import NoServiceAccounts
from trikubelet.runtime.images.credentials.plugins import Plugins
from trikubelet.sim import Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_pods_are_counted_as_they_come_and_go(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        pods = [static_pod(f"pod-{number}") for number in range(3)]
        node.source.put(*pods)
        for pod in pods:
            await node.until_running(pod)
        assert await value(metrics, "kubelet_desired_pods", static="true") == 3
        assert await value(metrics, "kubelet_active_pods", static="true") == 3
        assert await value(metrics, "kubelet_running_pods") == 3
        assert await value(metrics, "kubelet_running_containers", container_state="running") == 3
        assert await value(metrics, "kubelet_started_pods_total") == 3
        assert await value(metrics, "kubelet_started_containers_total", container_type="container") == 3
        working = {"lifecycle": "sync", "config": "desired", "static": "true"}
        assert await value(metrics, "kubelet_working_pods", **working) == 3
        assert await value(metrics, "kubelet_containers_per_pod_count_count") == 3
        assert await value(metrics, "kubelet_pod_worker_start_duration_seconds_count") == 3
        assert await value(metrics, "kubelet_pod_start_duration_seconds_count") == 3
        node.source.remove(pods[0])
        await node.until_gone(pods[0])
        assert await value(metrics, "kubelet_desired_pods", static="true") == 2
        assert await value(metrics, "kubelet_running_pods") == 2
        assert await value(metrics, "kubelet_working_pods", **working) == 2
        ended = {"container_type": "container", "exit_code": "143", "reason": "Error"}
        assert await value(metrics, "kubelet_terminated_containers_total", **ended) == 1
        assert await value(metrics, "kubelet_started_pods_total") == 3


async def test_a_pod_that_is_being_ended_works_as_an_orphan(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        pod = static_pod("slow", terminationGracePeriodSeconds=20)
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        await trio.sleep(5)
        ending = {"lifecycle": "terminating", "config": "orphan", "static": "true"}
        assert await value(metrics, "kubelet_working_pods", **ending) == 1
        assert await value(metrics, "kubelet_desired_pods", static="true") == 0


async def test_calls_that_fail_are_counted_with_those_that_do_not(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        node.sim.faults.fail_next("RunPodSandbox", times=2)
        node.sim.faults.fail_next("PullImage", status=Status.UNAVAILABLE)
        pod = static_pod("unlucky")
        node.source.put(pod)
        await node.until_running(pod, within=120)
        run = {"operation_type": "run_podsandbox"}
        assert await value(metrics, "kubelet_runtime_operations_total", **run) == 3
        assert await value(metrics, "kubelet_runtime_operations_errors_total", **run) == 2
        assert await value(metrics, "kubelet_runtime_operations_duration_seconds_count", **run) == 3
        assert await value(metrics, "kubelet_run_podsandbox_errors_total", runtime_handler="") == 2
        assert await value(metrics, "kubelet_run_podsandbox_duration_seconds_count", runtime_handler="") == 3
        assert await value(metrics, "kubelet_started_pods_total") == 3
        assert await value(metrics, "kubelet_started_pods_errors_total") == 2
        assert await value(metrics, "kubelet_runtime_operations_errors_total", operation_type="pull_image") == 1
        failed = {"container_type": "container", "code": "ErrImagePull"}
        assert await value(metrics, "kubelet_started_containers_errors_total", **failed) == 1
        assert await value(metrics, "kubelet_image_pull_duration_seconds_count", image_size_in_bytes="0-10MB") == 1


async def test_a_call_that_is_given_up_is_counted_as_failed(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        node.sim.faults.hang_next("Status", seconds=1000)
        with trio.move_on_after(7):
            await node.agent.runtime_client.status()
        metrics = node.agent.runtime_client.metrics
        assert metrics.errors[("Status",)] == 1
        assert metrics.durations[("Status",)].sum == pytest.approx(7, abs=0.5)


async def test_a_pod_with_init_containers_counts_its_containers_by_kind(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        node.sim.program(Program.exits(after=3), container="first")
        pod = static_pod("made", initContainers=[{"name": "first", "image": "test:1"}])
        node.source.put(pod)
        await node.until_running(pod)
        for kind in ("init_container", "container"):
            assert await value(metrics, "kubelet_started_containers_total", container_type=kind) == 1
        ended = {"container_type": "init_container", "exit_code": "0", "reason": "Completed"}
        assert await value(metrics, "kubelet_terminated_containers_total", **ended) == 1
        requests = {"pull_policy": "ifnotpresent", "pull_required": "false", "present_locally": "true"}
        name = "kubelet_image_manager_ensure_image_requests_total"
        assert await value(metrics, name, **requests) == 1
        assert await value(metrics, name, **requests | {"pull_required": "true", "present_locally": "false"}) == 1


async def test_a_crash_loop_is_counted_and_makes_no_new_labels(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        node.sim.program(Program.fails_to_start("no such file"), container="broken")
        await until_failed_start(node, "broken", containers=[{"name": "broken", "image": "test:1"}])
        family = (await families(metrics))["kubelet_started_containers_errors_total"]
        assert {tuple(sample.labels.values()) for sample in family.samples} == {("container", "RunContainerError")}


async def test_volumes_are_counted_by_plugin_and_operation(mock_clock: MockClock, tmp_path: Path) -> None:
    async with sim_node(tmp_path) as node:
        metrics = metrics_of(node.agent)
        mounts = [{"name": "scratch", "mountPath": "/scratch"}]
        container = {"name": "main", "image": "test:1", "volumeMounts": mounts}
        pod = static_pod("with-volume", containers=[container], volumes=[{"name": "scratch", "emptyDir": {}}])
        node.source.put(pod)
        await node.until_running(pod)
        plugin = "kubernetes.io/empty-dir"
        for state in ("actual_state_of_world", "desired_state_of_world"):
            assert await value(metrics, "volume_manager_total_volumes", plugin_name=plugin, state=state) == 1
        node.source.remove(pod)
        await node.until_gone(pod)
        for operation in ("volume_mount", "volume_unmount"):
            labels = {"volume_plugin": plugin, "operation_name": operation, "status": "success", "migrated": "false"}
            assert await value(metrics, "storage_operation_duration_seconds_count", **labels) == 1, operation
        assert await value(
            metrics, "volume_manager_total_volumes", plugin_name=plugin, state="desired_state_of_world"
        ) in (
            None,
            0,
        )
    async with sim_node(tmp_path, node.sim) as later:
        assert await value(metrics_of(later.agent), "reconstruct_volume_operations_total") == 0


async def test_probes_are_counted_by_container_on_a_page_of_their_own(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        node.sim.program(Health().program(), container="web")
        pod = static_pod("probed", containers=[probed("web", READINESS, periodSeconds=10)])
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(100)
        labels = {"probe_type": "Readiness", "container": "web", "pod": "probed-node", "namespace": "default"}
        total = {**labels, "result": "successful", "pod_uid": pod.metadata.uid}
        count = await value(metrics, "prober_probe_total", "probes", **total)
        assert count is not None
        assert count >= 10
        assert await value(metrics, "prober_probe_duration_seconds_count", "probes", **labels) == count
        assert not any(name.startswith("prober_") for name in await families(metrics))
        assert "process_start_time_seconds" in await families(metrics, "probes")


async def test_health_is_told_and_counted(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        await trio.sleep(10)
        pleg = {"name": "pleg", "type": "healthz"}
        assert await value(metrics, "kubernetes_healthcheck", "slis", **pleg) == 1
        node.sim.restart(downtime=600)
        await trio.sleep(300)
        assert await value(metrics, "kubernetes_healthcheck", "slis", **pleg) == 0
        counts = [
            await value(metrics, "kubernetes_healthchecks_total", "slis", **pleg, status=status)
            for status in ("success", "error")
        ]
        assert counts == [1, 3]


async def test_a_list_of_all_pods_and_its_age_are_told(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        await trio.sleep(30)
        count = await value(metrics, "kubelet_pleg_relist_duration_seconds_count")
        assert count is not None
        assert count == node.agent.pleg_sources.relist.lists
        assert await value(metrics, "kubelet_pleg_relist_interval_seconds_count") == count - 1
        seen = await value(metrics, "kubelet_pleg_last_seen_seconds")
        assert seen is not None
        assert 0 <= node.agent.clock.now().timestamp() - seen <= 60


async def test_a_pod_of_the_api_server_is_measured_from_its_creation(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        metrics = metrics_of(stage.agent)
        stage.sim.images.offer("test/web:1", seconds=7)
        stage.create_pod("web")
        began = trio.current_time()
        await stage.until_ready("web")
        took = trio.current_time() - began
        await trio.sleep(1)
        total = await value(metrics, "kubelet_pod_start_total_duration_seconds_sum")
        promised = await value(metrics, "kubelet_pod_start_sli_duration_seconds_sum")
        assert total is not None
        assert promised is not None
        # Creation times have whole seconds.
        assert total == pytest.approx(took, abs=1.2)
        assert total - promised == pytest.approx(7, abs=0.1)
        first = await value(metrics, "kubelet_first_network_pod_start_sli_duration_seconds")
        assert first == pytest.approx(promised)
        assert stage.agent.cluster is not None
        assert stage.agent.cluster.pod_starts.followed == 0
        count = await value(metrics, "kubelet_pod_status_sync_duration_seconds_count")
        assert count is not None
        assert count >= 1
        host = stage.agent.cluster.client.metrics.host  # type: ignore[attr-defined]
        patched = {"code": "200", "method": "PATCH", "host": host}
        answered = await value(metrics, "rest_client_requests_total", **patched)
        assert answered is not None
        assert answered >= 1


async def test_a_new_node_tells_how_it_came_to_be_and_an_old_one_does_not(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        assert "kubelet_node_startup_registration_duration_seconds" in await families(metrics_of(stage.agent))
        assert "kubelet_node_startup_duration_seconds" in await families(metrics_of(stage.agent))
        await stage.restart_agent()
        await trio.sleep(5)
        assert "kubelet_node_startup_registration_duration_seconds" not in await families(metrics_of(stage.agent))


async def test_the_page_does_not_grow_with_the_pods(autojump_clock: MockClock) -> None:
    few, many = 3, 100
    sizes = []
    for number in (few, many):
        async with sim_node() as node:
            node.sim.images.add("test:1")
            pods = [static_pod(f"pod-{one}") for one in range(number)]
            node.source.put(*pods)
            for pod in pods:
                await node.until_running(pod)
            node.source.remove(pods[0])
            await node.until_gone(pods[0])
            await trio.sleep(60)
            found = await families(metrics_of(node.agent))
            sizes.append(sum(len(family.samples) for family in found.values()))
    # By chance there may be one more kind of event or work.
    assert abs(sizes[0] - sizes[1]) < (many - few) / 2


async def test_pods_that_nobody_knows_and_pods_that_begin_anew_are_counted(autojump_clock: MockClock) -> None:
    pod = static_pod("left", uid="same", terminationGracePeriodSeconds=1)
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
    async with sim_node(sim=node.sim) as later:
        metrics = metrics_of(later.agent)
        await later.until(lambda: later.agent.housekeeping.orphans == 1)
        await later.until_gone(pod)
        assert await value(metrics, "kubelet_orphaned_runtime_pods_total") == 1
        assert await value(metrics, "kubelet_restarted_pods_total", static="true") == 0
        later.source.put(pod)
        await later.until_running(pod)
        later.source.remove(pod)
        await trio.sleep(0.001)
        later.source.put(pod)
        await later.until(lambda: later.agent.housekeeping.restarted[("true",)] == 1)
        assert await value(metrics, "kubelet_restarted_pods_total", static="true") == 1
        await later.until_running(pod)


async def test_a_pod_that_is_refused_is_counted_by_why(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        metrics = metrics_of(node.agent)
        requests = {"resources": {"requests": {"cpu": "100000"}}}  # for a static pod others would have to go
        pod = static_pod("greedy", containers=[{"name": "main", "image": "test:1", **requests}])
        node.source.put(pod)
        await node.until_phase(pod, "Failed")
        assert await value(metrics, "kubelet_admission_rejections_total", reason="UnexpectedAdmissionError") == 1
        assert await value(metrics, "kubelet_active_pods", static="true") == 0
        assert await value(metrics, "kubelet_desired_pods", static="true") == 1


async def test_folders_of_pods_that_are_gone_are_counted_until_they_are_removed(
    mock_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sim_node(tmp_path) as node:
        metrics = metrics_of(node.agent)
        whole = type(node.agent.volumes).remove

        async def fails(self: object, uid: str) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(type(node.agent.volumes), "remove", fails)
        (node.agent.options.root_dir / "pods" / "uid-gone").mkdir(parents=True)
        pod = static_pod("web")
        node.source.put(pod)  # housekeeping looks at the node when something happens
        await node.until_running(pod)
        await trio.sleep(5)
        assert await value(metrics, "kubelet_orphan_pod_cleaned_volumes") == 1
        assert await value(metrics, "kubelet_orphan_pod_cleaned_volumes_errors") == 1
        monkeypatch.setattr(type(node.agent.volumes), "remove", whole)
        await trio.sleep(5)
        assert await value(metrics, "kubelet_orphan_pod_cleaned_volumes") == 0
        assert await value(metrics, "kubelet_orphan_pod_cleaned_volumes_errors") == 0


async def test_plugins_and_certificates_of_pods_are_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        agent = stage.agent
        assert agent.cluster is not None
        plugin = PluginStatus("/reg/a.sock", "CSIPlugin a", wanted=True, registered=False, failures=1, problem="no")
        monkeypatch.setattr(agent.plugins, "statistics", lambda: [plugin])
        monkeypatch.setattr(agent.cluster.certificates, "report", lambda: {("example.com/signer", "fresh"): 2})
        monkeypatch.setattr(agent, "credential_plugins", Plugins((), NoServiceAccounts(), config_hash="sha256:00"))
        metrics = metrics_of(agent)
        wanted = {"socket_path": "/reg/a.sock", "state": "desired_state_of_world"}
        assert await value(metrics, "plugin_manager_total_plugins", **wanted) == 1
        registered = {"socket_path": "/reg/a.sock", "state": "actual_state_of_world"}
        assert await value(metrics, "plugin_manager_total_plugins", **registered) is None
        issued = {"signer_name": "example.com/signer", "state": "fresh"}
        assert await value(metrics, "kubelet_podcertificate_states", **issued) == 2
        assert await value(metrics, "kubelet_credential_provider_config_info", hash="sha256:00") == 1
