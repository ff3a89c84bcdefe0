"""Sessions with iSCSI targets: who ends them, what an earlier agent left of them, how long they are waited for."""

from __future__ import annotations

import itertools
import subprocess
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.scsi.san import INTERFACE, IQN, LOGGING_OUT, OTHER_PORTAL, PORTAL, San, disk, own_disk
from tests.volumes.set_ups import UID, claimed, pod_with, request
from trikubelet.linux.mount_table import Mount
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.kinds import file_systems
from trikubelet.volumes.kinds.programs import Ended
from trikubelet.volumes.scsi import iscsi_session
from trikubelet.volumes.scsi import kind as scsi_kind

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.volumes.model import SetUpRequest
    from trikubelet.volumes.scsi.iscsi import ISCSIKind


# Sessions


@pytest.mark.parametrize("later", ["same target", "block"])
async def test_nobody_is_logged_out_of_what_another_volume_uses(tmp_path: Path, san: San, later: str) -> None:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    first = claimed(kind, disk())
    await kind.stage(first)
    appears = san.folder / "dev/disk/by-path" / f"ip-{PORTAL}-iscsi-{IQN}-lun-1"
    appears.symlink_to("../../sdb")
    san.disk("sdb")
    second = claimed(kind, disk("pv-2", lun=1, portals=[OTHER_PORTAL][:0]), block=later == "block")
    san.calls()
    await kind.stage(second)
    assert not [call for call in san.calls("iscsiadm") if "--login" in call], "there is a session"
    await kind.unstage("", first.spec)
    assert san.deleted("sda")
    assert not san.deleted("sdb")
    assert san.calls("iscsiadm") == []
    assert san.sessions() == ["host2"]
    await kind.unstage("", second.spec)
    assert san.calls("iscsiadm") == LOGGING_OUT


