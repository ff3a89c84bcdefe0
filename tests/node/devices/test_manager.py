"""The device manager at work: the kubelet's tables of `manager_test.go` as sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError, Status

from tests.device_plugin import Brick, ToyPlugin
from tests.node.devices.situations import R1, R2, container, make_pod
from tests.node.devices.stage import Stage, device_stage
from trikubelet.admission.types import AllocationError
from trikubelet.api import Quantity, ResourceHealth, ResourceStatus
from trikubelet.node.devices.book import STOP_GRACE
from trikubelet.node.devices.model import DeviceResources
from trikubelet.node.podresources.providers import Device, Providers
from trikubelet.rpc.device_plugins import v1beta1

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod


def kubelets_response(devices: Sequence[str]) -> v1beta1.ContainerAllocateResponse:
    """As the kubelet's tests have it."""
    response = v1beta1.ContainerAllocateResponse()
    if "dev1" in devices:
        response.devices += [
            v1beta1.DeviceSpec(container_path=path, host_path=path, permissions="mrw")
            for path in ("/dev/aaa", "/dev/bbb")
        ]
        response.mounts += [
            v1beta1.Mount(container_path="/container_dir1/file1", host_path="host_dir1/file1", read_only=True)
        ]
    if "dev2" in devices:
        response.devices += [v1beta1.DeviceSpec(container_path="/dev/ccc", host_path="/dev/ccc", permissions="mrw")]
        response.mounts += [
            v1beta1.Mount(container_path="/container_dir1/file2", host_path="host_dir1/file2", read_only=True)
        ]
        response.envs = {"key1": "val1"}
    return response


async def kubelets_plugins(stage: Stage, *, pre_start: bool = False) -> tuple[ToyPlugin, ToyPlugin]:
    one = ToyPlugin(R1, ["dev1", "dev2"], response=kubelets_response, pre_start=pre_start)
    two = ToyPlugin(R2, ["dev3", "dev4"])
    await stage.register(one, "one.sock")
    await stage.register(two, "two.sock")
    return one, two


async def test_pods_get_devices_until_there_are_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestPodContainerDeviceAllocation`"""
    async with device_stage(tmp_path) as stage:
        await kubelets_plugins(stage)
        both, first, second = (
            make_pod("both", container(r1=2, cpu=2, r2=1)),
            make_pod("first", container(r1=1)),
            make_pod("second", container(r2=1)),
        )
        await stage.admit(both)
        extras = await stage.manager.extras(both, both.spec.containers[0])
        assert (len(extras.devices), len(extras.mounts), len(extras.environment)) == (4, 2, 2)

        problem = f"requested number of devices unavailable for {R1}. Requested: 1, Available: 0"
        assert stage.manager.problem(first) == problem
        with pytest.raises(AllocationError) as error:
            await stage.admit(first)
        assert str(error.value) == problem
        assert stage.has("first") == []

        assert stage.manager.problem(second) is None
        await stage.admit(second)
        assert stage.has("second") == ["dev4"]
        assert [(each.resource, each.taken) for each in stage.manager.statistics()] == [(R1, 2), (R2, 2)]


async def test_a_pod_gets_all_or_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        one, two = await kubelets_plugins(stage)
        two.failing["Allocate"] = GRPCError(Status.INTERNAL, "no more bricks")
        with pytest.raises(AllocationError, match=r"^rpc error: code = Internal desc = no more bricks$"):
            await stage.admit(make_pod("p", container("main", r1=1), container("other", r2=1)))
        assert one.asked("Allocate") == [("dev1",)]
        assert stage.has("p") == []
        await stage.admit(make_pod("q", container(r1=2)))
        assert stage.has("q") == ["dev1", "dev2"]


async def test_devices_of_pods_that_have_ended_are_free(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestGetDeviceRunContainerOptions`"""
    async with device_stage(tmp_path) as stage:
        await kubelets_plugins(stage)
        pod = make_pod("p", container(r1=2, r2=1))
        await stage.admit(pod)
        stage.active.clear()
        stage.sources_ready = False
        stage.manager.forget_ended()
        assert stage.has("p"), "not all pods are known yet"
        stage.sources_ready = True
        stage.manager.forget_ended()
        assert stage.has("p") == []
        assert (await stage.manager.extras(pod, pod.spec.containers[0])).devices == []
        assert stage.manager.problem(make_pod("q", container(r1=2))) is None


async def test_whoever_asks_for_devices_frees_those_of_ended_pods(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await kubelets_plugins(stage)
        await stage.admit(make_pod("p", container(r1=2)))
        stage.active.remove("p")
        await stage.admit(make_pod("q", container(r1=2)))
        assert stage.has("p") == []


async def test_a_pod_that_comes_again_keeps_its_devices(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        one, _ = await kubelets_plugins(stage)
        pod = make_pod("p", container(r1=1))
        assert stage.manager.lacking(pod)
        await stage.admit(pod)
        assert not stage.manager.lacking(pod)
        await stage.admit(pod)
        stage.active.clear()
        await stage.manager.allocate(pod)
        assert one.asked("Allocate") == [("dev1",)], "also when it does not count as active yet"
        assert stage.manager.problem(make_pod("p", container(r1=2))) == (
            f'pod "p" container "main" changed request for resource "{R1}" from 1 to 2'
        )


async def test_pods_without_devices_have_nothing_to_do_here(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plain = make_pod("p", container(cpu="1"))
        allocatable = {"cpu": Quantity(1)}
        assert not stage.manager.lacking(plain)
        assert stage.manager.problem(plain) is None
        assert stage.manager.allocatable_for(plain, allocatable) is allocatable
        await stage.admit(plain)
        extras = await stage.manager.extras(plain, plain.spec.containers[0])
        assert extras is await stage.manager.extras(plain, plain.spec.containers[0])
        assert stage.manager.health("p") is stage.manager.health("q")
        assert not (stage.folder / "device_grants_state").exists()


async def test_resources_of_a_claim_are_not_asked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestAdmitPodWithDRAResources`"""
    async with device_stage(tmp_path) as stage:
        one, _ = await kubelets_plugins(stage)
        pod = make_pod("p", container(r1=5), claimed=[R1])
        assert stage.manager.problem(pod) is None
        await stage.admit(pod)
        assert one.asked("Allocate") == []


