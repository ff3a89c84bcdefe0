"""CSI drivers register: which are taken, what the cluster is told of them, and when that changes."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from grpclib import Status

from tests.csi_driver.driver import FolderDriver
from tests.csi_driver.faults import Fault
from tests.node.stage import Stage as NodeStage
from tests.node.stage import kept_node
from trikubelet.api import CSIDriver, CSIDriverSpec, CSINodeDriver, ObjectMeta, VolumeNodeResources
from trikubelet.kube_client.storage_objects import ClusterStorage
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import CSI_DRIVERS, CSI_NODES
from trikubelet.plugins.handlers import Plugin, PluginRefusedError
from trikubelet.plugins.registration import PluginRegistrar
from trikubelet.plugins.watcher import SocketWatch
from trikubelet.rpc.grpc import Channel, Server
from trikubelet.volumes.csi.drivers import Driver, Drivers
from trikubelet.volumes.csi.node_info import NODE_ID_ANNOTATION
from trikubelet.volumes.csi.registration import PLUGIN_TYPE, CSIRegistration, highest_version, version_numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

PREFIX = 'kubernetes.io/csi: RegisterPlugin for CSI driver "d" failed.'


def plugin(*versions: str, endpoint: str = "/csi.sock", socket: str = "/reg.sock") -> Plugin:
    return Plugin(PLUGIN_TYPE, "d", endpoint, versions or ("1.0.0",), Path(socket))


@pytest.mark.parametrize(
    ("versions", "highest"),
    [
        (("1.0.0",), "1.0.0"),
        (("0.3.0", "1.2.0", "1.10.0", "1.9"), "1.10.0"),
        (("v1.1.0", "2.0.0"), "v1.1.0"),
        (("1.0.0", "nonsense", ""), "1.0.0"),
    ],
)
def test_the_highest_version_of_csi_1_is_taken(versions: tuple[str, ...], highest: str) -> None:
    assert highest_version(versions) == highest


@pytest.mark.parametrize("versions", [(), ("0.3.0",), ("2.0.0",), ("nonsense",), ("1",), ("",)])
def test_a_driver_of_no_version_that_is_known_is_refused(versions: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"empty list|are supported"):
        highest_version(versions)


def test_versions_compare_as_numbers() -> None:
    assert version_numbers("1.0") == version_numbers("v1.0.0") < version_numbers("1.0.1") < version_numbers("1.10.0-rc")


def test_a_name_that_is_taken_needs_a_higher_version() -> None:
    drivers = Drivers()
    drivers.add(Driver("d", "/old.sock", "1.2.0"))
    registration = CSIRegistration(drivers)
    registration.validate(plugin("1.3.0"))
    for version in ("1.2.0", "1.2", "1.1.9"):
        with pytest.raises(PluginRefusedError) as raised:
            registration.validate(plugin(version))
        assert str(raised.value) == (
            "validation failed for CSI Driver d at endpoint /csi.sock: "
            'kubernetes.io/csi: ValidatePlugin for CSI driver "d" failed. '
            'Another driver with the same name is already registered with a higher supported version: "1.2.0"'
        )


@attrs.define
class Stage:
    node: NodeStage
    driver: FolderDriver
    drivers: Drivers
    registration: CSIRegistration
    objects: Store[CSIDriver]

    def entries(self) -> tuple[CSINodeDriver, ...]:
        found = self.node.client.stored(CSI_NODES, "n")
        assert found is not None
        return found.spec.drivers

    def node_ids(self) -> Any:
        return json.loads(self.node.node.metadata.annotations.get(NODE_ID_ANNOTATION, "{}"))

    def ask_for_updates(self, period: int | None, version: str) -> None:
        spec = CSIDriverSpec(node_allocatable_update_period_seconds=period)
        found = CSIDriver(metadata=ObjectMeta(name="d", uid="u", resource_version=version), spec=spec)
        self.objects.replace([found], [], version)

    @property
    def asked(self) -> int:
        return self.driver.names().count("NodeGetInfo")


@asynccontextmanager
async def registering(tmp_path: Path, **driver: Any) -> AsyncIterator[Stage]:
    """A node in a cluster and a driver in memory."""
    driver = {"node_id": "id-1", "topology": {"zone": "z1"}, "max_volumes": 7, **driver}
    folder_driver = FolderDriver(tmp_path, name="d", **driver)
    async with kept_node() as node, trio.open_nursery() as nursery:

        def connect(endpoint: str) -> Channel:
            async def stream() -> trio.abc.Stream:
                await trio.lowlevel.checkpoint()
                ours, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(Server(folder_driver.services).serve_stream, theirs)
                return ours

            return Channel(stream)

        drivers = Drivers(connect=connect)
        objects: Store[CSIDriver] = Store(CSI_DRIVERS)
        storage = ClusterStorage(node.client, "n", nodes=node.store, csi_drivers=objects)
        registration = CSIRegistration(drivers, entries=node.keeper.drivers, storage=storage)
        await nursery.start(registration.run)
        yield Stage(node, folder_driver, drivers, registration, objects)
        nursery.cancel_scope.cancel()


async def test_a_registered_driver_can_be_used_and_the_cluster_knows_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with registering(tmp_path) as stage:
        await stage.registration.register(plugin("0.3.0", "1.5.0"))
        assert stage.drivers.get("d") == Driver("d", "/csi.sock", "1.5.0")
        assert stage.entries() == (
            CSINodeDriver(name="d", node_id="id-1", topology_keys=("zone",), allocatable=VolumeNodeResources(count=7)),
        )
        assert stage.node_ids() == {"d": "id-1"}
        assert stage.node.node.metadata.labels["zone"] == "z1"
        await stage.registration.deregister(plugin("0.3.0", "1.5.0"))
        assert stage.drivers.get("d") is None
        assert (stage.entries(), stage.node_ids()) == ((), {})


async def test_a_driver_can_be_used_while_the_api_server_is_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with registering(tmp_path) as stage:
        await stage.node.keeper.csi_node.wait_done()
        stage.node.client.unreachable()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.registration.register, plugin())
            await trio.sleep(300)
            assert stage.drivers.get("d") is not None
            stage.node.client.back()
        assert stage.node_ids() == {"d": "id-1"}


@pytest.mark.parametrize("endpoint", ["/run/a\0b", "/run/a\0b/" + "c" * 120, "/" + "d" * 120 + "\0"])
async def test_a_driver_at_a_socket_that_cannot_be_is_refused(endpoint: str, autojump_clock: MockClock) -> None:
    drivers = Drivers()
    with pytest.raises(PluginRefusedError, match="cannot contain a nul"):
        await CSIRegistration(drivers).register(plugin(endpoint=endpoint))
    assert drivers.get("d") is None


async def test_a_driver_that_does_not_say_where_it_is_is_not_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with registering(tmp_path) as stage:
        stage.driver.faults.by_call["NodeGetInfo"] = Fault("error", Status.INTERNAL, "no metadata")  # type: ignore[attr-defined]
        with pytest.raises(PluginRefusedError, match="rpc error: code = Internal desc = no metadata"):
            await stage.registration.register(plugin())
        assert stage.drivers.get("d") is None
        assert stage.node_ids() == {}


async def test_a_driver_with_other_labels_than_the_node_is_not_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with registering(tmp_path, topology={"kubernetes.io/os": "plan9"}) as stage:
        with pytest.raises(PluginRefusedError, match="detected topology value collision"):
            await stage.registration.register(plugin())
        assert stage.drivers.get("d") is None
        assert stage.entries() == ()


async def test_a_registration_that_is_cut_off_leaves_nothing_once_it_is_given_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with registering(tmp_path) as stage:
        await stage.node.keeper.csi_node.wait_done()
        gate = stage.node.client.hold("update", CSI_NODES)
        with trio.move_on_after(1):
            await stage.registration.register(plugin())
        gate.set()
        await stage.registration.deregister(plugin())
        assert stage.drivers.get("d") is None
        assert (stage.entries(), stage.node_ids()) == ((), {})


async def test_a_newer_driver_takes_the_name_and_the_end_of_the_older_does_not_matter(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with registering(tmp_path) as stage:
        old, new = plugin("1.0.0", endpoint="/old.sock"), plugin("1.1.0", endpoint="/new.sock")
        await stage.registration.register(old)
        with pytest.raises(PluginRefusedError) as raised:
            await stage.registration.register(plugin("1.0.0"))
        assert str(raised.value).startswith(f"{PREFIX} Another driver with the same name")
        await stage.registration.register(new)
        await stage.registration.deregister(old)
        assert stage.drivers.get("d") == Driver("d", "/new.sock", "1.1.0")
        assert stage.node_ids() == {"d": "id-1"}
        await stage.registration.deregister(new)
        assert stage.drivers.get("d") is None
        assert stage.node_ids() == {}


async def test_a_limit_is_looked_at_again_as_often_as_the_drivers_object_says(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with registering(tmp_path) as stage:
        await stage.registration.register(plugin())
        await trio.sleep(3600)
        assert stage.asked == 1
        stage.ask_for_updates(30, "1")
        stage.driver.max_volumes = 3
        await trio.sleep(31)
        assert stage.asked == 2
        assert stage.entries()[0].allocatable == VolumeNodeResources(count=3)
        stage.driver.faults.by_call["NodeGetInfo"] = Fault("error", times=1)  # type: ignore[attr-defined]
        await trio.sleep(60)
        assert stage.asked == 4, "a failure is not the end of it"
        stage.ask_for_updates(600, "2")
        await trio.sleep(610)
        assert stage.asked == 5
        await stage.registration.deregister(plugin())
        await trio.sleep(3600)
        assert stage.asked == 5


async def test_updates_end_when_the_object_no_longer_asks_for_them(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with registering(tmp_path) as stage:
        stage.ask_for_updates(30, "1")
        await stage.registration.register(plugin())
        await trio.sleep(31)
        stage.ask_for_updates(None, "2")
        await trio.sleep(3600)
        assert stage.asked == 2


async def test_without_a_cluster_drivers_can_be_used_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with registering(tmp_path) as stage:
        alone = CSIRegistration(stage.drivers)
        await alone.register(plugin())
        assert stage.drivers.get("d") is not None
        await alone.update("d")
        await alone.deregister(plugin())
        assert stage.drivers.get("d") is None


async def test_a_driver_registers_through_its_sockets_and_goes_with_them(tmp_path: Path) -> None:
    driver = FolderDriver(tmp_path / "volumes", name="d", endpoint=str(tmp_path / "csi.sock"))
    drivers = Drivers()

    async def until(there: bool) -> None:
        with trio.fail_after(10):
            while (drivers.get("d") is not None) is not there:
                await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        with SocketWatch(tmp_path / "plugins_registry") as watch:
            registrar = PluginRegistrar(watch, {PLUGIN_TYPE: CSIRegistration(drivers)}, rng=Random(1))
            await nursery.start(registrar.run)
            await nursery.start(Server(driver.services).serve_unix, tmp_path / "csi.sock")
            async with trio.open_nursery() as sidecar:
                socket = tmp_path / "plugins_registry" / "d-reg.sock"
                await sidecar.start(Server(driver.registration).serve_unix, socket)
                await until(True)
                with trio.fail_after(10):
                    while not driver.registrations:
                        await trio.sleep(0.001)
                sidecar.cancel_scope.cancel()
            await until(False)
            nursery.cancel_scope.cancel()
    assert [status.plugin_registered for status in driver.registrations] == [True]
