"""Pods whose resources are changed while they run, from the API server's `resize` to what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from tests.apiserver.patches import STRATEGIC_PATCH
from tests.scenarios.stage import Stage, cluster_stage, machine_view
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.sim import Program

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.documents import Document
    from trikubelet.rpc.cri import v1
    from trikubelet.sim.machine import Container

MI: Final = 2**20
GI: Final = 2**30
TWO_CPUS: Final = machine_view(cpus=2, memory=4 * GI, storage=10 * GI, kernel_version="6.18.0")
SOON: Final = 2.0
"""Seconds in which a resize is granted, or refused."""


def container(cpu: str, memory: str = "") -> Document:
    resources: Document = {"requests": {"cpu": cpu}}
    if memory:
        resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    return {"name": "main", "image": "test:1", "resources": resources}


async def add_pod(
    stage: Stage, name: str, cpu: str, memory: str = "", container_fields: Document | None = None, **spec: Any
) -> None:
    stage.sim.program(Program.runs_forever(), image="test:1")
    stage.create_pod(name, containers=[container(cpu, memory) | (container_fields or {})], **spec)
    await stage.until_ready(name)


def resize(stage: Stage, name: str, cpu: str, memory: str = "") -> int:
    """Ask for other resources; the generation of the pod that asks for them."""
    body = {"spec": {"containers": [container(cpu, memory)]}}
    patched = stage.admin.patch("pods", name, body=body, content_type=STRATEGIC_PATCH, subresource="resize")
    generation: int = patched["metadata"]["generation"]
    return generation


def told(stage: Stage, name: str) -> v1.LinuxContainerResources:
    """What its container was updated to."""
    resources = container_of(stage, name).resources
    assert resources is not None
    return resources.linux


def container_of(stage: Stage, name: str) -> Container:
    """That runs."""
    (running,) = stage.sim.running_containers(stage.pod(name)["metadata"]["uid"])
    return running


def conditions(stage: Stage, name: str) -> dict[str, Document]:
    """Those about a resize, by type."""
    listed = stage.status(name).get("conditions", [])
    return {one["type"].removeprefix("PodResize"): one for one in listed if one["type"].startswith("PodResize")}


def reasons(stage: Stage, name: str) -> list[str]:
    return [reason for _, reason, _ in stage.events(name) if reason.startswith(("Resize", "Failed"))]


async def test_a_resize_waits_for_room_and_is_granted_when_another_pod_has_ended(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1")
        await add_pod(stage, "second", "500m")
        generation = resize(stage, "first", "1800m")
        await stage.until(lambda: "Pending" in conditions(stage, "first"), SOON)
        pending = conditions(stage, "first")["Pending"]
        assert (pending["status"], pending["reason"]) == ("True", "Deferred")
        assert pending["observedGeneration"] == generation
        assert pending["message"] == (
            "Node didn't have enough resource: cpu, requested: 1800, used: 500, capacity: 2000"
        )
        # Who arrives meanwhile is judged beside what the pod has, not beside what it asks for.
        await add_pod(stage, "third", "500m")
        assert reasons(stage, "first") == ["ResizeDeferred"]
        stage.delete_pod("third", grace=1)
        stage.delete_pod("second", grace=1)
        await stage.until(lambda: not conditions(stage, "first"), 10)
        assert reasons(stage, "first") == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]
        assert stage.agent.allocation.counts.deferred_accepted.total() == 1
        assert told(stage, "first").cpu_shares == 1843


async def test_a_resize_that_the_node_can_never_grant_is_infeasible(autojump_clock: MockClock) -> None:
    gates = {"InPlacePodLevelResourcesVerticalScaling": False}
    async with cluster_stage(machine=TWO_CPUS, configuration=KubeletConfiguration(feature_gates=gates)) as stage:
        await add_pod(stage, "first", "1", resources={"requests": {"cpu": "1"}})
        more = {"spec": {"resources": {"requests": {"cpu": "1500m"}}}}
        stage.admin.patch("pods", "first", body=more, subresource="resize")
        await stage.until(lambda: "Pending" in conditions(stage, "first"), SOON)
        pending = conditions(stage, "first")["Pending"]
        assert (pending["reason"], pending["observedGeneration"]) == ("Infeasible", 2)
        assert reasons(stage, "first") == ["FailedNodeDeclaredFeaturesCheck", "ResizeInfeasible"]
        assert stage.agent.allocation.counts.infeasible == {("plr_feature_gate_off",): 1}
        # It is taken back.
        as_before = {"spec": {"resources": {"requests": {"cpu": "1"}}}}
        stage.admin.patch("pods", "first", body=as_before, subresource="resize")
        await stage.until(lambda: not conditions(stage, "first"), SOON)


async def test_what_is_asked_for_is_counted(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1")
        resize(stage, "first", "3")
        await stage.until(lambda: "Pending" in conditions(stage, "first"), SOON)
        resize(stage, "first", "1")
        await stage.until(lambda: not conditions(stage, "first"), SOON)
        assert stage.agent.allocation.counts.requested == {
            ("cpu", "requests", "increase"): 1,
            ("cpu", "requests", "decrease"): 1,
        }


async def test_what_pods_have_and_what_they_wait_for_survives_the_agent(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1")
        await add_pod(stage, "second", "500m")
        resize(stage, "first", "1800m")
        await stage.until(lambda: "Pending" in conditions(stage, "first"), SOON)
        since = conditions(stage, "first")["Pending"]["lastTransitionTime"]
        await stage.kill_agent()
        await trio.sleep(30)
        await stage.start_agent()
        await stage.until_ready("first", "second")
        await trio.sleep(SOON)
        # By its spec it would not fit beside the other one, and would be refused.
        assert stage.phase("first") == "Running"
        pending = conditions(stage, "first")["Pending"]
        assert (pending["reason"], pending["lastTransitionTime"]) == ("Deferred", since)
        stage.delete_pod("second", grace=1)
        await stage.until(lambda: not conditions(stage, "first"), 10)


async def test_a_resize_is_done_in_a_moment_without_a_restart(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1", memory="256Mi")
        before = container_of(stage, "first")
        resize(stage, "first", "1500m", memory="512Mi")
        assert await stage.until(lambda: "ResizeCompleted" in reasons(stage, "first"), SOON) < 0.5
        assert reasons(stage, "first") == ["ResizeStarted", "ResizeCompleted"]
        await stage.until(lambda: not conditions(stage, "first"), SOON)
        after = container_of(stage, "first")
        assert after is before
        assert told(stage, "first").memory_limit_in_bytes == 512 * MI
        # What is in use is not taken away.
        after.memory_used = 300 * MI
        resize(stage, "first", "1500m", memory="200Mi")
        await stage.until(lambda: conditions(stage, "first").get("InProgress", {}).get("reason") == "Error", SOON)
        problem = conditions(stage, "first")["InProgress"]["message"]
        assert f"memory limit ({200 * MI}) below current usage ({300 * MI})" in problem
        after.memory_used = 100 * MI
        await stage.until(lambda: not conditions(stage, "first"), 120)
        assert told(stage, "first").memory_limit_in_bytes == 200 * MI
        assert stage.status("first")["containerStatuses"][0]["restartCount"] == 0


async def test_a_container_that_wants_so_is_restarted_with_what_it_gets(autojump_clock: MockClock) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1", memory="256Mi", container_fields={"resizePolicy": policy})
        before = container_of(stage, "first")
        resize(stage, "first", "1500m", memory="256Mi")
        await stage.until(lambda: "ResizeCompleted" in reasons(stage, "first"), SOON)
        assert container_of(stage, "first") is before
        resize(stage, "first", "1500m", memory="512Mi")
        await stage.until(lambda: reasons(stage, "first").count("ResizeCompleted") == 2, 60)
        after = container_of(stage, "first")
        assert after is not before
        assert after.config.linux.resources.memory_limit_in_bytes == 512 * MI
        await stage.until(lambda: stage.status("first")["containerStatuses"][0]["restartCount"] == 1, SOON)
        await stage.until(lambda: not conditions(stage, "first"), SOON)


async def test_an_agent_killed_in_the_middle_of_a_resize_leaves_it_to_the_next_one(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1", memory="256Mi")
        stage.sim.faults.hang_next("UpdateContainerResources")
        resize(stage, "first", "1500m", memory="512Mi")
        await stage.until(lambda: "InProgress" in conditions(stage, "first"), SOON)
        await trio.sleep(1)
        await stage.kill_agent()
        before = container_of(stage, "first")
        assert before.resources is None
        await stage.start_agent()
        await stage.until(lambda: not conditions(stage, "first"), 30)
        assert container_of(stage, "first") is before
        assert told(stage, "first").memory_limit_in_bytes == 512 * MI
        assert reasons(stage, "first") == ["ResizeStarted", "ResizeCompleted"]


async def test_pods_that_are_gone_leave_no_allocation(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=TWO_CPUS) as stage:
        await add_pod(stage, "first", "1")
        await add_pod(stage, "second", "500m")
        await trio.sleep(1)
        for name in ("first", "second"):
            assert all(str(stage.pod(name)["metadata"]["uid"]) in kept for kept in stage.sim.checkpoints.values())
        stage.delete_pod("first", grace=1)
        await stage.until_gone("first")
        await stage.kill_agent()
        stage.delete_pod("second", grace=0)
        await stage.start_agent()
        await add_pod(stage, "third", "1")
        await trio.sleep(90)
        await add_pod(stage, "fourth", "100m")
        await trio.sleep(1)
        assert [kept.count("ContainerResources") for kept in stage.sim.checkpoints.values()] == [2, 2]
