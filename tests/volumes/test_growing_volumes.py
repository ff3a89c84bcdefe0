"""Claims that grow, with a CSI driver that refuses, fails and gives in, and with agents that restart in between."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
from grpclib import Status

from tests.csi_driver import Fault
from tests.volumes.csi.stage import NAME, csi_driver, csi_stage
from tests.volumes.csi.stage import Stage as CSIStage
from tests.volumes.stage import Stage, add_claim, claimed, pod, stage
from trikubelet.api import CSIPersistentVolumeSource, Quantity, SecretReference
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.telemetry.events import ObjectEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from tests.csi_driver.faults import Faults
    from tests.volumes.fake_kind import FakeKind
    from trikubelet.api import PersistentVolumeClaim, Pod
    from trikubelet.volumes.manager import VolumeManager

__all__ = ["stage"]

PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
GIB = 2**30
WEB = pod("web", claimed())
GROWN = 'MountVolume.NodeExpandVolume succeeded for volume "pv-1" node-1'


def refused(status: Status, desc: str = "no", *, colon: str = " :") -> str:
    code = "".join(word.title() for word in status.name.split("_"))
    return f"Expander.NodeExpand failed to expand the volume{colon} rpc error: code = {code} desc = {desc}"


@attrs.define
class Node:
    """A manager with the driver, over several lives of the agent."""

    stage: Stage
    csi: CSIStage
    told: list[ObjectEvent] = attrs.field(factory=list)
    """Events of claims and persistent volumes."""

    @property
    def faults(self) -> dict[str, Fault]:
        return cast("Faults", self.csi.driver.faults).by_call

    @property
    def claim(self) -> PersistentVolumeClaim:
        return self.stage.storage.claims["default", "claim"]

    @property
    def state(self) -> str:
        return self.claim.status.allocated_resource_statuses.get("storage", "")

    @property
    def has(self) -> str:
        return str(self.claim.status.capacity["storage"])

    @property
    def problems(self) -> list[str]:
        """What the claim's conditions say."""
        return [f"{one.type}: {one.message}" for one in self.claim.status.conditions]

    def expansions(self) -> list[str]:
        return [call.outcome for call in self.csi.driver.calls if call.rpc == "NodeExpandVolume"]

    def refuse(self, status: Status, *, times: int | None = None) -> None:
        self.faults["NodeExpandVolume"] = Fault("error", status, "no", times=times)

    def ask(self, size: str, state: str = PENDING, *, requested: str | None = None, **more: Any) -> None:
        """A controller has made the volume larger. An empty state: it is one that does not say."""
        status: dict[str, Any] = {}
        if state:
            status = {"allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": state}}
        storage = self.stage.storage
        claimed_size = more.pop("claimed_size", "1Gi")
        told = more.pop("source", {})
        add_claim(storage, size=size, claimed_size=claimed_size, status=status, **more)
        persistent = storage.volumes["pv-1"]
        source = CSIPersistentVolumeSource(driver=NAME, volume_handle="pv-1", **told)
        storage.volumes["pv-1"] = attrs.evolve(persistent, spec=attrs.evolve(persistent.spec, csi=source))
        asked = {"storage": Quantity(size if requested is None else requested)}
        resources = attrs.evolve(self.claim.spec.resources, requests=asked)
        spec = attrs.evolve(self.claim.spec, resources=resources)
        storage.claims["default", "claim"] = attrs.evolve(self.claim, spec=spec)

    async def synced(self, manager: VolumeManager, pod: Pod = WEB) -> None:
        """The pod is synced once more, after a while."""
        await trio.sleep(60)
        manager.refresh(pod)
        await trio.sleep(1)

    def events(self, reason: str) -> list[tuple[str, str]]:
        return [(one.about.kind, one.message) for one in self.told if one.reason == reason]


@asynccontextmanager
async def node_with(stage: Stage, tmp_path: Path, **driver: Any) -> AsyncIterator[Node]:
    async with csi_stage(tmp_path / "csi", **driver) as csi:
        node = Node(stage, csi)
        stage.root = csi.root
        stage.kinds["kubernetes.io/csi"] = cast("FakeKind", csi.kind)
        csi.cluster.drivers[NAME] = stage.storage.drivers[NAME] = csi_driver(attach_required=False)
        stage.recorder.add_listener(lambda event: node.told.append(event) if isinstance(event, ObjectEvent) else None)
        yield node


