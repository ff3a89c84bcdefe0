"""Pods that are resized on a node with the simulated runtime, from sync to sync and from agent to agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.runtime.conftest import Node, make_container, make_pod
from tests.runtime.resize_stage import MIB, Stage, sized
from trikubelet.api import ContainerResizePolicy, Quantity, ResourceRequirements, to_dict
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.settings import (
    CgroupSettings,
)
from trikubelet.runtime.results import SyncAction
from trikubelet.sim.faults import Fault, FaultKind

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod


async def test_a_container_is_resized_while_it_runs(autojump_clock: MockClock, node: Node) -> None:
    small, big = make_pod(sized("main", "100m", "100Mi")), make_pod(sized("main", "200m", "200Mi"))
    stage = Stage.on(node, small)
    await stage.sync(small)
    assert not await stage.is_in_progress(small)
    assert await stage.is_in_progress(big)

    result = await stage.sync(big)
    assert result.error is None
    assert result.resize_problem is None
    # Memory and cpu apart; the pod first: its memory limit, its quota and its shares.
    pod, container = "UpdatePodSandboxResources", "UpdateContainerResources"
    assert stage.told() == [pod, container, pod, pod, container]
    assert stage.limits("main") == (20_000, 200)
    assert stage.cgroups.settings.memory == 200 * MIB
    assert not await stage.is_in_progress(big)
    assert (await stage.sync(big)).results == []

    assert (await stage.sync(small)).error is None
    assert stage.told() == [container, pod, container, pod, pod]
    assert stage.limits("main") == (10_000, 100)
    assert (stage.cgroups.settings.memory, stage.cgroups.settings.cpu_quota) == (100 * MIB, 10_000)
    assert stage.cgroups.written[-2:] == [
        CgroupSettings(cpu_shares=102),
        CgroupSettings(cpu_quota=10_000, cpu_period=100_000),
    ]
    assert len(node.sim.started("main")) == 1


async def test_what_does_not_change_is_told_as_it_was_before(autojump_clock: MockClock, node: Node) -> None:
    before = make_pod(sized("a", "100m", "100Mi"), sized("b", "200m", "200Mi"))
    after = make_pod(sized("a", "150m", "150Mi"), sized("b", "100m", "250Mi"))
    stage = Stage.on(node, before)
    await stage.sync(before)
    node.sim.faults.add_next("UpdateContainerResources", Fault(FaultKind.HANG, seconds=0), times=2)
    node.sim.faults.fail_next("UpdateContainerResources", message="too late")
    result = await stage.sync(after)
    assert result.resize_problem == "rpc error: code = Unknown desc = too late"
    # Memory is through, of cpu the one that shrinks was the first to be told.
    assert (stage.limits("a"), stage.limits("b")) == ((10_000, 150), (20_000, 250))
    told = stage.manager.actuated("uid-web")
    assert told is not None
    assert [told.containers[name].limits["memory"] for name in "ab"] == [Quantity("150Mi"), Quantity("250Mi")]
    assert [told.containers[name].limits["cpu"] for name in "ab"] == [Quantity("100m"), Quantity("200m")]
    assert await stage.is_in_progress(after)
    assert (await stage.sync(after)).error is None
    assert (stage.limits("a"), stage.limits("b")) == ((15_000, 150), (10_000, 250))


async def test_a_container_is_restarted_where_its_policy_says_so(autojump_clock: MockClock, node: Node) -> None:
    policy = (ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer"),)
    small = make_pod(sized("main", "100m", "100Mi", resize_policy=policy), sized("other", "100m", "100Mi"))
    big = make_pod(sized("main", "100m", "200Mi", resize_policy=policy), sized("other", "100m", "100Mi"))
    stage = Stage.on(node, small)
    await stage.sync(small)
    assert (await stage.sync(big)).error is None
    assert stage.told() == ["StopContainer", "UpdatePodSandboxResources", "StartContainer"]
    assert stage.limits("main") == (10_000, 200)
    assert stage.cgroups.settings.memory == 300 * MIB
    assert (len(node.sim.started("main")), len(node.sim.started("other"))) == (2, 1)
    assert ("Killing", "Container main resize requires restart") in node.said(big)
    assert (await stage.sync(big)).results == []


async def test_a_container_starts_again_once_its_pod_has_room_for_it(autojump_clock: MockClock, node: Node) -> None:
    """Its cpu grows while its memory shrinks, so what is in use is measured: not of what was ended for the resize."""
    policy = (ContainerResizePolicy(resource_name="cpu", restart_policy="RestartContainer"),)
    before = make_pod(sized("main", "20m", "200Mi", resize_policy=policy), sized("other", "20m", "100Mi"))
    after = make_pod(sized("main", "35m", "100Mi", resize_policy=policy), sized("other", "20m", "100Mi"))
    stage = Stage.on(node, before)
    await stage.sync(before)
    stage.running("main").memory_used = 150 * MIB
    assert (await stage.sync(after)).resize_problem is None
    # Memory, then the quota and the shares.
    assert stage.told() == ["StopContainer", *["UpdatePodSandboxResources"] * 3, "StartContainer"]
    assert stage.cgroups.settings.cpu_quota == 5500
    assert stage.cgroups.settings.memory == 200 * MIB
    status = (await node.status(after)).find_container("main")
    assert status is not None
    assert status.restart_count == 1
    assert (await stage.sync(after)).results == []


async def test_a_sidecar_starts_again_once_its_pod_has_room_for_it(autojump_clock: MockClock, node: Node) -> None:
    policy = (ContainerResizePolicy(resource_name="cpu", restart_policy="RestartContainer"),)

    def pod(cpu: str, memory: str) -> Pod:
        sidecar = attrs.evolve(sized("sidecar", cpu, memory, resize_policy=policy), restart_policy="Always")
        return make_pod(sized("main", "20m", "100Mi"), init_containers=(sidecar,))

    before, after = pod("20m", "200Mi"), pod("35m", "100Mi")
    stage = Stage.on(node, before)
    for _ in range(3):
        await stage.sync(before)
    stage.running("main")  # both are
    assert (await stage.sync(after)).resize_problem is None
    assert stage.told() == ["StopContainer", *["UpdatePodSandboxResources"] * 3, "StartContainer"]
    assert stage.cgroups.settings.cpu_quota == 5500
    status = (await node.status(after)).find_container("sidecar")
    assert status is not None
    assert status.restart_count == 1
    assert (await stage.sync(after)).results == []


async def test_a_pod_that_loses_its_own_resources_is_resized_once(autojump_clock: MockClock, node: Node) -> None:
    whole = ResourceRequirements(limits={"cpu": Quantity("1"), "memory": Quantity("300Mi")})
    container = sized("main", "100m", "100Mi")
    before, after = make_pod(container, resources=whole), make_pod(container)
    stage = Stage.on(node, before)
    await stage.sync(before)
    assert (await stage.sync(after)).error is None
    assert stage.cgroups.settings.memory == 100 * MIB
    assert (await stage.sync(after)).results == []


async def test_a_pod_may_lose_its_own_limits_while_it_initializes(autojump_clock: MockClock, node: Node) -> None:
    whole = ResourceRequirements(limits={"cpu": Quantity("1"), "memory": Quantity("300Mi")})
    asked = ResourceRequirements(requests={"memory": Quantity("100Mi")})
    main, init = make_container("main", resources=asked), (make_container("init", resources=asked),)
    before, after = make_pod(main, init_containers=init, resources=whole), make_pod(main, init_containers=init)
    stage = Stage.on(node, before)
    await stage.sync(before)
    assert (await stage.sync(after)).error is None
    assert stage.told().count("UpdateContainerResources") == 2
    assert (await stage.sync(after)).results == []
    node.sim.end_container(stage.running("init"), 0)
    assert (await stage.sync(after)).error is None
    assert stage.limits("main") == (0, 0)
    assert (await stage.sync(after)).results == []
    assert not await stage.is_in_progress(after)


async def test_a_group_that_could_not_follow_a_restart_follows_later(autojump_clock: MockClock, node: Node) -> None:
    small, big = make_pod(sized("main", "100m", "100Mi")), make_pod(sized("main", "100m", "200Mi"))
    stage = Stage.on(node, small)
    await stage.sync(small)
    node.sim.end_container(stage.running("main"), 1)
    stage.cgroups.refuses = CgroupError("pod", "not now")
    result = await stage.sync(big)
    assert result.resize_problem == "cgroup pod: not now"
    assert stage.limits("main") == (10_000, 200)  # it runs all the same
    assert await stage.is_in_progress(big)
    stage.cgroups.refuses = None
    assert (await stage.sync(big)).error is None
    assert stage.cgroups.settings.memory == 200 * MIB
    assert not await stage.is_in_progress(big)


async def test_a_limit_at_what_is_in_use_is_refused_at_once(autojump_clock: MockClock, node: Node) -> None:
    small, big = make_pod(sized("main", "100m", "100Mi")), make_pod(sized("main", "200m", "200Mi"))
    stage = Stage.on(node, big)
    await stage.sync(big)
    stage.running("main").memory_used = stage.cgroups.used = 150 * MIB
    result = await stage.sync(small)
    assert result.resize_problem == (
        f"cannot decrease memory limits: [attempting to set pod memory limit ({100 * MIB}) below current usage "
        f'({150 * MIB}), attempting to set container "main" memory limit ({100 * MIB}) below current usage '
        f"({150 * MIB})]"
    )
    assert stage.told() == []
    assert stage.cgroups.written == []
    stage.running("main").memory_used = stage.cgroups.used = 50 * MIB
    assert (await stage.sync(small)).error is None
    assert stage.limits("main") == (10_000, 100)


async def test_a_usage_that_cannot_be_measured_refuses_a_decrease(autojump_clock: MockClock, node: Node) -> None:
    small, big = make_pod(sized("main", "100m", "100Mi")), make_pod(sized("main", "100m", "200Mi"))
    stage = Stage.on(node, big)
    await stage.sync(big)
    node.sim.faults.fail_next("ContainerStats")
    assert (await stage.sync(small)).resize_problem == ('unable to read memory usage for pod "web_default(uid-web)"')


@pytest.mark.parametrize("call", ["UpdatePodSandboxResources", "UpdateContainerResources"])
@pytest.mark.parametrize("step", [1, 2])
async def test_an_agent_that_was_killed_in_the_middle_is_followed_by_one_that_finishes(
    autojump_clock: MockClock, node: Node, call: str, step: int
) -> None:
    small, big = make_pod(sized("main", "100m", "100Mi")), make_pod(sized("main", "200m", "200Mi"))
    stage = Stage.on(node, small)
    await stage.sync(small)
    node.sim.faults.add_next(call, Fault(FaultKind.HANG, seconds=0), times=step - 1)
    node.sim.faults.hang_next(call)
    with trio.move_on_after(5) as scope:
        await stage.sync(big)
    assert scope.cancelled_caught
    again = stage.killed()
    assert await again.is_in_progress(big)
    assert (await again.sync(big)).error is None
    assert stage.limits("main") == (20_000, 200)
    settings = again.cgroups.settings
    assert (settings.memory, settings.cpu_quota, settings.cpu_shares) == (200 * MIB, 20_000, 204)
    assert not await again.is_in_progress(big)
    assert len(node.sim.started("main")) == 1


async def test_a_record_that_would_be_wrong_is_replaced_on_the_disk_before_a_container_starts(
    autojump_clock: MockClock, node: Node
) -> None:
    small, big = make_pod(sized("main", "100m", "100Mi")), make_pod(sized("main", "100m", "200Mi"))
    stage = Stage.on(node, small)
    await stage.sync(small)
    assert stage.on_disk() == {}  # nobody waited for that
    node.sim.end_container(stage.running("main"), 1)
    node.sim.faults.hang_next("StartContainer")
    with trio.move_on_after(5):
        await stage.sync(big)
    assert stage.on_disk() == {"main": to_dict(big.spec.containers[0].resources)}


async def test_records_are_written_in_the_background(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(sized("main", "100m", "100Mi"))
    stage = Stage.on(node, pod)
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.manager.run)
        await stage.sync(pod)
        await trio.sleep(1)
        assert stage.on_disk() == {"main": to_dict(pod.spec.containers[0].resources)}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("says", [True, False])
async def test_of_a_pod_without_a_record_the_runtime_says_what_it_has(
    autojump_clock: MockClock, node: Node, *, says: bool
) -> None:
    """Its agent was killed before the record was written; or it kept none."""
    node.sim.abilities.container_resources = says
    small = make_pod(sized("main", "100m", "100Mi"), sized("other", "5m", "100Mi"))
    big = make_pod(sized("main", "200m", "100Mi"), sized("other", "5m", "100Mi"))
    await node.sync(small)
    stage = Stage.on(node, small)
    assert (await stage.sync(small)).results == []
    assert not await stage.is_in_progress(small)
    # That it was resized meanwhile is seen, where the runtime tells.
    assert await stage.is_in_progress(big) is says
    assert (await stage.sync(big)).error is None
    assert stage.limits("main") == ((20_000, 100) if says else (10_000, 100))
    # Once one of its containers starts, there is a record.
    node.sim.end_container(stage.running("other"), 1)
    await stage.sync(big)
    assert stage.told() == ["StartContainer"]
    bigger = make_pod(sized("main", "300m", "100Mi"), sized("other", "5m", "100Mi"))
    assert (await stage.sync(bigger)).error is None
    assert stage.limits("main") == (30_000, 100)
    assert len(node.sim.started("main")) == 1


async def test_a_record_goes_with_its_pod(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(sized("main", "100m", "100Mi"))
    stage = Stage.on(node, pod)
    await stage.sync(pod)
    again = stage.killed()
    await again.manager.garbage_collect(all_sources_ready=True, is_pod_removed=lambda uid: uid == "uid-web")
    assert again.manager.actuated("uid-web") is None
    await stage.manager.release("uid-web")
    assert stage.manager.actuated("uid-web") is None


async def test_a_resize_comes_before_starts_and_does_not_hold_them_up(autojump_clock: MockClock, node: Node) -> None:
    before = make_pod(sized("a", "100m", "100Mi"), sized("b", "100m", "100Mi"))
    after = make_pod(sized("a", "200m", "100Mi"), sized("b", "100m", "100Mi"))
    stage = Stage.on(node, before)
    await stage.sync(before)
    node.sim.end_container(stage.running("b"), 1)
    node.sim.faults.fail_next("UpdateContainerResources", message="too small")
    result = await stage.sync(after)
    assert [(one.action, one.target, one.reason) for one in result.results] == [
        (SyncAction.RESIZE_POD, "web_default(uid-web)", "ResizePodInPlaceError"),
        (SyncAction.START_CONTAINER, "b", ""),
    ]
