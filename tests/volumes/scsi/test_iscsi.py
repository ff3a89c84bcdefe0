"""iSCSI disks, against a double of iscsiadm, sysfs and /dev: what is asked of them, and in which order."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.scsi.san import (
    FOLDER,
    INTERFACE,
    IQN,
    LOGGING_IN,
    LOGGING_OUT,
    OTHER_PORTAL,
    PORTAL,
    San,
    disk,
    own_disk,
    staged,
)
from tests.volumes.set_ups import UID, claimed, persistent_volume, pod_with, request
from tests.volumes.stage import FakeStorage, InlineDisk
from trikubelet.api import ObjectMeta, Secret
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.scsi.iscsi_session import ISCSIAdm, parse_interface

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import SetUpRequest


async def test_a_disk_is_logged_in_to_mounted_once_and_bound_for_each_pod(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    mounter = FakeMounter()
    kind = san.iscsi(tmp_path, mounter)
    asked = claimed(kind, disk(spec={"mountOptions": ["noatime", "commit=7"]}))
    at = tmp_path / FOLDER
    assert kind.attachable(asked.spec)
    assert kind.unique_name(asked.spec, UID) == f"kubernetes.io/iscsi/{PORTAL}:{IQN}:0"

    assert await kind.stage(asked) == at
    assert san.calls("iscsiadm") == LOGGING_IN
    assert san.scanned(2) == "0 0 0"
    assert json.loads((at / "iscsi.json").read_text()) == {
        "VolName": "pv-1",
        "Portals": [PORTAL],
        "Iqn": IQN,
        "Lun": "0",
        "InitIface": "default",
        "Iface": "default",
        "InitiatorName": "",
    }, "as the kubelet writes it"
    mounted = await staged(kind, asked)
    path = tmp_path / "pods/uid-1/volumes/kubernetes.io~iscsi/pv-1"
    assert (mounted.path, mounted.read_only) == (path, False)
    bound = mounter.mount_at(path)
    assert (bound.source, bound.options) == (str(at), ("noatime",))

    await kind.tear_down(UID, "pv-1")
    assert not path.exists()
    san.calls()
    await kind.unstage("", asked.spec)
    assert san.calls("iscsiadm") == LOGGING_OUT
    assert san.deleted("sda")
    assert san.sessions() == []
    assert await kind.staged_volumes() == []
    assert not at.parent.exists()
    await kind.unstage("", asked.spec)
    assert san.calls() == [], "all was undone"


@pytest.mark.parametrize(
    ("read_only", "options", "expected"),
    [(False, [], "defaults"), (True, ["nouuid"], "nouuid,ro,defaults"), (False, ["discard"], "discard,defaults")],
)
async def test_a_disk_is_mounted_as_its_volume_says(
    tmp_path: Path, san: San, read_only: bool, options: list[str], expected: str
) -> None:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    volume = disk(fsType="xfs", spec={"mountOptions": options})
    mounted = await staged(kind, claimed(kind, volume, read_only=read_only))
    assert f"-t xfs -o {expected} {san.device('sda')} {tmp_path / FOLDER}" in san.calls("mount")
    assert mounted.read_only == read_only


async def test_a_pods_own_disk_has_what_its_pod_says(tmp_path: Path, san: San) -> None:
    san.portal("10.0.0.1:3260", 2, "sda", lun=5)
    mounter = FakeMounter()
    kind = san.iscsi(tmp_path, mounter)
    own = {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 5, "iscsiInterface": "default", "readOnly": True}
    asked = request(kind, pod_with({"name": "data", "iscsi": own}))
    mounted = await staged(kind, asked)
    assert mounted.read_only
    assert kind.unique_name(asked.spec, UID) == f"kubernetes.io/iscsi/10.0.0.1:{IQN}:5", "as a controller names it"
    assert san.calls("mount") == [
        f"-t ext4 -o ro,defaults {san.device('sda')} "
        f"{tmp_path}/plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-5"
    ]
    assert mounter.mount_at(asked.path).options == ("ro",)


@pytest.mark.parametrize(
    ("failure", "starts"), [(OSError(errno.EROFS, "Read-only file system"), True), (trio.TooSlowError(), False)]
)
@pytest.mark.parametrize("kind_of_disk", ["iscsi", "fc"])
async def test_a_pod_starts_without_a_group_that_its_disk_does_not_take(
    tmp_path: Path, san: San, kind_of_disk: str, failure: Exception, starts: bool
) -> None:
    san.portal(PORTAL, 2, "sda")
    failing = FailingWalks(failure)
    kind: VolumeKind = san.iscsi(tmp_path, disk=failing)
    volume = disk()
    if kind_of_disk == "fc":
        san.link(san.folder, "by-id", "scsi-3600", "sda")
        kind, volume = san.fibre_channel(tmp_path, disk=failing), persistent_volume({"fc": {"wwids": ["3600"]}})
    asked = claimed(kind, volume, group=4711)
    if starts:
        with capture_logs() as lines:
            assert (await staged(kind, asked)).path == asked.path
        [problem] = [line["problem"] for line in lines if line["event"] == "a volume is used without its fsGroup"]
        assert problem == "applyFSGroup failed for vol data: [Errno 30] Read-only file system"
    else:
        with pytest.raises(VolumeError, match="the volume did not answer in time"):
            await staged(kind, asked)


class FailingWalks(InlineDisk):
    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self._failure = failure

    async def walk_foreign(self, where: object, work: object, *, deadline: float) -> NoReturn:
        await trio.lowlevel.checkpoint()
        raise self._failure


# Block


async def test_a_device_has_the_kubelets_record_in_its_map_folder(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    asked = claimed(kind, disk(), block=True)
    await kind.stage(asked)
    at = tmp_path / FOLDER.replace("iscsi/", "iscsi/volumeDevices/", 1)
    assert json.loads((at / "iscsi.json").read_text())["Portals"] == [PORTAL]
    (at / "uid-2").touch()
    with pytest.raises(VolumeError, match=r"is still referenced from other Pods \[[^ ]*/uid-2\]"):
        await kind.unstage("", asked.spec)
    assert (at / "iscsi.json").exists()
    (at / "uid-2").unlink()
    await kind.unstage("", asked.spec)
    assert not at.parent.exists()


# Secrets


def secret(**data: bytes) -> FakeStorage:
    storage = FakeStorage()
    storage.secrets["default", "chap"] = Secret(
        metadata=ObjectMeta(name="chap"), data={key.replace("__", "."): value for key, value in data.items()}
    )
    return storage


async def test_a_target_is_told_who_the_node_is_and_nobody_else(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    storage = secret(
        discovery__sendtargets__auth__username=b"finder",
        discovery__sendtargets__auth__password=b"geheim",
        node__session__auth__username=b"user",
        node__session__auth__password=b"verrat",
        node__session__auth__username_in=b"target",
        node__session__auth__password_in=b"mutual",
    )
    kind = san.iscsi(tmp_path, storage=storage)
    chap: dict[str, Any] = {
        "chapAuthDiscovery": True,
        "chapAuthSession": True,
        "secretRef": {"name": "chap", "namespace": "default"},
    }
    await kind.stage(claimed(kind, disk(**chap)))
    discovery = f"-m discoverydb -t sendtargets -p {PORTAL} -I default -o update -n discovery.sendtargets.auth"
    node = f"-m node -p {PORTAL} -T {IQN} -I default -o update -n node.session.auth"
    assert [call for call in san.calls("iscsiadm") if "auth" in call] == [
        f"{discovery}.authmethod -v CHAP",
        f"{discovery}.username -v finder",
        f"{discovery}.password -v geheim",
        f"{node}.authmethod -v CHAP",
        f"{node}.username -v user",
        f"{node}.password -v verrat",
        f"{node}.username_in -v target",
        f"{node}.password_in -v mutual",
    ]
    kept = [path.read_text() for path in (tmp_path / "plugins").rglob("*") if path.is_file()]
    assert kept
    assert not any(word in text for text in kept for word in ("geheim", "verrat", "mutual"))


async def test_a_password_is_in_no_error(tmp_path: Path, san: San) -> None:
    san.program(
        "iscsiadm", f'case "$*" in *show*) cat {san.folder}/interface ;; *geheim*) echo "no $*"; exit 7 ;; esac'
    )
    storage = secret(node__session__auth__password=b"geheim")
    kind = san.iscsi(tmp_path, storage=storage)
    asked = request(kind, pod_with({"name": "data", "iscsi": own_disk(chapAuthSession=True)}, namespace="default"))
    with pytest.raises(UncertainVolumeError) as failed:
        await kind.stage(attrs.evolve(asked, pod=in_default(asked)))
    assert "node.session.auth.password -v ***" in failed.value.problem
    assert "geheim" not in failed.value.problem


def in_default(asked: SetUpRequest) -> Any:
    return attrs.evolve(asked.pod, metadata=attrs.evolve(asked.pod.metadata, namespace="default"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, 'couldn\'t get secret default/other error: secrets "other" not found'),
        ({"key": b"\xff"}, "expected text in secret default/chap, got bytes that are not UTF-8"),
    ],
)
async def test_without_its_secret_nobody_logs_in(tmp_path: Path, san: San, data: dict[str, bytes], text: str) -> None:
    kind = san.iscsi(tmp_path, storage=secret(**data))
    reference = {"name": "chap" if data else "other", "namespace": "default"}
    with pytest.raises(UncertainVolumeError, match=text):
        await kind.stage(claimed(kind, disk(chapAuthSession=True, secretRef=reference)))
    assert san.calls() == []


# Interfaces


async def test_another_name_for_the_node_is_an_interface_of_its_own(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    asked = claimed(kind, disk(initiatorName="iqn.2000-01.node:me", iscsiInterface="fast"))
    own = f"{PORTAL}:pv-1"
    assert await kind.stage(asked) == tmp_path / f"plugins/kubernetes.io/iscsi/iface-{own}/{PORTAL}-{IQN}-lun-0"
    calls = san.calls("iscsiadm")
    assert calls[:6] == [
        "-m iface -I fast -o show",
        "-m iface -I fast -o show",
        f"-m iface -I {own} -o new",
        f"-m iface -I {own} -o update -n iface.initiatorname -v iqn.2000-01.node:me",
        f"-m iface -I {own} -o update -n iface.mtu -v 0",
        f"-m iface -I {own} -o update -n iface.transport_name -v tcp",
    ]
    assert f"-m node -p {PORTAL} -T {IQN} -I {own} --login" in calls
    await kind.unstage("", asked.spec)
    assert san.calls("iscsiadm")[-1] == f"-m iface -I {own} -o delete"


async def test_an_interface_of_somebody_else_is_never_removed(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    san.refuse(PORTAL)
    kind = san.iscsi(tmp_path)
    asked = claimed(kind, disk(iscsiInterface="fast"))
    with pytest.raises(UncertainVolumeError):
        await kind.stage(asked)
    await kind.unstage("", asked.spec)
    assert not [call for call in san.calls("iscsiadm") if call.startswith("-m iface") and "delete" in call]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (INTERFACE, {"iface.transport_name": "tcp", "iface.mtu": "0"}),
        (INTERFACE.replace("tcp", "cxgb4i"), {"iface.transport_name": "cxgb4i", "iface.mtu": "0"}),
        (INTERFACE.replace("tcp", "<empty>"), {"iface.mtu": "0"}),
        ("iface.iscsi_ifacename=error", None),
        ("iface.iscsi_ifacename + error", None),
    ],
)
def test_what_is_shown_of_an_interface_is_understood(shown: str, expected: dict[str, str] | None) -> None:
    assert parse_interface(shown) == expected


@pytest.mark.parametrize(("transport", "expected"), [("tcp", "tcp"), ("cxgb4i", "cxgb4i"), ("<empty>", "tcp")])
async def test_an_interface_has_a_transport(san: San, transport: str, expected: str) -> None:
    (san.folder / "interface").write_text(INTERFACE.replace("tcp", transport))
    assert await ISCSIAdm("data").transport("default") == expected


async def test_an_interface_without_a_transport_is_refused(san: San) -> None:
    (san.folder / "interface").write_text("iface.iscsi_ifacename = default\n")
    with pytest.raises(VolumeError, match="could not parse iface file for default"):
        await ISCSIAdm("data").transport("default")


async def test_a_card_that_speaks_iscsi_itself_has_other_links(tmp_path: Path, san: San) -> None:
    (san.folder / "interface").write_text(INTERFACE.replace("tcp", "cxgb4i"))
    san.portal(PORTAL, 2, "sda")
    by_path = san.folder / "portals" / PORTAL / "appears/dev/disk/by-path"
    [link] = by_path.iterdir()
    link.rename(by_path / f"pci-0000:00:00.0-{link.name}")
    kind = san.iscsi(tmp_path)
    await kind.stage(claimed(kind, disk()))
    assert str(san.device("sda")) in san.calls("mount")[0]


# Paths


async def test_a_disk_on_several_portals_is_used_by_its_multipath_device(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    san.portal(OTHER_PORTAL, 3, "sdb")
    multipath = san.multipath("dm-1", "sda", "sdb")
    kind = san.iscsi(tmp_path)
    asked = claimed(kind, disk(portals=["10.0.0.2", PORTAL]))
    await kind.stage(asked)
    assert str(multipath) in san.calls("mount")[0]
    assert san.sessions() == ["host2", "host3"]
    await kind.unstage("", asked.spec)
    calls = san.calls()
    assert f"multipath -f {multipath}" in calls
    assert san.deleted("sda")
    assert san.deleted("sdb")
    assert [call for call in calls if "--logout" in call] == [
        f"iscsiadm -m node -p {portal} -T {IQN} --logout -I default" for portal in (PORTAL, OTHER_PORTAL)
    ]
    assert calls.index(f"multipath -f {multipath}") < calls.index(f"iscsiadm {LOGGING_OUT[0]}")


async def test_a_portal_that_is_away_is_tried_again_and_done_without(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    san.portal(OTHER_PORTAL, 3, "sdb")
    third = "[fd00::1]:3260"
    san.portal(third, 4, "sdc")
    san.refuse(PORTAL)
    san.multipath("dm-1", "sdb", "sdc")
    kind = san.iscsi(tmp_path)
    await kind.stage(claimed(kind, disk(portals=[OTHER_PORTAL, third])))
    calls = san.calls("iscsiadm")
    assert len([call for call in calls if "--discover" in call and PORTAL in call]) == 2, "two paths are enough then"
    assert f"-m discoverydb -t sendtargets -p {PORTAL} -I default -o delete" in calls
    assert len([call for call in calls if "--login" in call]) == 2


async def test_no_path_leaves_the_volume_uncertain_and_nothing_when_it_is_taken_down(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    san.refuse(PORTAL, "--login")
    kind = san.iscsi(tmp_path)
    asked = claimed(kind, disk())
    with pytest.raises(UncertainVolumeError) as failed:
        await kind.stage(asked)
    assert failed.value.problem == (
        "failed to get any path for iscsi disk, last err seen:\n"
        f"iscsi: failed to attach disk: Error: iscsiadm: no, -m node -p {PORTAL} -T {IQN} -I default --login (4)"
    )
    assert f"-m node -p {PORTAL} -I default -T {IQN} -o delete" in san.calls("iscsiadm")
    assert [spec.inner_name for spec in await kind.staged_volumes()] == ["pv-1"]
    await kind.unstage("", asked.spec)
    assert await kind.staged_volumes() == []
    assert not (tmp_path / FOLDER).parent.exists()


async def test_a_node_without_the_program_says_what_to_install(
    tmp_path: Path, san: San, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.volumes.kinds.programs._SYSTEM", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    kind = san.iscsi(tmp_path)
    with pytest.raises(VolumeError, match="iscsiadm is not installed on the node: install open-iscsi or"):
        await kind.stage(claimed(kind, disk()))


# Names


@pytest.mark.parametrize(
    "source",
    [
        {"iscsiInterface": "../../../etc"},
        {"targetPortal": "../x"},
        {"iqn": "iqn.2014-12.com.example:a/../b"},
    ],
)
async def test_a_name_that_climbs_is_refused(tmp_path: Path, san: San, source: dict[str, Any]) -> None:
    kind = san.iscsi(tmp_path)
    with pytest.raises(VolumeError, match="without slashes"):
        await kind.stage(claimed(kind, disk(**source)))
    assert san.calls() == []
    assert not (tmp_path / "plugins").exists()


@pytest.mark.parametrize(
    ("portal", "expected"),
    [("127.0.0.1", "127.0.0.1:3260"), ("127.0.0.1:3260", "127.0.0.1:3260"), ("[fd00::1]:860", "[fd00::1]:860")],
)
def test_a_portal_has_a_port(tmp_path: Path, san: San, portal: str, expected: str) -> None:
    kind = san.iscsi(tmp_path)
    found = kind.disk_of(claimed(kind, disk(targetPortal=portal, iqn="eui.02004567A425678D")).spec)
    assert found.folder == f"iface-default/{expected}-eui.02004567A425678D-lun-0"
    assert found.name == f"{portal}:eui.02004567A425678D:0"
