"""Volumes of CSI drivers on a machine with SELinux: mounted with a label, or relabelled by the runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest

from tests.linux.test_selinux import FEDORA
from tests.volumes.csi.stage import NAME, POD, Stage, csi_driver, csi_stage, inline, persistent
from tests.volumes.stage import Stage as Managed
from tests.volumes.stage import add_claim, claimed, pod, stage
from tests.volumes.test_labelled_volumes import with_level
from trikubelet.api import CSIPersistentVolumeSource, Quantity
from trikubelet.linux.mount_table import Mount
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi.vol_data import VolumeData, load, save
from trikubelet.volumes.errors import TransientVolumeError, UncertainVolumeError
from trikubelet.volumes.mount_labels import MountLabels

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.volumes.fake_kind import FakeKind

__all__ = ["stage"]

LABEL = "system_u:object_r:container_file_t:s0:c1,c2"
OPTION = f'context="{LABEL}"'


@pytest.fixture(autouse=True)
def _clock(autojump_clock: MockClock) -> None: ...


def on(stage: Stage, *options: str, super_options: tuple[str, ...] = ()) -> None:
    """The pods' folders are on a file system with these options."""
    stage.mounter.mounts = [Mount(point=Path("/"), kind="ext4", options=options, super_options=super_options)]


def told(stage: Stage, request: type[Any]) -> list[str]:
    return list(stage.driver.last(request).volume_capability.mount.mount_flags)


async def test_the_label_is_one_more_mount_option(tmp_path: Path) -> None:
    async with csi_stage(tmp_path, selinux=True) as stage:
        stage.cluster.drivers[NAME] = csi_driver(attach_required=False, se_linux_mount=True)
        on(stage)
        spec = persistent(spec={"mount_options": ("dirsync", "noatime")})
        mounted = await stage.set_up(spec, label=LABEL)
        assert told(stage, v1.NodeStageVolumeRequest) == ["dirsync", "noatime", OPTION]
        assert told(stage, v1.NodePublishVolumeRequest) == ["dirsync", "noatime", OPTION]
        assert not mounted.relabel
        # Growing has nothing to do with it.
        await stage.kind.expand(stage.request(spec, label=LABEL), Quantity("2Gi"))
        assert told(stage, v1.NodeExpandVolumeRequest) == ["dirsync", "noatime"]


async def test_without_a_label_the_options_are_the_volumes(tmp_path: Path) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        mounted = await stage.set_up(persistent(spec={"mount_options": ("noatime",)}))
        assert told(stage, v1.NodeStageVolumeRequest) == told(stage, v1.NodePublishVolumeRequest) == ["noatime"]
        assert not mounted.relabel
        for written in stage.root.rglob("vol_data.json"):
            assert "seLinuxMountContext" not in json.loads(written.read_text())


async def test_the_label_is_known_after_a_restart(tmp_path: Path) -> None:
    async with csi_stage(tmp_path, selinux=True) as stage:
        stage.cluster.attach()
        on(stage)
        await stage.set_up(persistent(), label=LABEL)
        written = [json.loads(path.read_text()) for path in stage.root.rglob("vol_data.json")]
        assert [one["seLinuxMountContext"] for one in written] == [LABEL] * 2
        found = await stage.kind.reconstruct(POD.metadata.uid, "pv-1")
        assert found is not None
        assert found.found_label == LABEL
        assert [one.found_label for one in await stage.kind.staged_volumes()] == [LABEL]


def test_either_agent_reads_the_others_label(tmp_path: Path) -> None:
    written = {"driverName": NAME, "volumeHandle": "vol/1", "seLinuxMountContext": LABEL}
    (tmp_path / "vol_data.json").write_text(json.dumps(written))
    data = load(tmp_path)
    assert data == VolumeData(NAME, "vol/1", label=LABEL)
    save(tmp_path, attrs.evolve(data, label=""))
    assert load(tmp_path) == VolumeData(NAME, "vol/1")


