"""How plugins make themselves known, and take over from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError, Status

from tests.device_plugin import Introduction, ToyPlugin, register
from tests.node.devices.plugin_sockets import settle
from tests.node.devices.situations import R1, container, make_pod
from tests.node.devices.stage import Stage, device_stage
from trikubelet.node.devices.book import STOP_GRACE
from trikubelet.node.devices.endpoint import PluginError
from trikubelet.node.devices.manager import DeviceManager
from trikubelet.node.devices.model import PluginDevice
from trikubelet.node.devices.server import DEPRECATION, FOLDER, SOCKET, RegistrationServer
from trikubelet.plugins.handlers import Plugin, PluginRefusedError
from trikubelet.rpc.grpc import Server, SocketInUseError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


def in_registry(stage: Stage, resource: str = R1, socket: str = "toy.sock", versions: tuple[str, ...] = ("v1beta1",)):  # type: ignore[no-untyped-def]
    return Plugin("DevicePlugin", resource, str(stage.folder / socket), versions, stage.root / "reg.sock")


async def test_a_plugin_is_there_once_it_has_registered(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a", "b"], pre_start=True)
        await stage.register(plugin)
        assert plugin.calls == [("GetDevicePluginOptions", ()), ("ListAndWatch", ())]
        assert stage.amounts(R1) == (2, 2)


@pytest.mark.parametrize(
    ("resource", "version", "problem"),
    [
        (
            R1,
            "v1alpha",
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        ("brick", "v1beta1", 'the ResourceName "brick" is invalid'),
        ("kubernetes.io/brick", "v1beta1", 'the ResourceName "kubernetes.io/brick" is invalid'),
        ("requests.example.com/brick", "v1beta1", 'the ResourceName "requests.example.com/brick" is invalid'),
        ("", "v1beta1", 'the ResourceName "" is invalid'),
    ],
)
async def test_a_plugin_is_refused(
    tmp_path: Path, autojump_clock: MockClock, resource: str, version: str, problem: str
) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(resource, ["a"])
        with pytest.raises(GRPCError) as error:
            await stage.register(plugin, version=version)
        assert (error.value.status, error.value.message) == (Status.UNKNOWN, problem)
        assert plugin.calls == []


async def test_a_plugin_may_listen_a_moment_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage, trio.open_nursery() as nursery:
        plugin = ToyPlugin(R1, ["a"])
        nursery.start_soon(stage.register, plugin)
        stage.kill(plugin)
        await trio.sleep(5)
        stage.listen(plugin)
        await trio.sleep(5)
        assert stage.amounts(R1) == (1, 1)


async def test_a_plugin_that_never_listens_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        began = trio.current_time()
        with pytest.raises(PluginError, match="failed to dial device plugin: rpc error: code = Unavailable"):
            await stage.manager._connections.connect(R1, stage.folder / "nobody.sock")
        assert trio.current_time() - began <= 10


@pytest.mark.parametrize("endpoint", ["toy\0.sock", "toy\0/" + "x" * 120, "y" * 120 + "\0"])
async def test_a_plugin_at_a_socket_that_cannot_be_is_given_up_alone(
    tmp_path: Path, autojump_clock: MockClock, endpoint: str
) -> None:
    manager = manager_in(tmp_path)
    plugin = Plugin("DevicePlugin", R1, str(tmp_path / endpoint), ("v1beta1",), tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        for _ in range(2):  # whoever is told so may come again
            with pytest.raises(PluginRefusedError, match="failed to dial device plugin"):
                await manager.plugin_handler.register(plugin)
        nursery.cancel_scope.cancel()


async def test_a_plugin_that_refuses_to_tell_its_options_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, ["a"])
        plugin.failing["GetDevicePluginOptions"] = GRPCError(Status.UNIMPLEMENTED, "what?")
        with pytest.raises(GRPCError) as error:
            await stage.register(plugin)
        assert error.value.message == (
            "failed to get device plugin options: rpc error: code = Unimplemented desc = what?"
        )


async def test_a_plugin_on_another_socket_takes_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestDevicePluginReRegistration`"""
    async with device_stage(tmp_path) as stage:
        first, second, third = ToyPlugin(R1, ["a", "b"]), ToyPlugin(R1, ["a", "b"]), ToyPlugin(R1, ["c"])
        await stage.register(first, "1.sock")
        assert stage.amounts(R1) == (2, 2)
        await stage.register(second, "2.sock")
        assert stage.amounts(R1) == (2, 2)
        assert [first.listeners, second.listeners] == [0, 1]
        await stage.register(third, "3.sock")
        assert stage.amounts(R1) == (1, 1)
        first.tell(["x"])
        second.end_lists()
        await trio.sleep(STOP_GRACE + 1)
        assert stage.amounts(R1) == (1, 1)
        pod = make_pod("p", container(r1=1))
        await stage.admit(pod)
        assert (first.asked("Allocate"), third.asked("Allocate")) == ([], [("c",)])