async def test_a_disk_that_another_volume_reaches_over_another_portal_stays(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    san.portal(OTHER_PORTAL, 3, "sdb")
    kind = san.iscsi(tmp_path)
    first, second = claimed(kind, disk()), claimed(kind, disk("pv-2", targetPortal=OTHER_PORTAL))
    for asked in (first, second):
        await kind.stage(asked)
    await kind.unstage("", first.spec)
    assert not san.deleted("sda")
    assert not san.deleted("sdb")
    assert san.sessions() == ["host3"]
    await kind.unstage("", second.spec)
    assert san.deleted("sdb")
    assert san.sessions() == []


async def test_a_name_that_only_begins_alike_is_another_target(tmp_path: Path, san: San) -> None:
    longer = f"{IQN}.more"
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    first = claimed(kind, disk())
    await kind.stage(first)
    san.portal(PORTAL, 3, "sdb", iqn=longer)
    second = claimed(kind, disk("pv-2", iqn=longer))
    await kind.stage(second)
    san.calls()
    await kind.unstage("", second.spec)
    assert [call for call in san.calls("iscsiadm") if "--logout" in call] == [
        f"-m node -p {PORTAL} -T {longer} --logout -I default"
    ]


async def test_a_target_that_a_volume_of_another_agent_uses_is_left(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    asked = claimed(kind, disk())
    await kind.stage(asked)
    (tmp_path / f"plugins/kubernetes.io/iscsi/iface-default/10.0.0.9:3260-{IQN}-lun-7").mkdir()
    san.calls()
    await kind.unstage("", asked.spec)
    assert san.calls("iscsiadm") == []


# After a restart


async def test_what_an_earlier_agent_mounted_is_found_and_undone(tmp_path: Path, san: San) -> None:
    san.portal("10.0.0.1:3260", 2, "sda")
    san.portal(OTHER_PORTAL, 3, "sdb")
    san.multipath("dm-1", "sda", "sdb")
    mounter = FakeMounter()
    before = san.iscsi(tmp_path, mounter)
    asked = claimed(before, disk(targetPortal="10.0.0.1", portals=["10.0.0.2"]))
    at = await before.stage(asked)
    assert at is not None
    mounter.mounts.append(Mount(point=at, source="/dev/sda", kind="ext4", device=(8, 0), id=50))
    await before.set_up(attrs.evolve(asked, staging_path=at))
    bound = mounter.mounts.pop()
    mounter.mounts.append(attrs.evolve(bound, device=(8, 0), root="/"))
    san.calls()

    kind = san.iscsi(tmp_path, mounter)
    found = await kind.reconstruct(UID, "pv-1")
    assert found is not None
    assert kind.unique_name(found, UID) == before.unique_name(asked.spec, UID), "without a port, as it was named"
    [left] = await kind.staged_volumes()
    assert kind.unique_name(left, "") == kind.unique_name(found, UID)
    assert await kind.stage(asked) == at
    assert san.calls() == [], "it is mounted"
    with pytest.raises(VolumeError, match="is still mounted by other references"):
        await kind.unstage("", left)
    await kind.tear_down(UID, "pv-1")
    await kind.unstage("", left)
    assert [call for call in san.calls("iscsiadm") if "--logout" in call] == [
        f"-m node -p {portal} -T {IQN} --logout -I default" for portal in (PORTAL, OTHER_PORTAL)
    ]
    assert await kind.reconstruct(UID, "pv-1") is None
    assert (mounter.mounts, await kind.staged_volumes()) == ([], [])


async def test_a_folder_that_may_be_of_several_disks_is_not_guessed(tmp_path: Path, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    kind = san.iscsi(tmp_path)
    san.disk("sdb")
    for lun, uid in ((0, "uid-1"), (1, "uid-2")):
        own = request(kind, pod_with({"name": "data", "iscsi": own_disk(lun=lun, secretRef=None)}, uid=uid))
        if lun == 1:
            (san.folder / "dev/disk/by-path" / f"ip-{PORTAL}-iscsi-{IQN}-lun-1").symlink_to("../../sdb")
        await kind.stage(own)
    kind.path(UID, "data").mkdir(parents=True)
    with pytest.raises(VolumeError, match="2 disks may be the one"):
        await kind.reconstruct(UID, "data")


async def test_a_record_that_cannot_be_read_is_passed_over(tmp_path: Path, san: San) -> None:
    kind = san.iscsi(tmp_path)
    folder = tmp_path / "plugins/kubernetes.io/iscsi/iface-default"
    folder.mkdir(parents=True)
    for name, text in ((".a.json", "{"), (".b.json", '{"name": 1}'), (".c.json", "[]"), (".d.json", "\xff")):
        (folder / name).write_bytes(text.encode("latin-1"))
    assert await kind.staged_volumes() == []


# Time


@attrs.define
class Programs:
    """The node's programs in memory: real ones and a mock clock do not go together."""

    san: San
    asked: list[str] = attrs.field(factory=list)
    hang: str = ""
    slow: str = ""
    with_effect: bool = False
    """The doubles do what they are asked, between two waits."""

    async def run(self, volume: str, name: str, arguments: Any, **_: object) -> Ended:
        call = " ".join([name, *arguments])
        self.asked.append(call)
        await trio.sleep(5 if self.slow and self.slow in call else 1)
        if self.hang and self.hang in call:
            await trio.sleep_forever()
        if self.with_effect:
            program = self.san.folder / "bin" / name
            subprocess.run([program, *arguments], capture_output=True, check=False)  # noqa: ASYNC221  (time stands still)
            await trio.sleep(1)
        return Ended(0, "", INTERFACE if "show" in call else "TYPE=ext4")


@pytest.fixture
def programs(san: San, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(san)
    for module in (iscsi_session, scsi_kind, file_systems):
        monkeypatch.setattr(module, "run_program", found.run)
    return found


def logged_in(san: San, portal: str, *, link: bool) -> None:
    """There is a session with the target over the portal."""
    appears = san.folder / "portals" / portal / "appears"
    for path in sorted(appears.rglob("*")):
        target = san.folder / path.relative_to(appears)
        if path.is_symlink():
            if link:
                target.symlink_to(path.readlink())
        elif path.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            target.write_bytes(path.read_bytes())


async def test_a_disk_that_does_not_appear_is_waited_for_for_half_a_minute(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock
) -> None:
    san.portal(PORTAL, 2, "sda")
    logged_in(san, PORTAL, link=False)
    began = trio.current_time()
    link = f"ip-{PORTAL}-iscsi-{IQN}-lun-0"
    with pytest.raises(UncertainVolumeError, match=f"Timed out waiting for device at path .*{link} after 30s"):
        await san.iscsi(tmp_path).stage(claimed(san.iscsi(tmp_path), disk()))
    assert trio.current_time() - began == 30
    assert not [call for call in programs.asked if "--login" in call]


async def test_a_disk_is_used_as_soon_as_it_appears(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock
) -> None:
    san.portal(PORTAL, 2, "sda")
    logged_in(san, PORTAL, link=False)

    async def appear() -> None:
        await trio.sleep(5.5)
        logged_in(san, PORTAL, link=True)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(appear)
        await san.iscsi(tmp_path).stage(claimed(san.iscsi(tmp_path), disk()))
    asked = [call.split()[0] for call in programs.asked]
    assert asked == ["iscsiadm", "blkid", "fsck", "mount"]
    assert trio.current_time() - began == 1 + 5 + 3


async def test_a_multipath_device_is_waited_for_where_there_should_be_one(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock
) -> None:
    for portal, number, name in ((PORTAL, 2, "sda"), (OTHER_PORTAL, 3, "sdb")):
        san.portal(portal, number, name)
        logged_in(san, portal, link=True)
    began = trio.current_time()
    await san.iscsi(tmp_path).stage(claimed(san.iscsi(tmp_path), disk(portals=[OTHER_PORTAL])))
    assert trio.current_time() - began == 1 + 9 + 3
    assert str(san.device("sda")) in programs.asked[-1], "one path has to do"


async def test_a_login_that_hangs_ends_some_time(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock
) -> None:
    programs.hang = "--login"
    began = trio.current_time()
    with pytest.raises(UncertainVolumeError, match=r"no path to .* within 900 s"):
        await san.iscsi(tmp_path).stage(claimed(san.iscsi(tmp_path), disk()))
    assert trio.current_time() - began == 901


def two_units(tmp_path: Path, san: San) -> tuple[ISCSIKind, SetUpRequest, SetUpRequest]:
    """Of one target."""
    san.portal(PORTAL, 2, "sda")
    san.disk("sdb")
    san.link(san.folder, "by-path", f"ip-{PORTAL}-iscsi-{IQN}-lun-1", "sdb")
    kind = san.iscsi(tmp_path)
    return kind, claimed(kind, disk()), claimed(kind, disk("pv-2", lun=1))


async def test_two_volumes_of_a_target_log_in_once(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock
) -> None:
    programs.with_effect = True
    kind, first, second = two_units(tmp_path, san)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kind.stage, first)
        nursery.start_soon(kind.stage, second)
    assert len([call for call in programs.asked if "--login" in call]) == 1


@pytest.mark.parametrize("later", range(8))
async def test_nobody_is_logged_out_while_another_volume_comes(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock, later: int
) -> None:
    programs.with_effect, programs.slow = True, "--logout"
    kind, first, second = two_units(tmp_path, san)
    await kind.stage(first)

    async def come() -> None:
        await trio.sleep(later)
        await kind.stage(second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        nursery.start_soon(kind.unstage, "", first.spec)
    assert san.sessions() == ["host2"]
    await kind.unstage("", second.spec)
    assert san.sessions() == []


@pytest.mark.parametrize("undoing", [False, True])
async def test_whenever_an_agent_ends_the_next_one_finds_what_is_left(
    tmp_path: Path, san: San, programs: Programs, autojump_clock: MockClock, undoing: bool
) -> None:
    programs.with_effect = True
    san.portal(PORTAL, 2, "sda")
    interrupted = 0
    for moment in itertools.count():
        root = tmp_path / f"root-{moment}"
        kind = san.iscsi(root)
        asked = claimed(kind, disk(initiatorName="iqn.2000-01.node:me"))
        if undoing:
            await kind.stage(asked)
        with trio.move_on_after(moment + 0.5) as scope:
            await (kind.unstage("", asked.spec) if undoing else kind.stage(asked))
        following = san.iscsi(root)
        for spec in await following.staged_volumes():
            await following.unstage("", spec)
        assert san.sessions() == [], f"ended after {moment} s"
        assert [path.name for path in root.rglob("*") if not path.is_dir()] == [], f"ended after {moment} s"
        if not scope.cancelled_caught:
            break
        interrupted += 1
    assert interrupted > (5 if undoing else 20)