@pytest.fixture
async def node(stage: Stage, tmp_path: Path) -> AsyncIterator[Node]:
    (tmp_path / "csi").mkdir()
    async with node_with(stage, tmp_path) as made:
        yield made


async def test_a_claim_is_told_how_its_growth_goes(autojump_clock: MockClock, node: Node) -> None:
    node.ask("2Gi")
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert node.stage.storage.sizes == [("claim", IN_PROGRESS), ("claim", "2Gi")]
    assert (node.has, node.state, node.problems) == ("2Gi", "", [])
    assert node.expansions() == ["ok"]
    assert node.stage.messages("uid-web", "FileSystemResizeSuccessful") == [GROWN]
    assert node.events("FileSystemResizeSuccessful") == [("PersistentVolumeClaim", GROWN)]
    assert node.told[0].about.uid == "uid-claim"


async def test_an_older_controller_is_told_the_size_alone(autojump_clock: MockClock, node: Node) -> None:
    node.ask("2Gi", "")
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert node.stage.storage.sizes == [("claim", "2Gi")]
    assert node.events("FileSystemResizeSuccessful") == [("PersistentVolumeClaim", GROWN)]


@pytest.mark.parametrize("status", [Status.OUT_OF_RANGE, Status.INVALID_ARGUMENT, Status.NOT_FOUND])
async def test_a_pod_whose_driver_can_never_grow_its_volume_gets_it_at_its_old_size(
    autojump_clock: MockClock, node: Node, status: Status
) -> None:
    node.ask("2Gi")
    node.refuse(status)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
        assert trio.current_time() < 2
        await node.synced(manager)
    why = refused(status, colon="")
    assert (node.has, node.state) == ("1Gi", INFEASIBLE)
    assert node.problems == [f"NodeResizeError: failed to expand pvc with {why}"]
    assert len(node.expansions()) == 1
    assert node.stage.messages("uid-web") == [
        f'MountVolume.Setup failed while expanding volume for volume "pv-1" : {why}'
    ]


async def test_so_does_one_whose_driver_does_not_while_it_is_in_use(autojump_clock: MockClock, node: Node) -> None:
    node.ask("2Gi")
    node.refuse(Status.FAILED_PRECONDITION)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
        assert trio.current_time() == 0
        await node.synced(manager)
        assert node.expansions() == ["FAILED_PRECONDITION"]
        assert node.stage.messages("uid-web") == node.stage.messages("uid-web", "VolumeResizeFailed") == []
        why = refused(Status.FAILED_PRECONDITION)
        assert node.problems == [f"NodeResizeError: failed to expand pvc with {why}"]
        assert (node.has, node.state) == ("1Gi", IN_PROGRESS)
        # Out of use, it may go.
        node.faults.clear()
        await manager.release("uid-web")
        await manager.prepare(pod("next", claimed()))
    assert (node.has, node.state, node.problems) == ("2Gi", "", [])


@pytest.mark.parametrize("state", [PENDING, ""])
async def test_a_driver_that_leaves_growing_to_its_controller_holds_no_pod_up(
    stage: Stage, tmp_path: Path, autojump_clock: MockClock, state: str
) -> None:
    (tmp_path / "csi").mkdir()
    async with node_with(stage, tmp_path, capabilities=()) as node:
        node.ask("2Gi", state)
        async with stage.running() as manager:
            await manager.prepare(WEB)
            await node.synced(manager)
        assert node.expansions() == []
        expected = "NodeResizeError: failed to expand pvc with NodeExpand is not supported by the CSI driver " + NAME
        assert node.problems == ([expected] if state else [])


async def test_a_pod_waits_while_its_volume_may_still_grow(autojump_clock: MockClock, node: Node) -> None:
    node.ask("2Gi")
    node.refuse(Status.INTERNAL, times=2)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert node.expansions() == ["INTERNAL", "INTERNAL", "ok"]
    assert (node.has, node.state, node.problems) == ("2Gi", "", [])
    assert len(node.stage.messages("uid-web")) == 1