async def test_a_plugin_on_the_same_socket_takes_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        first, second = ToyPlugin(R1, ["a", "b"]), ToyPlugin(R1, ["b", "c", "d"])
        await stage.register(first)
        stage.kill(first)
        await settle()
        await stage.register(second)
        assert stage.amounts(R1) == (3, 3)
        await trio.sleep(STOP_GRACE + 1)
        assert stage.amounts(R1) == (3, 3)


async def test_a_plugin_that_cannot_be_used_does_not_take_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        first, second = ToyPlugin(R1, ["a"]), ToyPlugin(R1, ["b"])
        await stage.register(first, "1.sock")
        second.failing["GetDevicePluginOptions"] = GRPCError(Status.INTERNAL)
        with pytest.raises(GRPCError):
            await stage.register(second, "2.sock")
        await stage.admit(make_pod("p", container(r1=1)))
        assert stage.has("p") == ["a"]


async def test_the_last_to_register_wins_not_the_last_to_be_connected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with device_stage(tmp_path) as stage:
        slow, fast = ToyPlugin(R1, ["slow"]), ToyPlugin(R1, ["fast"])
        connections = stage.manager._connections
        stage.listen(fast, "fast.sock")
        refused = trio.Event()

        async def register_the_slow_one() -> None:
            with pytest.raises(PluginError, match=f"another plugin has registered for {R1} meanwhile"):
                await connections.connect(R1, stage.folder / "slow.sock")
            refused.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register_the_slow_one)
            await settle()
            await connections.connect(R1, stage.folder / "fast.sock")
            stage.listen(slow, "slow.sock")
            await refused.wait()
        assert [device.id for device in stage.manager.allocatable_devices()] == ["fast"]


async def test_calls_that_a_plugin_has_to_answer_yet_survive_its_successor(tmp_path: Path) -> None:
    """Not on a mock clock: that does not wait for the disk."""
    async with device_stage(tmp_path) as stage:
        first, second = ToyPlugin(R1, ["a", "b"]), ToyPlugin(R1, ["a", "b"])
        await stage.register(first, "1.sock")
        go_on = trio.Event()
        plain = first.allocate

        async def slow(request):  # type: ignore[no-untyped-def]
            await go_on.wait()
            return await plain(request)

        first.allocate = slow  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.admit, make_pod("p", container(r1=1)))
            await settle()
            await stage.register(second, "2.sock")
            await stage.admit(make_pod("q", container(r1=1)))
            go_on.set()
        assert (stage.has("p"), stage.has("q")) == (["a"], ["b"])
        assert second.asked("Allocate") == [("b",)]


async def test_what_a_plugin_says_after_its_time_counts_for_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, ["a"]), "1.sock")
        connections = stage.manager._connections
        old = connections.get(R1)
        await stage.register(ToyPlugin(R1, ["b", "c"]), "2.sock")
        assert old is not None
        assert old.stopped
        connections._receive(old, [PluginDevice("d")])
        assert stage.amounts(R1) == (2, 2)


