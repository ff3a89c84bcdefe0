"""Plugins that get it wrong: nobody but those who want their devices is the worse for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import trio
import trio.testing
from grpclib import GRPCError, Status

from tests.device_plugin import Brick, ToyPlugin
from tests.node.devices.plugin_sockets import settle
from tests.node.devices.situations import R1, R2, container, make_pod
from tests.node.devices.stage import Stage, device_stage
from trikubelet.admission.types import AllocationError
from trikubelet.node.devices.book import STOP_GRACE
from trikubelet.node.devices.endpoint import ALLOCATE_SECONDS, PRE_START_SECONDS
from trikubelet.rpc.device_plugins import v1beta1
from trikubelet.rpc.unread import PAUSE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trio.testing import MockClock

MUCH: Final = "x" * 2000
"""Long ids make long lists."""


async def fails(stage: Stage, uid: str, problem: str) -> None:
    with pytest.raises(AllocationError) as error:
        await stage.admit(make_pod(uid, container(r1=1)))
    assert str(error.value).startswith(problem)
    assert stage.has(uid) == []


async def test_a_plugin_hangs_in_allocate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b"])
        await stage.register(plugin, "1.sock")
        await stage.register(ToyPlugin(R2, ["x"]), "2.sock")
        plugin.hanging.add("Allocate")
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(fails, stage, "p", "rpc error: code = DeadlineExceeded desc = ")
            await plugin.hung.wait()
            assert stage.manager.problem(make_pod("q", container(r1=2))) is not None, "one is asked for"
            assert stage.manager.problem(make_pod("q", container(r1=1))) is None
        assert trio.current_time() - began == ALLOCATE_SECONDS
        await stage.admit(make_pod("r", container(r2=1)))
        plugin.hanging.clear()
        await stage.admit(make_pod("q", container(r1=2)))


async def test_a_pod_is_deleted_while_its_plugin_hangs(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.hanging.add("Allocate")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails, stage, "p", 'pod "p" is not wanted any more')
            await plugin.hung.wait()
            stage.manager.forget("p")
            stage.manager.forget("unknown")
        assert stage.manager.problem(make_pod("q", container(r1=1))) is None


async def test_whoever_asks_may_be_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.hanging.add("Allocate")
        with trio.move_on_after(5) as scope:
            await stage.admit(make_pod("p", container(r1=1)))
        assert scope.cancelled_caught
        assert stage.manager.problem(make_pod("q", container(r1=1))) is None


async def test_a_plugin_hangs_when_it_is_asked_for_its_opinion(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"], preferring=lambda available, included, size: available)
        await stage.register(plugin)
        plugin.hanging.add("GetPreferredAllocation")
        await fails(
            stage, "p", "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = DeadlineExceeded"
        )
        plugin.hanging.clear()
        plugin.failing["GetPreferredAllocation"] = GRPCError(Status.INTERNAL, "no idea")
        await fails(
            stage,
            "p",
            "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no idea",
        )


async def test_a_plugin_hangs_when_a_container_is_to_start(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"], pre_start=True)
        await stage.register(plugin)
        pod = make_pod("p", container(r1=1))
        await stage.admit(pod)
        plugin.hanging.add("PreStartContainer")
        began = trio.current_time()
        with pytest.raises(AllocationError, match="PreStartContainer rpc failed with err: rpc error: code = Deadline"):
            await stage.manager.extras(pod, pod.spec.containers[0])
        assert trio.current_time() - began == PRE_START_SECONDS


async def test_a_plugin_hangs_when_it_is_asked_for_its_options(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        plugin.hanging.add("GetDevicePluginOptions")
        with pytest.raises(GRPCError, match="failed to get device plugin options: rpc error: code = DeadlineExceeded"):
            await stage.register(plugin)


async def test_a_plugin_never_tells_of_its_devices(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        plugin.hanging.add("ListAndWatch")
        await stage.register(plugin)
        await trio.sleep(1000)
        assert stage.amounts(R1) == (None, None)
        assert not stage.manager.lacking(make_pod("p", container(r1=1))), "nobody knows that it is a device"


async def test_a_plugin_refuses_to_tell_of_its_devices(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        plugin.failing["ListAndWatch"] = GRPCError(Status.UNIMPLEMENTED, "what?")
        await stage.register(plugin)
        assert stage.amounts(R1) == (0, 0)
        await trio.sleep(STOP_GRACE - 1)
        assert len(plugin.asked("ListAndWatch")) == 1, "nobody asks again"
        assert stage.amounts(R1) == (0, 0)
        await trio.sleep(2)
        assert stage.amounts(R1) == (None, None)


async def test_a_plugin_dies_while_it_is_listened_to(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b"])
        await stage.register(plugin)
        await stage.admit(make_pod("p", container(r1=1)))
        stage.kill(plugin)
        await trio.sleep(1)
        assert stage.amounts(R1) == (2, 0)
        assert stage.has("p") == ["a"]
        await fails(stage, "q", f"no healthy devices present; cannot allocate unhealthy devices {R1}")
        await stage.register(ToyPlugin(R1, ["a", "b"]))
        assert stage.amounts(R1) == (2, 2)
        await stage.admit(make_pod("q", container(r1=1)))
        assert stage.has("q") == ["b"]


async def test_a_plugin_ends_its_lists(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.end_lists()
        await trio.sleep(1)
        assert stage.amounts(R1) == (1, 0)
        await trio.sleep(STOP_GRACE)
        assert stage.manager.resources().gone == {R1}


async def test_a_plugin_dies_in_allocate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.hanging.add("Allocate")
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(fails, stage, "p", "rpc error: code = Unavailable desc = ")
            await plugin.hung.wait()
            stage.kill(plugin)
        assert trio.current_time() - began <= PAUSE


async def test_a_plugin_answers_for_no_container(tmp_path: Path, autojump_clock: MockClock) -> None:
    class Mute(ToyPlugin):
        async def allocate(self, allocate_request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
            return v1beta1.AllocateResponse()

    async with device_stage(tmp_path) as stage:
        await stage.register(Mute(R1, ["a"]))
        await fails(stage, "p", "no containers return in allocation response")


async def test_a_plugin_tells_of_the_same_device_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, ["a", "a", Brick("b", healthy=False), Brick("b"), ""]))
        assert stage.amounts(R1) == (3, 3)


async def test_two_plugins_fight_for_a_resource(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugins = [ToyPlugin(R1, [f"{name}{number}" for number in range(3)]) for name in "ab"]
        for turn in range(20):
            await stage.register(plugins[turn % 2], f"{turn % 2}.sock")
        assert [device.id for device in stage.manager.allocatable_devices()] == ["b0", "b1", "b2"]
        assert [plugin.listeners for plugin in plugins] == [0, 1]


async def test_a_plugin_never_stops_telling(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It is read as fast as is good for the agent, and what counts is the newest of what has come."""

    class Talker(ToyPlugin):
        sent = 0

        async def list_and_watch(self, empty: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
            while True:
                Talker.sent += 1
                devices = [v1beta1.Device(id=f"{MUCH}{number}", health="Healthy") for number in range(Talker.sent % 7)]
                yield v1beta1.ListAndWatchResponse(devices=devices)
                await trio.lowlevel.checkpoint()

    async with device_stage(tmp_path) as stage:
        with trio.CancelScope() as scope:

            async def look() -> None:
                await trio.sleep(10)
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(look)
                nursery.start_soon(stage.register, Talker(R1))
        assert 2 <= stage.changes <= 1 + 10 / PAUSE
        assert Talker.sent < 20_000
        assert stage.ill == []


async def test_a_burst_of_lists_is_one_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        for number in range(50):
            plugin.tell([f"b{number}", "c"])
        await settle()
        await trio.sleep(2 * PAUSE)
        assert [device.id for device in stage.manager.allocatable_devices()] == ["b49", "c"]
        assert stage.changes == 2


@pytest.mark.parametrize("killed", [False, True])
async def test_the_last_word_of_a_plugin_counts(tmp_path: Path, autojump_clock: MockClock, killed: bool) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.tell(["a", "b"])
        plugin.tell(["a", "b", "c"])
        await settle()
        stage.kill(plugin) if killed else plugin.end_lists()
        await trio.sleep(5)
        assert stage.amounts(R1) == (3, 0)


async def test_a_list_beyond_all_measure_ends_the_plugin(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.tell([MUCH * 30 + str(number) for number in range(300)])
        await trio.sleep(5)
        assert stage.amounts(R1) == (1, 0)


async def test_a_list_that_is_none_ends_the_plugin(tmp_path: Path, autojump_clock: MockClock) -> None:
    class Babbler(ToyPlugin):
        async def list_and_watch(self, empty: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
            yield v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(id="a", health="Healthy")])
            await trio.sleep(1)
            yield v1beta1.RegisterRequest(version="\0not a device")  # type: ignore[misc]
            await trio.sleep_forever()

    async with device_stage(tmp_path) as stage:
        await stage.register(Babbler(R1))
        assert stage.amounts(R1) == (1, 1)
        await trio.sleep(5)
        assert stage.amounts(R1) == (1, 0)


async def test_a_plugin_prefers_what_is_not_to_be_had(tmp_path: Path, autojump_clock: MockClock) -> None:
    def foolish(available: Sequence[str], included: Sequence[str], size: int) -> Sequence[str]:
        return ["taken", "unknown", "b", "b", ""]

    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["taken", "b", "c"], preferring=foolish)
        await stage.register(plugin)
        await stage.admit(make_pod("first", container(r1=1)))
        await stage.admit(make_pod("p", container(r1=2)))
        assert (stage.has("first"), stage.has("p")) == (["b"], ["c", "taken"])


async def test_the_agent_ends_whatever_its_plugins_do(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        await stage.register(plugin)
        plugin.hanging |= {"Allocate", "PreStartContainer"}
        with trio.CancelScope() as pods:

            async def end() -> None:
                await plugin.hung.wait()
                pods.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.admit, make_pod("p", container(r1=1)))
                nursery.start_soon(end)
        began = trio.current_time()
        stage.nursery.cancel_scope.cancel()
    assert trio.current_time() == began
