"""Volumes of flexVolume drivers: what drivers are asked, and what is done where they leave it to the agent."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.flex.double import NAME, SUCCESS, DriverDouble, is_running
from tests.volumes.set_ups import UID, claimed, mounts_below, persistent_volume, pod_with, request
from tests.volumes.stage import FakeStorage, InlineDisk
from trikubelet.api import ObjectMeta, Quantity, Secret
from trikubelet.linux.mount_table import Mount
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import TransientVolumeError, UncertainVolumeError, VolumeError
from trikubelet.volumes.flex.answers import NotSupportedError
from trikubelet.volumes.flex.driver import MOST_ANSWER, FlexDriver

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import PersistentVolume
    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import MountedVolume, SetUpRequest


@pytest.fixture
def driver(tmp_path: Path) -> DriverDouble:
    return DriverDouble(tmp_path / "exec").install()


def flex(**more: Any) -> dict[str, Any]:
    return {"name": "data", "flexVolume": {"driver": NAME, "fsType": "ext4", "options": {"share": "a"}, **more}}


def disk(name: str = "pv-1", **more: Any) -> PersistentVolume:
    return persistent_volume({"flexVolume": flex(**more)["flexVolume"]}, name)


async def staged(kind: VolumeKind, asked: SetUpRequest) -> MountedVolume:
    at = await kind.stage(asked) if kind.staged else None
    return await kind.set_up(attrs.evolve(asked, staging_path=at))


async def test_a_driver_that_cannot_attach_mounts_for_each_pod(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path, attach=False)
    driver.answers("mount")
    driver.answers("unmount")
    asked = request(kind, pod_with(flex(readOnly=True)))
    assert not kind.staged
    assert not kind.attachable(asked.spec)
    assert kind.unique_name(asked.spec, UID) == f"{NAME}/uid-1-data"
    mounted = await staged(kind, asked)
    path = tmp_path / "pods/uid-1/volumes/vendor~disks/data"
    assert (mounted.path, mounted.read_only) == (path, True)
    assert path.stat().st_mode & 0o777 == 0o750
    [[command, at, told]] = driver.calls()
    assert (command, at) == ("mount", str(path))
    assert json.loads(told) == {
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/pod.name": "pod",
        "kubernetes.io/pod.namespace": asked.pod.metadata.namespace,
        "kubernetes.io/pod.uid": "uid-1",
        "kubernetes.io/pvOrVolumeName": "data",
        "kubernetes.io/readwrite": "ro",
        "kubernetes.io/serviceAccount.name": asked.pod.spec.service_account_name,
        "share": "a",
    }

    found = await kind.reconstruct(UID, "data")
    assert found is not None
    assert kind.unique_name(found, UID) == kind.unique_name(asked.spec, UID)
    await kind.tear_down(UID, "data")
    assert driver.calls() == [["unmount", str(path)]]
    assert not path.exists()
    await kind.tear_down(UID, "data")
    assert driver.calls() == []
    assert await kind.reconstruct(UID, "data") is None


async def test_a_volume_that_is_mounted_is_not_mounted_again(tmp_path: Path, driver: DriverDouble) -> None:
    mounter = FakeMounter()
    kind = driver.kind(tmp_path, mounter, attach=False)
    secret = {"secretRef": {"name": "gone"}}
    asked = request(kind, pod_with(flex(**secret)))
    mounter.mounts.append(Mount(point=asked.path, kind="fuse"))
    assert (await staged(kind, asked)).path == asked.path
    assert driver.calls() == []


async def test_a_driver_that_attaches_mounts_for_the_node_first(tmp_path: Path, driver: DriverDouble) -> None:
    mounter = FakeMounter()
    kind = driver.kind(tmp_path, mounter)
    driver.answers("waitforattach", {"status": "Success", "device": "/dev/sdx"})
    for command in ("mountdevice", "mount", "unmountdevice", "unmount"):
        driver.answers(command)
    asked = claimed(kind, disk(), device_path="/dev/attached")
    assert kind.attachable(asked.spec)
    assert kind.unique_name(asked.spec, UID) == f"{NAME}/pv-1", "as a controller names it"
    at = tmp_path / "plugins/kubernetes.io/flexvolume/vendor/disks/mounts/pv-1"
    await staged(kind, asked)
    calls = driver.calls()
    assert [call[0] for call in calls] == ["waitforattach", "mountdevice", "mount"]
    assert calls[0][1] == "/dev/attached"
    assert calls[1][1:3] == [str(at), "/dev/sdx"]
    assert json.loads(calls[0][2]) == json.loads(calls[1][3])
    assert "kubernetes.io/pod.uid" not in json.loads(calls[0][2])
    assert [kind.unique_name(spec, "") for spec in await kind.staged_volumes()] == [f"{NAME}/pv-1"]
    await kind.tear_down(UID, "pv-1")
    mounter.mounts.append(Mount(point=at, kind="ext4"))
    await kind.stage(asked)
    assert [call[0] for call in driver.calls()] == ["unmount", "waitforattach"], "it is mounted"
    driver.answers("unmountdevice", {"status": "Failure", "message": "busy"})
    with pytest.raises(VolumeError, match="unmountdevice command failed, status: Failure, reason: busy"):
        await kind.unstage("", asked.spec)
    mounter.mounts.clear()
    driver.calls()
    await kind.unstage("", asked.spec)
    assert driver.calls() == [], "nothing is mounted"
    assert not at.exists()
    assert await kind.staged_volumes() == []


async def test_what_a_driver_does_not_support_is_done_by_the_agent_and_not_asked_again(
    tmp_path: Path, driver: DriverDouble
) -> None:
    mounter = FakeMounter()
    kind = driver.kind(tmp_path, mounter)
    asked = claimed(kind, disk())
    at = tmp_path / "plugins/kubernetes.io/flexvolume/vendor/disks/mounts/pv-1"
    await staged(kind, asked)
    assert [call[0] for call in driver.calls()] == ["waitforattach", "mountdevice", "mount"]
    assert mounter.mount_at(asked.path).source == str(at), "bound"
    await kind.tear_down(UID, "pv-1")
    assert not asked.path.exists()
    mounter.mounts.append(Mount(point=at, kind="ext4"))
    await kind.unstage("", asked.spec)
    assert mounter.mounts == []
    assert [call[0] for call in driver.calls()] == ["unmount", "unmountdevice"]
    await staged(kind, asked)
    await kind.tear_down(UID, "pv-1")
    assert driver.calls() == []


async def test_a_device_of_a_driver_that_does_not_mount_is_mounted(
    tmp_path: Path, driver: DriverDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    async def format_and_mount(*told: Any) -> None:
        made.append(told)

    monkeypatch.setattr("trikubelet.volumes.flex.kind.format_and_mount", format_and_mount)
    kind = driver.kind(tmp_path)
    at = await kind.stage(claimed(kind, disk(), read_only=True, device_path="/dev/sdx"))
    assert [(str(device), where, kind, options) for _, device, where, kind, options in made] == [
        ("/dev/sdx", at, "ext4", ["ro"])
    ]


async def test_a_driver_that_can_nothing_is_told_so(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path, attach=False)
    asked = request(kind, pod_with(flex()))
    with pytest.raises(VolumeError, match="expected that it mounts volumes, or devices at least"):
        await staged(kind, asked)
    assert not asked.path.exists()


# Failures


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ('echo \'{"status": "Failure", "message": "no share a"}\'; exit 1', "status: Failure, reason: no share a"),
        (f"echo '{SUCCESS}'; exit 3", "it answered that all is well, and ended with exit status 3"),
        ("echo oops; exit 3", r"expected an answer in JSON.*got 'oops\\n' \(exit status 3\)"),
        ("kill -9 $$", r"expected an answer in JSON.*got '' \(signal 9\)"),
    ],
)
async def test_a_mount_that_fails_leaves_nothing(tmp_path: Path, driver: DriverDouble, script: str, text: str) -> None:
    kind = driver.kind(tmp_path, attach=False)
    driver.does("mount", script)
    asked = request(kind, pod_with(flex()))
    with pytest.raises(VolumeError, match=text) as failed:
        await staged(kind, asked)
    assert not isinstance(failed.value, UncertainVolumeError)
    assert failed.value.problem.startswith("flexVolume driver vendor/disks: mount: ")
    assert not asked.path.exists()


async def test_an_answer_may_come_on_stderr(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path, attach=False)
    driver.does("mount", f"echo '{SUCCESS}' >&2")
    await staged(kind, request(kind, pod_with(flex())))


async def test_a_failure_that_left_something_is_uncertain(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path, attach=False)
    driver.does("mount", 'touch "$2/data"; exit 1')
    asked = request(kind, pod_with(flex()))
    with pytest.raises(UncertainVolumeError):
        await staged(kind, asked)
    assert (asked.path / "data").exists()
    driver.answers("unmount")
    with pytest.raises(VolumeError, match="Directory not empty"):
        await kind.tear_down(UID, "data")
    assert (asked.path / "data").exists(), "it may be the only copy"


async def test_a_driver_that_prints_without_end_is_killed(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path, attach=False)
    driver.does("mount", f"echo $$ > {tmp_path}/pid; while :; do echo yes; done")
    with pytest.raises(UncertainVolumeError, match=f"it was killed, since it printed more than {MOST_ANSWER} bytes"):
        await staged(kind, request(kind, pod_with(flex())))
    assert not is_running(int((tmp_path / "pid").read_text()))


async def test_a_driver_that_does_not_answer_is_not_waited_for(driver: DriverDouble) -> None:
    driver.does("mount", "sleep 1000")
    with pytest.raises(UncertainVolumeError, match="mount: expected an answer within 0 s, got none"):
        await FlexDriver(NAME, driver.program).call("data", "mount", deadline=0.1)


async def test_a_program_that_cannot_be_run_is_named(tmp_path: Path, driver: DriverDouble) -> None:
    driver.program.chmod(0o644)
    with pytest.raises(VolumeError, match=f"mount: cannot run {driver.program}: Permission denied"):
        await FlexDriver(NAME, driver.program).call("data", "mount")
    driver.program.chmod(0o755)
    with pytest.raises(VolumeError, match=r"mount: cannot run .*: embedded null byte"):
        await FlexDriver(NAME, driver.program).call("data", "mount", "a\0b")
    with pytest.raises(NotSupportedError):
        await FlexDriver(NAME, driver.program).call("data", "mount")


async def test_a_device_has_no_flex_volume(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path)
    with pytest.raises(VolumeError, match="no volumes of volumeMode Block"):
        await kind.stage(claimed(kind, disk(), block=True))


# Secrets and groups


def secret(type_: str = NAME) -> FakeStorage:
    storage = FakeStorage()
    found = Secret(metadata=ObjectMeta(name="key"), type=type_, data={"password": b"geheim", "short": b"ab"})
    storage.secrets["default", "key"] = found
    return storage


@pytest.mark.parametrize("persistent", [False, True])
async def test_a_secret_of_the_drivers_type_is_handed_over(
    tmp_path: Path, driver: DriverDouble, persistent: bool
) -> None:
    kind = driver.kind(tmp_path, storage=secret(), attach=False)
    driver.does("mount", 'echo "no: $3" | tr -d \'"\' | sed \'s/.*/{"status": "Failure", "message": "&"}/\'')
    reference = {"name": "key", "namespace": "default"} if persistent else {"name": "key"}
    asked = (
        claimed(kind, disk(secretRef=reference)) if persistent else request(kind, pod_with(flex(secretRef=reference)))
    )
    pod = attrs.evolve(asked.pod, metadata=attrs.evolve(asked.pod.metadata, namespace="default"))
    with pytest.raises(VolumeError) as failed:
        await staged(kind, attrs.evolve(asked, pod=pod))
    [[_, _, told]] = driver.calls()
    assert json.loads(told)["kubernetes.io/secret/password"] == "Z2VoZWlt"
    assert "kubernetes.io/secret/password:***" in failed.value.problem
    assert "Z2VoZWlt" not in failed.value.problem


@pytest.mark.parametrize(
    ("storage", "name", "kind_of_error", "text"),
    [
        (secret("Opaque"), "key", VolumeError, f"cannot get secret of type {NAME}"),
        (secret(), "other", TransientVolumeError, 'couldn\'t get secret default/other err: secrets "other" not found'),
    ],
)
async def test_other_secrets_are_not_its_business(
    tmp_path: Path, driver: DriverDouble, storage: FakeStorage, name: str, kind_of_error: type[VolumeError], text: str
) -> None:
    kind = driver.kind(tmp_path, storage=storage, attach=False)
    asked = claimed(kind, disk(secretRef={"name": name, "namespace": "default"}))
    with pytest.raises(kind_of_error, match=text):
        await staged(kind, asked)
    assert driver.calls() == []
    assert not asked.path.exists()


@pytest.mark.root
@pytest.mark.parametrize(
    ("by_agent", "read_only", "expected"), [(True, False, 4711), (False, False, 0), (True, True, 0)]
)
async def test_files_belong_to_the_pods_group_where_the_driver_lets_them(
    tmp_path: Path, driver: DriverDouble, by_agent: bool, read_only: bool, expected: int
) -> None:
    mounter = Mounter()
    kind = driver.kind(tmp_path / "root", mounter, disk=Disk(), attach=False, fsGroup=by_agent)
    driver.does("mount", f'mount -t tmpfs flex "$2" && touch "$2/data" && echo \'{SUCCESS}\'')
    asked = request(kind, pod_with(flex(readOnly=read_only)), group=4711)
    try:
        await staged(kind, asked)
        assert (asked.path / "data").stat().st_gid == expected
        assert '"kubernetes.io/mounterArgs.FsGroup":"4711"' in driver.calls()[0][2]
    finally:
        await kind.tear_down(UID, "data")
    assert mounts_below(tmp_path) == []
    assert not asked.path.exists()


@pytest.mark.parametrize(
    ("failure", "starts"), [(OSError(errno.EROFS, "Read-only file system"), True), (trio.TooSlowError(), False)]
)
async def test_a_pod_starts_without_a_group_that_its_volume_does_not_take(
    tmp_path: Path, driver: DriverDouble, monkeypatch: pytest.MonkeyPatch, failure: Exception, starts: bool
) -> None:
    async def fail(*_: object, **__: object) -> NoReturn:
        await trio.lowlevel.checkpoint()
        raise failure

    monkeypatch.setattr(InlineDisk, "walk_foreign", fail)
    kind = driver.kind(tmp_path, attach=False, fsGroup=True)
    driver.answers("mount")
    asked = request(kind, pod_with(flex()), group=4711)
    if starts:
        with capture_logs() as lines:
            assert (await staged(kind, asked)).path == asked.path
        assert "a volume is used without its fsGroup" in [line["event"] for line in lines]
    else:
        with pytest.raises(UncertainVolumeError, match="the volume did not answer in time"):
            await staged(kind, asked)


@pytest.mark.root
@pytest.mark.parametrize(("supports", "told"), [(True, True), (False, False)])
async def test_what_a_volume_holds_is_measured_where_the_driver_says_so(
    tmp_path: Path, driver: DriverDouble, supports: bool, told: bool
) -> None:
    kind = driver.kind(tmp_path, disk=Disk(), attach=False, supportsMetrics=supports)
    driver.answers("mount")
    usage = await kind.usage(await staged(kind, request(kind, pod_with(flex()))))
    assert (usage is not None and usage.capacity is not None) == told


# Growth


async def test_a_file_system_grows_by_its_driver(tmp_path: Path, driver: DriverDouble) -> None:
    kind = driver.kind(tmp_path)
    driver.answers("expandfs")
    asked = claimed(kind, disk(), device_path="/dev/sdx")
    await kind.expand(asked, Quantity("2Gi"))
    [[command, _, device, at, new, old]] = driver.calls()
    assert (command, device, at) == (
        "expandfs",
        "/dev/sdx",
        str(tmp_path / "plugins/kubernetes.io/flexvolume/vendor/disks/mounts/pv-1"),
    )
    assert (new, old) == (str(2 << 30), str(2 << 30)), "without a claim nobody knows the old size"


async def test_a_file_system_that_its_driver_does_not_grow_grows_all_the_same(
    tmp_path: Path, driver: DriverDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[str] = []

    async def grow(volume: str, device: Path, at: Path) -> None:
        grown.append(f"{volume} {device} {at.name}")

    monkeypatch.setattr("trikubelet.volumes.flex.kind.grow", grow)
    mounter = FakeMounter()
    kind = driver.kind(tmp_path, mounter)
    asked = claimed(kind, disk())
    with pytest.raises(VolumeError, match="expected a device at"):
        await kind.expand(asked, Quantity("2Gi"))
    at = tmp_path / "plugins/kubernetes.io/flexvolume/vendor/disks/mounts/pv-1"
    mounter.mounts.append(Mount(point=at, kind="ext4", source="/dev/sdy"))
    await kind.expand(asked, Quantity("2Gi"))
    assert grown == ["data /dev/sdy pv-1"]


def test_a_driver_may_leave_growth_to_its_controller(tmp_path: Path, driver: DriverDouble) -> None:
    assert not driver.kind(tmp_path, requiresFSResize=False).grows_on_node
    assert driver.kind(tmp_path).grows_on_node
