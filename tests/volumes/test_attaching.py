"""Volumes are used only when a controller has attached them and knows that they are used."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from trikubelet.api import (
    CSIDriver,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    Node,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    Quantity,
    Secret,
    VolumeAttachment,
    VolumeAttachmentStatus,
    VolumeError,
)
from trikubelet.broadcast import Broadcast
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.volumes.attaching import Attached, Attaching, attachment_problem
from trikubelet.volumes.csi.rules import attachment_name
from trikubelet.volumes.errors import TransientVolumeError
from trikubelet.volumes.model import VolumeSpec

if TYPE_CHECKING:
    from trio.testing import MockClock

UNIQUE = "kubernetes.io/csi/d^vol-1"
NAME = attachment_name("vol-1", "d", "n")
CSI = VolumeSpec(
    name="data",
    inner_name="pv",
    plugin="kubernetes.io/csi",
    persistent=PersistentVolume(
        metadata=ObjectMeta(name="pv"),
        spec=PersistentVolumeSpec(csi=CSIPersistentVolumeSource(driver="d", volume_handle="vol-1")),
    ),
)


class FakeStorage:
    """The objects as a test sets them."""

    def __init__(self) -> None:
        self.node_says: dict[str, str] | None = None
        self.attachments: dict[str, VolumeAttachment] = {}
        self.driver: CSIDriver | None = None
        self.asked: list[str] = []
        self.attached_changes: Broadcast[None] = Broadcast()
        self.csi_driver_changes: Broadcast[str] = Broadcast()

    def attach(self, device: str = "") -> None:
        self.node_says = {UNIQUE: device}
        self.attached_changes.send(None)

    def attached(self) -> dict[str, str] | None:
        return self.node_says

    async def secret(self, namespace: str, name: str) -> Secret:
        raise NotImplementedError

    async def attachment(self, name: str) -> VolumeAttachment:
        await trio.lowlevel.checkpoint()
        self.asked.append(name)
        if name not in self.attachments:
            raise ObjectError(f'volumeattachments.storage.k8s.io "{name}" not found', "not found")
        return self.attachments[name]

    async def csi_driver(self, name: str) -> CSIDriver | None:
        await trio.lowlevel.checkpoint()
        return self.driver

    def known_csi_driver(self, name: str) -> CSIDriver | None:
        return self.driver

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        raise NotImplementedError

    async def volume(self, name: str) -> PersistentVolume:
        raise NotImplementedError

    async def node(self) -> Node:
        raise NotImplementedError

    async def resizing(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        raise NotImplementedError

    async def resized(self, claim: PersistentVolumeClaim, size: Quantity) -> PersistentVolumeClaim:
        raise NotImplementedError

    async def resize_failed(
        self, claim: PersistentVolumeClaim, problem: str, *, infeasible: bool, at: datetime
    ) -> PersistentVolumeClaim:
        raise NotImplementedError


def attachment(status: VolumeAttachmentStatus, *, deleted: bool = False) -> VolumeAttachment:
    when = datetime(2026, 1, 1, tzinfo=UTC) if deleted else None
    return VolumeAttachment(metadata=ObjectMeta(name=NAME, deletion_timestamp=when), status=status)


ATTACHED = attachment(VolumeAttachmentStatus(attached=True, attachment_metadata={"devicePath": "/dev/x"}))
FULL = attachment(VolumeAttachmentStatus(attach_error=VolumeError(message="rpc error: too many volumes", error_code=8)))


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def attaching(storage: FakeStorage) -> Attaching:
    return Attaching(storage, node_name="n")


def test_the_name_of_an_attachment_is_a_digest_of_volume_driver_and_node() -> None:
    assert f"csi-{hashlib.sha256(b'vol-1dn').hexdigest()}" == NAME


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (ATTACHED, None),
        (attachment(VolumeAttachmentStatus()), f"volume vol-1 is not attached for volume attachment {NAME}"),
        (FULL, "rpc error: too many volumes"),
        (attachment(ATTACHED.status, deleted=True), "volume attachment is being deleted"),
        (attachment(attrs.evolve(FULL.status, attached=True)), None),
    ],
    ids=["attached", "not yet", "failed", "going", "attached after all"],
)
def test_why_an_attachment_cannot_be_used(found: VolumeAttachment, problem: str | None) -> None:
    assert attachment_problem(found, "vol-1") == problem


async def test_a_volume_waits_for_both_reports_in_any_order(
    storage: FakeStorage, attaching: Attaching, autojump_clock: MockClock
) -> None:
    storage.attachments[NAME] = ATTACHED
    results: list[Attached] = []

    async def wait() -> None:
        results.append(await attaching.wait(CSI, UNIQUE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1000)
        attaching.reported_in_use((UNIQUE,))
        await trio.sleep(1000)
        assert not attaching.is_attached(UNIQUE)
        assert (results, storage.asked) == ([], []), "nothing is asked before there is something to see"
        storage.attach("/dev/disk")
        before = trio.current_time()
    assert trio.current_time() == before
    assert results == [Attached("/dev/disk", NAME, {"devicePath": "/dev/x"})]
    assert storage.asked == [NAME]
    attaching.reported_in_use(())
    assert not attaching.is_attached(UNIQUE), "a volume that the node does not claim to use may be detached"


async def test_a_volume_that_is_attached_but_not_reported_in_use_is_not_relied_on(
    storage: FakeStorage, attaching: Attaching, autojump_clock: MockClock
) -> None:
    storage.attachments[NAME] = ATTACHED
    storage.attach()
    with trio.move_on_after(1000) as scope:
        await attaching.wait(CSI, UNIQUE)
    assert scope.cancelled_caught
    attaching.reported_in_use((UNIQUE, "another"))
    assert await attaching.wait(CSI, UNIQUE) == Attached("", NAME, {"devicePath": "/dev/x"})


async def test_an_attachment_that_contradicts_the_nodes_status_is_told_in_the_kubelets_words(
    storage: FakeStorage, attaching: Attaching
) -> None:
    storage.attach()
    attaching.reported_in_use((UNIQUE,))
    with pytest.raises(TransientVolumeError) as missing:
        await attaching.wait(CSI, UNIQUE)
    assert missing.value.problem == (
        f'volume vol-1 has GET error for volume attachment {NAME}: volumeattachments.storage.k8s.io "{NAME}" not found'
    )
    storage.attachments[NAME] = FULL
    with pytest.raises(TransientVolumeError) as failed:
        await attaching.wait(CSI, UNIQUE)
    assert (failed.value.volume, failed.value.problem) == ("data", "rpc error: too many volumes")


async def test_what_is_no_csi_volume_has_only_the_nodes_status(storage: FakeStorage, attaching: Attaching) -> None:
    storage.attach("/dev/sdb")
    attaching.reported_in_use((UNIQUE,))
    spec = VolumeSpec(name="data", inner_name="pv", plugin="kubernetes.io/other")
    assert await attaching.wait(spec, UNIQUE) == Attached("/dev/sdb")
    assert storage.asked == []


def test_what_a_driver_hands_over_is_not_shown() -> None:
    assert "secret" not in repr(Attached("", NAME, {"token": "secret"}))


def driver(period: int | None) -> CSIDriver:
    return CSIDriver(metadata=ObjectMeta(name="d"), spec=CSIDriverSpec(node_allocatable_update_period_seconds=period))


@pytest.mark.parametrize(
    ("found", "object_", "exhausted"),
    [
        (FULL, driver(30), True),
        (FULL, driver(None), False),
        (FULL, None, False),
        (None, driver(30), False),
        (ATTACHED, driver(30), False),
        (attachment(VolumeAttachmentStatus(attach_error=VolumeError(message="no"))), driver(30), False),
    ],
)
async def test_a_node_that_can_take_no_more_volumes(
    storage: FakeStorage,
    attaching: Attaching,
    found: VolumeAttachment | None,
    object_: CSIDriver | None,
    exhausted: bool,
) -> None:
    if found is not None:
        storage.attachments[NAME] = found
    storage.driver = object_
    assert await attaching.exhausted(CSI) is exhausted