async def test_both_ways_lead_to_the_same_place(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`TestDevicePluginReRegistrationProbeMode`"""
    async with device_stage(tmp_path) as stage:
        handler = stage.manager.plugin_handler
        old, new = ToyPlugin(R1, ["a"]), ToyPlugin(R1, ["a", "b"])
        await stage.register(old, "old.sock")
        stage.listen(new, "new.sock")
        handler.validate(in_registry(stage))
        await handler.register(in_registry(stage, socket="new.sock"))
        await settle()
        assert stage.amounts(R1) == (2, 2)
        await handler.deregister(in_registry(stage, socket="old.sock"))
        await settle()
        assert stage.amounts(R1) == (2, 2), "that one has had its time"
        await handler.deregister(in_registry(stage, socket="new.sock"))
        await settle()
        assert stage.amounts(R1) == (2, 0)


@pytest.mark.parametrize(
    ("resource", "versions", "problem"),
    [
        (R1, ("v1alpha", "v2"), "manager version, v1beta1, is not among plugin supported versions [v1alpha v2]"),
        ("brick", ("v1beta1",), 'invalid name of device plugin socket: the ResourceName "brick" is invalid'),
    ],
)
async def test_a_plugin_in_the_registry_is_refused(
    tmp_path: Path, resource: str, versions: tuple[str, ...], problem: str
) -> None:
    stage = Stage(None, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(PluginRefusedError) as error:
        stage.manager.plugin_handler.validate(in_registry(stage, resource, versions=versions))
    assert str(error.value) == problem


async def test_a_plugin_in_the_registry_hears_why_it_cannot_be_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        with pytest.raises(PluginRefusedError, match="failed to dial device plugin"):
            await stage.manager.plugin_handler.register(in_registry(stage, socket="nobody.sock"))
    with pytest.raises(PluginRefusedError, match="the agent starts, or ends"):
        await stage.manager.plugin_handler.register(in_registry(stage))


async def test_a_plugin_that_goes_away_while_it_registers_is_given_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with device_stage(tmp_path) as stage:
        handler, plugin = stage.manager.plugin_handler, in_registry(stage, socket="nobody.sock")
        with trio.move_on_after(1) as scope:
            await handler.register(plugin)
        assert scope.cancelled_caught
        await handler.deregister(plugin)
        await stage.register(ToyPlugin(R1, ["a"]))
        assert stage.amounts(R1) == (1, 1)


# On real sockets, without a mock clock.


def manager_in(root: Path) -> DeviceManager:
    return DeviceManager(root / FOLDER, needed=lambda _: False, sources_ready=lambda: True)


async def resources_of(manager: DeviceManager) -> dict[str, int]:
    """The next ones that there are."""
    with trio.fail_after(10):
        await manager.changed.wait()
    return dict(manager.resources().allocatable)


async def test_a_plugin_registers_by_the_socket(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    manager = manager_in(tmp_path)
    (folder / "notes.txt").touch()
    async with trio.open_nursery() as nursery:
        old = await nursery.start(_serve_until_cancelled, folder / "old.sock")
        await nursery.start(manager.run)
        assert sorted(path.name for path in folder.iterdir()) == [DEPRECATION, SOCKET, "notes.txt"]
        plugin = ToyPlugin(R1, ["a", "b"])
        await nursery.start(Server([plugin]).serve_unix, folder / "toy.sock")
        nursery.start_soon(register, folder / SOCKET, R1, "toy.sock")
        assert await resources_of(manager) == {R1: 2}
        with pytest.raises(GRPCError, match="the ResourceName"):
            await register(folder / SOCKET, "brick", "toy.sock")
        old.cancel()
        nursery.cancel_scope.cancel()
    assert not (folder / SOCKET).exists()


async def test_the_folder_is_made_for_its_owner_and_group(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(manager_in(tmp_path / "deep" / "root").run)
        assert (tmp_path / "deep" / "root" / FOLDER).stat().st_mode & 0o777 == 0o750
        nursery.cancel_scope.cancel()


async def test_another_agent_keeps_its_plugins(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(manager_in(tmp_path).run)
        await nursery.start(Server([ToyPlugin(R1)]).serve_unix, tmp_path / FOLDER / "toy.sock")
        with pytest.raises(SocketInUseError, match="another agent serves device plugins there"):
            await manager_in(tmp_path).run()
        assert {SOCKET, "toy.sock"} <= {path.name for path in (tmp_path / FOLDER).iterdir()}
        nursery.cancel_scope.cancel()


async def test_a_plugin_registers_by_the_registry(tmp_path: Path) -> None:
    from random import Random

    from trikubelet.plugins.registration import PluginRegistrar
    from trikubelet.plugins.watcher import SocketWatch

    manager, registry = manager_in(tmp_path), tmp_path / "plugins_registry"
    introduction = Introduction(R1, str(tmp_path / "toy.sock"))
    with SocketWatch(registry) as sockets:
        async with trio.open_nursery() as nursery:
            await nursery.start(manager.run)
            registrar = PluginRegistrar(sockets, {"DevicePlugin": manager.plugin_handler}, rng=Random(1))
            await nursery.start(registrar.run)
            await nursery.start(Server([ToyPlugin(R1, ["a"])]).serve_unix, tmp_path / "toy.sock")
            introducing = await nursery.start(_serve_until_cancelled, registry / "toy-reg.sock", introduction)
            with trio.fail_after(10):
                await introduction.heard.wait()
            assert introduction.told == [""]
            assert manager.resources().capacity in ({}, {R1: 1})
            introducing.cancel()
            while manager.resources().allocatable != {R1: 0}:
                await resources_of(manager)
            nursery.cancel_scope.cancel()


async def _serve_until_cancelled(
    socket: Path, service: object = None, *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(Server([] if service is None else [service]).serve_unix, socket)  # type: ignore[list-item]
            task_status.started(scope)


def is_well(server: RegistrationServer) -> bool:
    return server.problem is None


async def test_a_server_that_fails_is_a_problem_until_it_serves_again(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    async with device_stage(tmp_path) as stage:
        server = RegistrationServer(folder, stage.manager._connections, stage.manager.metrics)
        with pytest.raises(OSError, match="No such file"):
            await server.run()
        assert server.problem is not None
        assert server.problem.startswith("device registration error: device plugin registration gRPC server failed")
        await server.prepare()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            assert is_well(server)
            nursery.cancel_scope.cancel()
        assert is_well(server), "an agent that ends is well"
