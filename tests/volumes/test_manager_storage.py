"""What the owner of pods' volumes does for claims: staging, attaching, growing, one pod or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.listening import told_by
from tests.volumes.stage import (
    Stage,
    add_claim,
    claimed,
    empty_dir,
    pod,
    stage,
)
from trikubelet.supervision import follow
from trikubelet.telemetry.events import EventType, ObjectEvent
from trikubelet.volumes.errors import (
    AttachLimitError,
    FileSystemMismatchError,
    TransientVolumeError,
    UncertainVolumeError,
    VolumeError,
    VolumesNotReadyError,
    uncertain,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import PersistentVolume
    from trikubelet.telemetry.events import AnyEvent

__all__ = ["stage"]

CONFIG_MAP = "kubernetes.io/configmap"
EMPTY_DIR = "kubernetes.io/empty-dir"
CSI = "kubernetes.io/csi"


async def test_a_claim_that_is_not_bound_ends_the_wait_at_once(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage, phase="Pending")
    stage.kind(EMPTY_DIR), stage.kind(CSI)
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError) as caught:
            await manager.prepare(pod("web", empty_dir(), claimed()))

        assert str(caught.value) == (
            "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: "
            "error processing PVC default/claim: PVC is not bound"
        )
        assert trio.current_time() == 0
        add_claim(stage.storage)
        await manager.prepare(pod("web", empty_dir(), claimed()))


async def test_a_running_pod_does_not_mind_that_its_claim_cannot_be_read(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage)
    stage.kind(CSI)
    web = pod("web", claimed())
    async with stage.running() as manager:
        await manager.prepare(web)
        stage.storage.unavailable = True
        await trio.sleep(100)
        manager.refresh(web)
        await trio.sleep(1)
        await manager.prepare(web)
        assert manager.host_path(web, "data") is not None


async def test_a_volume_is_staged_once_for_all_pods_and_unstaged_after_the_last(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage, access_modes=["ReadWriteMany"])
    kind = stage.kind(CSI, staged=True)
    async with stage.running() as manager:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.prepare, pod("a", claimed()))
            nursery.start_soon(manager.prepare, pod("b", claimed()))
        await manager.release("uid-a")
        assert kind.staged_names == {"pv-1"}
        await manager.release("uid-b")

        assert not kind.staged_names
        assert set(manager.statistics().values()) == {0}
    assert kind.calls == [
        "stage pv-1",
        "set_up pv-1",
        "set_up pv-1",
        "tear_down pv-1",
        "tear_down pv-1",
        "unstage pv-1",
    ]
    assert kind.most_at_once == 1
    assert kind.requests[-1].staging_path == stage.root / "plugins" / "pv-1"


async def test_a_volume_that_cannot_be_unstaged_does_not_hold_up_its_pod(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, staged=True, behaviours={"unstage": [VolumeError("data", "busy")] * 3})
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed()))
        await manager.release("uid-web")
        assert kind.staged_names
        assert trio.current_time() == 0
        await trio.sleep(10)

        assert not kind.staged_names
        assert set(manager.statistics().values()) == {0}


async def test_failing_to_stage_is_told_as_that(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    stage.kind(CSI, staged=True, behaviours={"stage": [VolumeError("data", "no device")]})
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed()))

    assert stage.messages("uid-web") == ['MountVolume.MountDevice failed for volume "pv-1" : no device']


async def test_a_volume_for_one_pod_only_is_refused_to_the_second_until_the_first_has_gone(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage, access_modes=["ReadWriteOncePod"])
    stage.kind(CSI, staged=True)
    async with stage.running() as manager, trio.open_nursery() as nursery:
        await manager.prepare(pod("a", claimed()))
        nursery.start_soon(manager.prepare, pod("b", claimed()))
        await trio.sleep(100)
        assert manager.host_path(pod("b", claimed()), "data") is None
        await manager.release("uid-a")

    assert trio.current_time() == pytest.approx(100)
    assert stage.messages("uid-b") == [
        'MountVolume.SetUp failed for volume "pv-1" : '
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    ]


async def test_a_volume_that_has_to_be_attached_is_reported_in_use_first(
    stage: Stage, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    add_claim(stage.storage)
    stage.storage.volumes["pv-1"] = _without_csi(stage, "pv-1")
    name = "kubernetes.io/local-volume/pv-1"
    kind = stage.kind("kubernetes.io/local-volume", staged=True, attaching=True)
    async with stage.running() as manager:
        assert manager.in_use() == ()
        told: list[tuple[str, ...] | None] = []
        nursery.start_soon(follow, manager.in_use_changes.subscribe(), lambda _: told.append(manager.in_use()))
        async with trio.open_nursery() as waiting:
            waiting.start_soon(manager.prepare, pod("web", claimed()))
            await trio.sleep(1)
            assert manager.in_use() == (name,)
            assert told == [(name,)]
            stage.storage.attach({name: "/dev/sdb"})
            await trio.sleep(1)
            assert not kind.calls
            manager.reported_in_use((name,))
        assert kind.requests[0].device_path == "/dev/sdb"
        await manager.release("uid-web")
        assert manager.in_use() == ()
        await wait_all_tasks_blocked()
        assert told == [(name,), ()]


async def test_what_is_not_attached_is_named_and_no_longer_waited_for_when_the_pod_goes(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage)
    stage.kind(CSI, staged=True, attaching=True)
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError) as caught:
            await manager.prepare(pod("web", claimed()))
        assert not isinstance(caught.value, AttachLimitError)
        assert (caught.value.unmounted, caught.value.unattached) == (("data",), ("data",))
        await manager.release("uid-web")
        assert manager.in_use() == ()
        assert set(manager.statistics().values()) == {0}


async def test_a_pod_is_refused_when_the_node_can_take_no_more_volumes(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trikubelet.volumes.attaching import Attaching

    async def exhausted(*_: object) -> bool:
        return True

    monkeypatch.setattr(Attaching, "exhausted", exhausted)
    add_claim(stage.storage)
    stage.kind(CSI, attaching=True)
    async with stage.running() as manager:
        with pytest.raises(AttachLimitError, match=r"^Node has reached its volume attachment limit, rejecting pod\. u"):
            await manager.prepare(pod("web", claimed()))


async def test_a_driver_that_registers_ends_the_backoff(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    away = TransientVolumeError("data", "driver name disks.example.com not found in the list of registered CSI drivers")
    stage.kind(CSI, staged=True, behaviours={"stage": [away] * 6})
    async with stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, pod("web", claimed()))
        await trio.sleep(20)
        manager.driver_changed("other.example.com")
        await trio.sleep(0.1)
        assert stage.kinds[CSI].count("stage") == 6
        manager.driver_changed("disks.example.com")
    assert trio.current_time() == pytest.approx(20.1)


async def test_a_driver_object_says_whether_its_volumes_are_attached(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, attaching=VolumeError("data", "CSIDriver objects are not known yet"))
    async with stage.running() as manager:
        woken = told_by(manager.pod_changes)
        with pytest.raises(VolumesNotReadyError, match="not known yet"):
            await manager.prepare(pod("web", claimed()))
        kind.attaching = False
        stage.storage.change_driver("disks.example.com")
        await wait_all_tasks_blocked()
        assert woken == ["uid-web"]
        await manager.prepare(pod("web", claimed()))


async def test_a_volume_larger_than_its_claim_says_is_grown_before_the_pod_sees_it(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage, size="2Gi", claimed_size="1Gi")
    kind = stage.kind(CSI, behaviours={"expand": [VolumeError("data", "busy")]})
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed()))

    assert kind.calls == ["set_up pv-1", "expand pv-1", "set_up pv-1", "expand pv-1"]
    assert stage.storage.sizes == [("claim", "2Gi")]
    assert stage.messages("uid-web") == ['MountVolume.Setup failed while expanding volume for volume "pv-1" : busy']
    assert stage.messages("uid-web", "FileSystemResizeSuccessful") == [
        'MountVolume.NodeExpandVolume succeeded for volume "pv-1" node-1'
    ]


async def test_a_volume_that_grows_while_a_pod_has_it_is_grown_by_the_pods_next_sync(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, behaviours={"expand": [VolumeError("data", "busy")]})
    web = pod("web", claimed())
    async with stage.running() as manager:
        await manager.prepare(web)
        add_claim(stage.storage, size="3Gi")
        await trio.sleep(60)
        manager.refresh(web)
        await trio.sleep(0.1)
        assert manager.host_path(web, "data") is not None
        await trio.sleep(10)
        manager.refresh(web)
        await trio.sleep(10)

    assert kind.calls == ["set_up pv-1", "expand pv-1", "expand pv-1"]
    assert stage.storage.sizes == [("claim", "3Gi")]
    assert stage.messages("uid-web", "VolumeResizeFailed") == [
        'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : busy'
    ]


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_kind_that_leaves_growth_to_its_controller_tells_nothing_of_it(
    stage: Stage, autojump_clock: MockClock, read_only: bool
) -> None:
    add_claim(stage.storage, size="2Gi")
    kind = stage.kind(CSI, grows_on_node=False)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "claim", "readOnly": read_only}}
    web = pod("web", volume)
    async with stage.running() as manager:
        await manager.prepare(web)
        add_claim(stage.storage, size="3Gi")
        await trio.sleep(60)
        manager.refresh(web)
        await trio.sleep(10)
    assert kind.count("expand") == 0
    assert stage.storage.sizes == []
    assert stage.messages("uid-web", "FileSystemResizeSuccessful") == []
    assert stage.messages("uid-web", "FileSystemResizeFailed") == []


@pytest.mark.parametrize("is_uncertain", [False, True])
async def test_a_disk_with_another_file_system_is_told_of_at_its_persistent_volume(
    stage: Stage, autojump_clock: MockClock, is_uncertain: bool
) -> None:
    add_claim(stage.storage)
    mismatch: VolumeError = FileSystemMismatchError("data", "wrong fs type")
    if is_uncertain:  # something of the volume is there already
        with pytest.raises(UncertainVolumeError) as raised, uncertain("data"):
            raise mismatch
        mismatch = raised.value
    stage.kind(CSI, staged=True, behaviours={"stage": [mismatch, VolumeError("data", "no")]})
    told: list[AnyEvent] = []
    stage.recorder.add_listener(told.append)
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed()))
    [event] = [one for one in told if isinstance(one, ObjectEvent)]
    assert (event.about.kind, event.about.name, event.type) == ("PersistentVolume", "pv-1", EventType.WARNING)
    assert event.reason == "FailedMountOnFilesystemMismatch"
    assert event.message == 'MountVolume failed for volume "pv-1" wrong fs type'
    assert stage.messages("uid-web")[0] == 'MountVolume.MountDevice failed for volume "pv-1" : wrong fs type'


async def test_a_block_volume_is_a_device_and_fails_as_one(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage, volume_mode="Block")
    kind = stage.kind(CSI, staged=True, block_device="/dev/sdb")
    kind.behaviours = {"stage": [VolumeError("data", "no")], "set_up": [VolumeError("data", "not")]}
    web = pod("web", claimed(), devices=["data"])
    async with stage.running() as manager:
        await manager.prepare(web)
        mounted = manager.mounted(web, "data")
        assert mounted is not None
        assert (mounted.path, mounted.device) == (None, "/dev/sdb")
        await manager.release("uid-web")

    assert stage.messages("uid-web", "FailedMapVolume") == [
        'MapVolume.SetUpDevice failed for volume "pv-1" : no',
        'MapVolume.MapPodDevice failed for volume "pv-1" : not',
    ]
    assert len(stage.messages("uid-web", "SuccessfulMountVolume")) == 1


async def test_obstacles_are_events_and_nothing_is_tried(stage: Stage, autojump_clock: MockClock) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
    add_claim(stage.storage, node_affinity={"required": {"nodeSelectorTerms": terms}})
    add_claim(stage.storage, "other", "pv-2", mount_options=["noatime"])
    kind = stage.kind(CSI, staged=True)
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError):
            await manager.prepare(pod("web", claimed(), claimed("more", "other")))

    assert not kind.calls
    assert set(stage.messages("uid-web")) == {
        'MountVolume.NodeAffinity check failed for volume "pv-1" : no matching NodeSelectorTerms',
        'MountVolume.MountOptionSupport check failed for volume "pv-2" : '
        "mount options are not supported for this volume type",
    }


async def test_two_names_for_one_claim_are_one_volume(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, staged=True)
    web = pod("web", claimed("one"), claimed("two"))
    async with stage.running() as manager:
        await manager.prepare(web)
        assert manager.host_path(web, "one") == manager.host_path(web, "two") is not None

    assert kind.count("set_up") == 1


async def test_a_claim_can_be_mounted_read_only(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    stage.kind(CSI)
    source = {"name": "data", "persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}
    async with stage.running() as manager:
        await manager.prepare(pod("web", source))
        mounted = manager.mounted(pod("web", source), "data")

    assert mounted is not None
    assert mounted.read_only


async def test_groups_of_persistent_volumes_are_those_of_the_pod(stage: Stage, autojump_clock: MockClock) -> None:
    for number, group in enumerate(("1234", "5678", "1234", "", "12x", "+9")):
        annotations = {"pv.beta.kubernetes.io/gid": group} if group else {}
        add_claim(stage.storage, f"claim-{number}", f"pv-{number}", annotations=annotations)
    stage.kind(CSI)
    web = pod("web", *(claimed(f"v{number}", f"claim-{number}") for number in range(6)))
    async with stage.running() as manager:
        assert manager.supplemental_groups(web) == ()
        await manager.prepare(web)
        assert manager.supplemental_groups(web) == (9, 1234, 5678)
        from trikubelet.api import PodSecurityContext

        own = PodSecurityContext(supplemental_groups=(1234,))
        assert manager.supplemental_groups(attrs.evolve(web, spec=attrs.evolve(web.spec, security_context=own))) == (
            9,
            5678,
        )


def _without_csi(stage: Stage, name: str) -> PersistentVolume:
    from trikubelet.api import LocalVolumeSource

    volume = stage.storage.volumes[name]
    return attrs.evolve(volume, spec=attrs.evolve(volume.spec, csi=None, local=LocalVolumeSource(path="/data")))