async def test_a_size_that_is_not_wanted_any_more_is_given_up_with_the_next_failure(
    autojump_clock: MockClock, node: Node
) -> None:
    """Its user asked for 2Gi, sees that it fails, and asks for less: the controller has to hear of it."""
    node.ask("2Gi")
    node.refuse(Status.INTERNAL)
    async with node.stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, WEB)
        await trio.sleep(0.1)
        assert node.state == IN_PROGRESS
        resources = attrs.evolve(node.claim.spec.resources, requests={"storage": Quantity("1536Mi")})
        spec = attrs.evolve(node.claim.spec, resources=resources)
        node.stage.storage.claims["default", "claim"] = attrs.evolve(node.claim, spec=spec)
    assert node.expansions() == ["INTERNAL", "INTERNAL"]
    assert node.state == INFEASIBLE
    # The controller takes the new size up.
    node.faults.clear()
    node.ask("1536Mi")
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert (node.has, node.state) == ("1536Mi", "")


async def test_a_claim_is_told_that_a_secret_is_missing_until_its_user_wants_another_size(
    autojump_clock: MockClock, node: Node
) -> None:
    node.ask("2Gi", source={"node_expand_secret_ref": SecretReference(name="key", namespace="storage")})
    async with node.stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, WEB)
        await trio.sleep(0.1)
        why = 'fetching NodeExpandSecretRef storage/key failed: secrets "key" not found'
        assert node.problems == [f"NodeResizeError: failed to expand pvc with {why}"]
        assert node.state == IN_PROGRESS
        resources = attrs.evolve(node.claim.spec.resources, requests={"storage": Quantity("1536Mi")})
        spec = attrs.evolve(node.claim.spec, resources=resources)
        node.stage.storage.claims["default", "claim"] = attrs.evolve(node.claim, spec=spec)
    assert (node.expansions(), node.state) == ([], INFEASIBLE)


async def test_silence_does_not_make_a_size_infeasible(autojump_clock: MockClock, node: Node) -> None:
    node.ask("2Gi", requested="1536Mi")
    node.refuse(Status.UNAVAILABLE, times=3)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    told = [IN_PROGRESS, "NodeResizeError", "2Gi"]
    assert node.stage.storage.sizes == [("claim", what) for what in told]


async def test_a_volume_in_use_fails_to_grow_and_stays_mounted(autojump_clock: MockClock, node: Node) -> None:
    node.ask("1Gi", "")
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
        node.ask("2Gi")
        node.refuse(Status.OUT_OF_RANGE)
        await node.synced(manager)
        assert manager.host_path(WEB, "data") is not None
        await node.synced(manager)
    assert (node.state, len(node.expansions())) == (INFEASIBLE, 1)
    assert node.stage.messages("uid-web", "VolumeResizeFailed") == [
        f'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : {refused(Status.OUT_OF_RANGE, colon="")}'
    ]


async def test_a_shared_volume_grows_on_each_node(autojump_clock: MockClock, node: Node) -> None:
    """The other node was first, and told the claim."""
    shared: dict[str, Any] = {"access_modes": ["ReadWriteMany"]}
    node.ask("1Gi", "", **shared)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
        node.ask("2Gi", PENDING, claimed_size="2Gi", **shared)
        done = attrs.evolve(node.claim.status, allocated_resource_statuses={})
        node.stage.storage.claims["default", "claim"] = attrs.evolve(node.claim, status=done)
        await node.synced(manager)
        await node.synced(manager)
    assert node.expansions() == ["ok"]
    assert node.stage.storage.sizes == []
    assert node.events("FileSystemResizeSuccessful") == [("PersistentVolumeClaim", GROWN)]