async def test_devices_are_prepared_before_each_start(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestDevicePreStartContainer`"""
    async with device_stage(tmp_path) as stage:
        one, _ = await kubelets_plugins(stage, pre_start=True)
        pod = make_pod("p", container(r1=2))
        await stage.admit(pod)
        for _ in range(2):
            extras = await stage.manager.extras(pod, pod.spec.containers[0])
            assert (len(extras.devices), len(extras.mounts), len(extras.environment)) == (3, 2, 1)
        assert one.asked("PreStartContainer") == [("dev1", "dev2")] * 2
        nothing = make_pod("q", container(r1=0))
        await stage.admit(nothing)
        await stage.manager.extras(nothing, nothing.spec.containers[0])
        assert len(one.asked("PreStartContainer")) == 2


async def test_a_container_does_not_start_without_its_preparation(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        one, _ = await kubelets_plugins(stage, pre_start=True)
        pod = make_pod("p", container(r1=1))
        await stage.admit(pod)
        one.failing["PreStartContainer"] = GRPCError(Status.ABORTED, "it is stuck")
        with pytest.raises(AllocationError) as error:
            await stage.manager.extras(pod, pod.spec.containers[0])
        assert str(error.value) == (
            "device plugin PreStartContainer rpc failed with err: rpc error: code = Aborted desc = it is stuck"
        )
        del one.failing["PreStartContainer"]
        await stage.manager.extras(pod, pod.spec.containers[0])


async def test_devices_that_nobody_remembers_are_given_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        one, _ = await kubelets_plugins(stage, pre_start=True)
        pod = make_pod("p", container(r1=1))
        stage.active.add("p")
        extras = await stage.manager.extras(pod, pod.spec.containers[0])
        assert len(extras.devices) == 2
        assert one.asked("Allocate") == one.asked("PreStartContainer") == [("dev1",)]
        other = make_pod("q", container(r1=1))
        with pytest.raises(
            AllocationError, match="no devices found allocated in local cache for pod q, container main"
        ):
            await stage.manager.extras(other, other.spec.containers[0])


async def test_a_plugin_says_which_devices_go_well_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        asked = []

        def last(available: Sequence[str], included: Sequence[str], size: int) -> Sequence[str]:
            asked.append((tuple(available), tuple(included), size))
            return [*included, *reversed([one for one in available if one not in included])][:size]

        await stage.register(ToyPlugin(R1, ["a", "b", "c", "d"], preferring=last))
        pod = make_pod("p", container("main", r1=2), init=[container("init", r1=1)])
        await stage.admit(pod)
        assert stage.has("p", "init") == ["d"]
        assert stage.has("p") == ["c", "d"]
        assert asked == [(("a", "b", "c", "d"), (), 1), (("a", "b", "c", "d"), ("d",), 2)]


async def test_nobody_asks_for_an_opinion_when_there_is_no_choice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"], preferring=lambda available, included, size: ["a"])
        await stage.register(plugin)
        await stage.admit(make_pod("p", container("main", r1=1), init=[container("init", r1=1)]))
        assert plugin.asked("GetPreferredAllocation") == [("a",)]


async def test_other_pods_may_take_what_a_plugin_thinks_about(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestDevicesToAllocateConflictWithUpdateAllocatedDevices`, and what two at a time can do to each other."""
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b"], preferring=lambda available, included, size: ["a"])
        plugin.hanging.add("GetPreferredAllocation")
        await stage.register(plugin)
        await stage.admit(make_pod("ended", container(r2=1)))
        stage.active.clear()
        async with trio.open_nursery() as nursery:
            first = trio.Event()
            nursery.start_soon(_admit_and_say, stage, make_pod("slow", container(r1=1)), first)
            await plugin.hung.wait()
            stage.active.add("slow")
            stage.manager.forget_ended()
            assert not first.is_set()
            stage.manager.forget("slow")
            await first.wait()
        plugin.hanging.clear()
        await stage.admit(make_pod("p", container(r1=1)))
        assert stage.has("p") == ["a"]
        await stage.admit(make_pod("q", container(r1=1)))
        assert stage.has("q") == ["b"], "it would have liked the other one"


async def _admit_and_say(stage: Stage, pod: Pod, done: trio.Event) -> None:
    with pytest.raises(AllocationError, match=r'^pod "slow" is not wanted any more$'):
        await stage.admit(pod)
    done.set()


async def test_a_preferred_device_may_be_taken_by_the_time_it_is_preferred(tmp_path: Path) -> None:
    """Not on a mock clock: that does not wait for the disk."""
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b", "c"], preferring=lambda available, included, size: ["a"])
        asked, go_on = trio.Event(), trio.Event()
        plain = plugin.get_preferred_allocation

        async def slow(
            preferred_allocation_request: v1beta1.PreferredAllocationRequest,
        ) -> v1beta1.PreferredAllocationResponse:
            if not asked.is_set():
                asked.set()
                await go_on.wait()
            return await plain(preferred_allocation_request)

        plugin.get_preferred_allocation = slow  # type: ignore[method-assign]
        await stage.register(plugin)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.admit, make_pod("slow", container(r1=2)))
            await asked.wait()
            await stage.admit(make_pod("fast", container(r1=1)))
            go_on.set()
        assert (stage.has("fast"), stage.has("slow")) == (["a"], ["b", "c"])


async def test_pods_that_come_together_get_different_devices(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, ["a", "b", "c"]))
        async with trio.open_nursery() as nursery:
            for uid in ("p", "q", "r"):
                nursery.start_soon(stage.admit, make_pod(uid, container(r1=1)))
        assert sorted(stage.has("p") + stage.has("q") + stage.has("r")) == ["a", "b", "c"]


async def test_a_node_has_at_least_what_is_given_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestUpdatePluginResources`"""
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, ["dev1", "dev2"]), "one.sock")
        await stage.register(ToyPlugin(R2, ["dev1", "dev2"]), "two.sock")
        pod = make_pod("p", container(r1=1, r2=1))
        told = {R2: Quantity(2), "cpu": Quantity(4)}
        expected = {R1: Quantity(1), R2: Quantity(2), "cpu": Quantity(4)}
        assert stage.manager.allocatable_for(pod, told) == expected
        await stage.admit(pod)
        assert stage.manager.allocatable_for(pod, told) == expected
        assert stage.manager.allocatable_for(make_pod("q", container(cpu=1)), told) == told
        assert stage.manager.allocatable_for(make_pod("q", container(r1=1)), told)[R1] == Quantity(2)
        assert stage.manager.allocatable_for(make_pod("q", container(r1=2)), told) == told, "it is refused anyway"