@pytest.mark.parametrize(
    ("options", "super_options", "read_only", "relabel"),
    [
        ((), ("rw", "seclabel", "data=ordered"), False, True),
        (("rw", "seclabel"), (), False, True),
        (("rw", "relatime"), ("rw",), False, False),
        (("rw",), ("rw", "vers=4.0", "hard"), False, False),
        ((), ("seclabel",), True, False),
    ],
)
async def test_files_are_relabelled_where_they_can_have_labels(
    tmp_path: Path, options: tuple[str, ...], super_options: tuple[str, ...], read_only: bool, relabel: bool
) -> None:
    async with csi_stage(tmp_path, selinux=True) as stage:
        stage.cluster.attach()
        on(stage, *options, super_options=super_options)
        assert (await stage.set_up(persistent(read_only=read_only))).relabel is relabel


async def test_so_are_those_of_inline_volumes(tmp_path: Path) -> None:
    async with csi_stage(tmp_path, selinux=True) as stage:
        stage.cluster.drivers[NAME] = csi_driver(volume_lifecycle_modes=("Ephemeral",))
        on(stage, super_options=("seclabel",))
        assert (await stage.set_up(inline())).relabel


async def test_without_selinux_the_mount_table_is_not_asked(tmp_path: Path) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        on(stage, super_options=("seclabel",))
        assert not (await stage.set_up(persistent())).relabel


async def test_a_published_volume_of_which_nothing_is_known_has_to_be_taken_down(tmp_path: Path) -> None:
    async with csi_stage(tmp_path, selinux=True) as stage:
        stage.cluster.attach()
        stage.mounter.mounts = []
        with pytest.raises(UncertainVolumeError, match="error checking for SELinux support: no mount holds /"):
            await stage.set_up(persistent())
        assert stage.driver.names()[-1] == "NodePublishVolume"


async def test_agents_mount_a_volume_with_the_same_label_one_after_the_other(stage: Managed, tmp_path: Path) -> None:
    """And with none at all once the machine was started without SELinux."""
    (tmp_path / "csi").mkdir()
    add_claim(stage.storage, access_modes=["ReadWriteOncePod"], mount_options=["noatime"])
    source = CSIPersistentVolumeSource(driver=NAME, volume_handle="pv-1")
    volume = stage.storage.volumes["pv-1"]
    stage.storage.volumes["pv-1"] = attrs.evolve(volume, spec=attrs.evolve(volume.spec, csi=source))
    web = with_level(pod("web", claimed()), "s0:c1,c2")
    async with csi_stage(tmp_path / "csi", selinux=True) as csi:
        stage.root, stage.kinds["kubernetes.io/csi"] = csi.root, cast("FakeKind", csi.kind)
        on(csi)
        driver = csi_driver(attach_required=False, se_linux_mount=True)
        csi.cluster.drivers[NAME] = stage.storage.drivers[NAME] = driver
        for labels, options in (
            (MountLabels(FEDORA), ["noatime", OPTION]),
            (MountLabels(FEDORA), ["noatime", OPTION]),
            (MountLabels(), ["noatime"]),
        ):
            stage.labels = labels
            csi.driver.calls.clear()
            async with stage.running() as manager:
                await manager.prepare(web)
            assert csi.driver.names() == ["NodeStageVolume", "NodePublishVolume"]
            assert told(csi, v1.NodeStageVolumeRequest) == told(csi, v1.NodePublishVolumeRequest) == options


@pytest.mark.parametrize(("says", "takes"), [(None, False), (False, False), (True, True)])
async def test_the_drivers_object_says_whether_its_volumes_take_labels(
    tmp_path: Path, says: bool | None, takes: bool
) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.drivers[NAME] = csi_driver(se_linux_mount=says)
        assert stage.kind.takes_mount_label(persistent()) is takes
        assert stage.kind.takes_mount_label(inline()) is takes


async def test_a_driver_without_an_object_takes_none(tmp_path: Path) -> None:
    async with csi_stage(tmp_path) as stage:
        assert not stage.kind.takes_mount_label(persistent())
        stage.cluster.synced = False
        with pytest.raises(TransientVolumeError, match="failed to get CSIDriver"):
            stage.kind.takes_mount_label(persistent())