async def test_a_pod_that_only_reads_its_volume_leaves_it_small(autojump_clock: MockClock, node: Node) -> None:
    node.ask("2Gi")
    read_only = {"name": "data", "persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}
    async with node.stage.running() as manager:
        await manager.prepare(pod("web", read_only))
    said = 'MountVolume.NodeExpandVolume failed for volume "pv-1" requested read-only file system'
    assert node.stage.messages("uid-web", "FileSystemResizeFailed") == [said]
    assert node.events("FileSystemResizeFailed") == [("PersistentVolumeClaim", said)]
    assert (node.expansions(), node.state) == ([], PENDING)


@pytest.mark.parametrize("fault", ["hang", "late", "lost", "error"])
async def test_an_agent_that_ends_while_a_volume_grows_is_followed_by_one_that_goes_on(
    autojump_clock: MockClock, node: Node, fault: Any
) -> None:
    node.ask("2Gi")
    node.faults["NodeExpandVolume"] = Fault(fault, Status.ABORTED)
    async with node.stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, WEB)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert (node.has, node.state) == ("1Gi", IN_PROGRESS)
    node.faults.clear()
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert (node.has, node.state, node.problems) == ("2Gi", "", [])
    assert node.expansions()[-1] == "ok"


@pytest.mark.parametrize("status", [Status.FAILED_PRECONDITION, Status.OUT_OF_RANGE])
async def test_what_was_refused_is_known_after_a_restart_and_may_be_tried_anew(
    autojump_clock: MockClock, node: Node, status: Status
) -> None:
    node.ask("2Gi")
    node.refuse(status)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    asked = len(node.expansions())
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
        await node.synced(manager)
    # In use, the driver is asked once more by each agent; what is infeasible is the controller's to take up.
    assert len(node.expansions()) == asked + (status is Status.FAILED_PRECONDITION)
    assert node.has == "1Gi"
    node.faults.clear()
    node.ask("3Gi")
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert (node.has, node.state) == ("3Gi", "")


async def test_a_claim_that_could_not_be_told_is_told_the_next_time(
    autojump_clock: MockClock, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> PersistentVolumeClaim:
        monkeypatch.undo()
        raise ObjectError("no answer", "unavailable")

    node.ask("2Gi")
    node.refuse(Status.OUT_OF_RANGE)
    monkeypatch.setattr(node.stage.storage, "resize_failed", away)
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
    assert node.expansions() == ["OUT_OF_RANGE"] * 2
    assert node.state == INFEASIBLE


@pytest.mark.parametrize("call", ["claim", "resizing", "resized"])
async def test_a_volume_waits_for_its_claim(
    autojump_clock: MockClock, node: Node, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whether it may grow, and that it has grown, has to be known before its pod starts."""
    known = await node_claim(node)
    with monkeypatch.context() as patch:

        async def away(*_: object, **__: object) -> PersistentVolumeClaim:
            if call == "claim" and not node.csi.driver.calls:
                return known  # the pod asks for it first
            patch.undo()
            raise ObjectError("no answer", "unavailable")

        patch.setattr(node.stage.storage, call, away)
        async with node.stage.running() as manager:
            await manager.prepare(WEB)
    [message] = node.stage.messages("uid-web")
    assert message.endswith("no answer")
    assert (node.has, node.state) == ("2Gi", "")


async def test_a_claim_that_was_replaced_is_another_one(autojump_clock: MockClock, node: Node) -> None:
    """Nor is the API server asked for it without a pause."""
    node.ask("1Gi", "")
    async with node.stage.running() as manager:
        await manager.prepare(WEB)
        node.ask("2Gi")
        node.faults["NodeExpandVolume"] = Fault("error", Status.INTERNAL, times=1)
        await trio.sleep(60)
        manager.refresh(WEB)
        await trio.sleep(0.1)
        other = attrs.evolve(node.claim, metadata=attrs.evolve(node.claim.metadata, uid="other"))
        node.stage.storage.claims["default", "claim"] = other
        await trio.sleep(60)
    assert node.expansions() == ["INTERNAL"]
    said = 'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : '
    assert node.stage.messages("uid-web", "VolumeResizeFailed") == [
        f"{said}{refused(Status.INTERNAL, 'the test wants it so')}",
        f"{said}expected the claim with the UID uid-claim, it has been replaced",
    ]
    assert node.stage.storage.reads < 20


async def node_claim(node: Node) -> PersistentVolumeClaim:
    node.ask("2Gi")
    return await node.stage.storage.claim("default", "claim")