async def test_the_node_hears_of_capacity(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestUpdateCapacityAllocatable`"""
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b", Brick("c", healthy=False)])
        await stage.register(plugin)
        assert stage.amounts(R1) == (3, 2)
        assert stage.changes == 1
        same = stage.manager.resources()
        plugin.tell(["a", "b", Brick("c", healthy=False)])
        await trio.sleep(1)
        assert stage.changes == 1
        assert stage.manager.resources() is same
        lists: list[tuple[list[str | Brick], tuple[int, int]]] = [
            (["a", "b"], (2, 2)),
            (["a", Brick("b", healthy=False), Brick("c", healthy=False)], (3, 1)),
            ([Brick("b", healthy=False), Brick("c", healthy=False)], (2, 0)),
        ]
        for devices, amounts in lists:
            plugin.tell(devices)
            await trio.sleep(1)
            assert stage.amounts(R1) == amounts
        assert stage.changes == 4


async def test_pods_hear_of_the_health_of_their_devices(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestUpdateAllocatedResourcesStatus`, `TestFeatureGateResourceHealthStatus`"""
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b", "c"])
        await stage.register(plugin)
        await stage.admit(make_pod("p", container("main", r1=2)))
        await stage.admit(make_pod("q", container("main", r1=1)))
        plugin.tell(["a", Brick("b", healthy=False), "c"])
        await trio.sleep(1)
        assert stage.ill == [{"p"}]
        assert stage.manager.health("p")("main") == (
            ResourceStatus(
                name=R1,
                resources=(
                    ResourceHealth(resource_id="a", health="Healthy"),
                    ResourceHealth(resource_id="b", health="Unhealthy"),
                ),
            ),
        )
        assert stage.manager.health("p")("other") == ()
        assert stage.manager.health("q")("main")[0].resources[0].health == "Healthy"
        plugin.tell(["a", "b", "c", "d"])
        await trio.sleep(1)
        assert stage.ill == [{"p"}, {"p"}]


async def test_monitors_hear_who_has_what(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestGetAllocatableDevicesMultipleResources`, `…HealthTransition`, `TestGetContainerDevices`"""
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, [Brick("a", numa_nodes=(0, 1)), "b", Brick("c", healthy=False)])
        await stage.register(plugin, "one.sock")
        await stage.register(ToyPlugin(R2, ["x"]), "two.sock")
        providers = Providers(devices=stage.manager)
        assert list(providers.devices.allocatable_devices()) == [
            Device(R1, "a", (0, 1)),
            Device(R1, "b"),
            Device(R2, "x"),
        ]
        await stage.admit(make_pod("p", container(r1=1)))
        assert list(providers.devices.devices("p", "main")) == [Device(R1, "a", (0, 1))]
        assert list(providers.devices.devices("p", "other")) == []
        plugin.tell(["a", "b", "c"])
        await trio.sleep(1)
        assert [device.id for device in providers.devices.allocatable_devices()] == ["a", "b", "c", "x"]
        stage.active.clear()
        providers.devices.forget_ended()
        assert list(providers.devices.devices("p", "main")) == []


async def test_a_resource_goes_some_time_after_its_plugin(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestEndpointSyncOnDisconnect`"""
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b"], pre_start=True)
        await stage.register(plugin)
        pod = make_pod("p", container(r1=1))
        await stage.admit(pod)
        stage.kill(plugin)
        await trio.sleep(STOP_GRACE - 10)
        assert stage.amounts(R1) == (2, 0)
        assert stage.manager.problem(make_pod("q", container(r1=1))) == (
            f"no healthy devices present; cannot allocate unhealthy devices {R1}"
        )
        with pytest.raises(AllocationError, match=f"endpoint {R1} has been stopped$"):
            await stage.manager.extras(pod, pod.spec.containers[0])
        await trio.sleep(20)
        assert stage.manager.resources() == DeviceResources(gone=frozenset([R1]))
        with pytest.raises(AllocationError, match=f"endpoint not found in cache for a registered resource: {R1}"):
            await stage.manager.extras(pod, pod.spec.containers[0])
        await stage.register(ToyPlugin(R1, ["a"]))
        assert stage.manager.resources() == DeviceResources({R1: 1}, {R1: 1})
        assert stage.has("p") == ["a"]


async def test_a_new_agent_knows_who_has_what(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestCheckpoint`, `TestResetExtendedResource`"""
    async with device_stage(tmp_path) as stage:
        one, two = await kubelets_plugins(stage)
        assert stage.manager.problem(make_pod("x", container(r1=1))) is None
        pod = make_pod("p", container(r1=2, r2=1))
        await stage.admit(pod)
        before = await stage.manager.extras(pod, pod.spec.containers[0])
    async with device_stage(tmp_path) as stage:
        stage.active.add("p")
        assert not stage.manager.reset_extended
        assert stage.manager.resources() == DeviceResources({R1: 0, R2: 0}, {R1: 0, R2: 0})
        assert stage.has("p") == ["dev1", "dev2", "dev3"]
        assert await stage.manager.extras(pod, pod.spec.containers[0]) == before, "its plugins are not there yet"
        assert stage.manager.problem(make_pod("q", container(r2=1))) == (
            f"no healthy devices present; cannot allocate unhealthy devices {R2}"
        )
        await stage.register(two, "two.sock")
        assert stage.manager.problem(make_pod("q", container(r2=1))) is None
        assert stage.manager.problem(make_pod("q", container(r2=2))) is not None, "one is taken"
        await trio.sleep(STOP_GRACE + 1)
        assert stage.manager.resources() == DeviceResources({R2: 2}, {R2: 2}, frozenset([R1]))
        assert one.listeners == 0
        await stage.written()
    async with device_stage(tmp_path) as stage:
        assert stage.manager.resources().capacity == {R2: 0}


async def test_pods_that_run_are_left_in_peace_by_a_new_agent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await kubelets_plugins(stage)
        await stage.admit(make_pod("p", container(r1=1)))
    async with device_stage(tmp_path) as stage:
        stage.sources_ready = False
        stage.running.add(("p", "main"))
        pod = make_pod("p", container(r1=1))
        assert stage.manager.problem(pod) is None
        assert not stage.manager.lacking(pod)
        await stage.admit(pod)
        stage.running.clear()
        assert "no healthy devices present" in str(stage.manager.problem(pod)), "the machine was started anew"


async def test_what_was_spoilt_is_forgotten_and_goes_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        assert stage.manager.reset_extended
        await kubelets_plugins(stage)
        await stage.admit(make_pod("p", container(r1=1)))
        assert (stage.folder / "device_grants_state").exists()
    (tmp_path / "device-plugins" / "device_grants_state").write_text("spoilt")
    async with device_stage(tmp_path) as stage:
        assert stage.manager.resources() == DeviceResources()
        assert stage.has("p") == []
        assert not stage.manager.reset_extended
        await kubelets_plugins(stage)
        await stage.admit(make_pod("q", container(r1=2)))
    async with device_stage(tmp_path) as stage:
        assert stage.has("q") == ["dev1", "dev2"]


async def test_nobody_is_admitted_whose_devices_cannot_be_written_down(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with device_stage(tmp_path) as stage:
        await kubelets_plugins(stage)
        await stage.written()
        state = stage.folder / "device_grants_state"
        state.unlink()
        state.mkdir()
        with pytest.raises(AllocationError, match=r'^failed to write checkpoint file "device_grants_state": '):
            await stage.admit(make_pod("p", container(r1=2)))
        assert stage.has("p") == []
        state.rmdir()
        await stage.admit(make_pod("q", container(r1=2)))


async def test_what_is_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        one, _ = await kubelets_plugins(stage)
        await stage.admit(make_pod("p", container(r1=1)))
        one.failing["Allocate"] = GRPCError(Status.INTERNAL)
        with pytest.raises(AllocationError):
            await stage.admit(make_pod("q", container(r1=1)))
        assert stage.manager.metrics.registrations == {(R1,): 1, (R2,): 1}
        assert stage.manager.metrics.allocations[R1,].count == 2
