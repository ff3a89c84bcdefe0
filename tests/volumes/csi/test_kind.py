"""Volumes of CSI drivers, from staging to nothing left."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from grpclib import Status

from tests.csi_driver import CAPABILITIES, Fault, Faults
from tests.volumes.csi.stage import EXPIRES, NAME, OTHER_POD, InlineDisk, csi_driver, csi_stage, inline, persistent
from trikubelet.api import Quantity, SecretReference
from trikubelet.api.csi_objects import CSITokenRequest
from trikubelet.api.references import LocalObjectReference
from trikubelet.linux.mount_table import Mount
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi import rules
from trikubelet.volumes.csi.rules import TOKENS_KEY, Capability
from trikubelet.volumes.errors import NotExpandedError, TransientVolumeError, UncertainVolumeError, VolumeError
from trikubelet.volumes.expansion import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

POD_FOLDER = "pods/uid-web/volumes/kubernetes.io~csi"
WITHOUT_STAGING = CAPABILITIES - {Capability.STAGE_UNSTAGE_VOLUME}
SECRET = SecretReference(name="key", namespace="storage")


async def test_a_volume_is_staged_published_and_undone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach(devicePath="/dev/sdx")
        spec = persistent(fs_type="ext4", volume_attributes={"tier": "gold"}, spec={"mount_options": ("noatime",)})
        mounted = await stage.set_up(spec)

        target = stage.root / POD_FOLDER / "pv-1" / "mount"
        assert mounted.path == target
        assert (target / "volume").read_text() == "vol%2F1"
        stages = stage.driver.last(v1.NodeStageVolumeRequest)
        publishes = stage.driver.last(v1.NodePublishVolumeRequest)
        for request in (stages, publishes):
            assert request.volume_id == "vol/1"
            assert request.publish_context == {"devicePath": "/dev/sdx"}
            assert request.volume_context == {"tier": "gold"}
            assert request.volume_capability.mount.mount_flags == ["noatime"]
            assert request.volume_capability.mount.fs_type == "ext4"
        assert stages.staging_target_path == publishes.staging_target_path
        assert stages.staging_target_path.endswith("/globalmount")
        assert (publishes.target_path, publishes.readonly) == (str(target), False)

        await stage.kind.tear_down("uid-web", "pv-1")
        await stage.kind.unstage(stage.kind.unique_name(spec, "uid-web"), spec)
        assert stage.driver.names() == [
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeUnpublishVolume",
            "NodeUnstageVolume",
        ]
        assert stage.left() == ["pods/uid-web", "pods/uid-web/volumes", POD_FOLDER]


async def test_a_driver_that_cannot_stage_is_not_asked_to(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path, capabilities=WITHOUT_STAGING) as stage:
        stage.cluster.attach()
        spec = persistent()
        assert await stage.kind.stage(stage.request(spec)) is None
        await stage.set_up(spec)
        assert stage.driver.last(v1.NodePublishVolumeRequest).staging_target_path == ""
        await stage.kind.tear_down("uid-web", "pv-1")
        await stage.kind.unstage("", spec)
        assert stage.driver.names() == ["NodePublishVolume", "NodeUnpublishVolume"]


async def test_everything_may_be_done_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent()
        assert await stage.set_up(spec) == await stage.set_up(spec)
        for _ in range(2):
            await stage.kind.tear_down("uid-web", "pv-1")
        for _ in range(2):
            await stage.kind.unstage("", spec)
        assert stage.driver.names().count("NodeUnpublishVolume") == 1
        assert stage.driver.names().count("NodeUnstageVolume") == 1


async def test_an_inline_volume_is_its_pods_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.drivers[NAME] = csi_driver(volume_lifecycle_modes=("Ephemeral",), pod_info_on_mount=True)
        spec = inline(volume_attributes={"size": "1Gi"}, fs_type="ext4", read_only=True)
        assert not stage.kind.attachable(spec)
        mounted = await stage.set_up(spec)
        assert mounted.read_only
        request = stage.driver.last(v1.NodePublishVolumeRequest)
        assert request.volume_id == rules.inline_handle("uid-web", "own")
        assert (request.staging_target_path, request.readonly) == ("", True)
        assert request.volume_context["size"] == "1Gi"
        assert request.volume_context["csi.storage.k8s.io/ephemeral"] == "true"
        assert request.volume_context["csi.storage.k8s.io/pod.name"] == "web"
        await stage.kind.tear_down("uid-web", "own")
        await stage.kind.unstage("", spec)
        assert stage.driver.names() == ["NodePublishVolume", "NodeUnpublishVolume"]


async def test_an_inline_volume_needs_a_driver_that_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        with pytest.raises(TransientVolumeError, match="no CSIDriver object"):
            await stage.set_up(inline())
        stage.cluster.drivers[NAME] = csi_driver()
        with pytest.raises(TransientVolumeError, match="only supports"):
            await stage.set_up(inline())
        assert stage.driver.names() == []


async def test_a_driver_that_needs_no_attaching_has_no_publish_context(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with csi_stage(tmp_path) as stage:
        assert stage.kind.attachable(persistent())
        stage.cluster.drivers[NAME] = csi_driver(attach_required=False)
        assert not stage.kind.attachable(persistent())
        await stage.set_up(persistent())
        assert stage.driver.last(v1.NodePublishVolumeRequest).publish_context == {}


async def test_nothing_is_tried_before_it_is_known_what_to_say(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        spec = persistent(node_stage_secret_ref=SECRET)
        stage.cluster.synced = False
        for refused in (stage.kind.set_up, stage.kind.stage):
            with pytest.raises(TransientVolumeError, match="not yet synced"):
                await refused(stage.request(spec))
        with pytest.raises(TransientVolumeError, match="not yet synced"):
            stage.kind.attachable(spec)
        assert not stage.kind.refreshes(spec)
        stage.cluster.synced = True
        with pytest.raises(TransientVolumeError, match=r"failed to get volume attachment \[id=csi-[0-9a-f]{64}\]"):
            await stage.kind.stage(stage.request(spec))
        stage.cluster.attach()
        with pytest.raises(TransientVolumeError, match=r"fetching NodeStageSecretRef storage/key failed: .*not found"):
            await stage.kind.stage(stage.request(spec))
        assert stage.driver.names() == []
        assert stage.left() == []


async def test_an_unregistered_driver_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path, register=False) as stage:
        with pytest.raises(TransientVolumeError) as caught:
            await stage.kind.set_up(stage.request(persistent()))
    assert caught.value.problem == (
        f"kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "
        f"driver name {NAME} not found in the list of registered CSI drivers"
    )


async def test_secrets_go_to_the_driver_and_nowhere_else(
    tmp_path: Path, autojump_clock: MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = Faults({"NodePublishVolume": Fault("error", Status.INTERNAL, "bad pa55word-2", times=1)})
    async with csi_stage(tmp_path, faults=faults) as stage:
        stage.cluster.attach()
        stage.cluster.add_secret("storage", "key", user=b"admin", password=b"pa55word-1")
        stage.cluster.add_secret("storage", "key2", password=b"pa55word-2")
        spec = persistent(
            node_stage_secret_ref=SECRET,
            node_publish_secret_ref=SecretReference(name="key2", namespace="storage"),
        )
        with pytest.raises(VolumeError) as caught:
            await stage.set_up(spec)
        await stage.set_up(spec)
        assert stage.driver.last(v1.NodeStageVolumeRequest).secrets == {"user": "admin", "password": "pa55word-1"}
        assert stage.driver.last(v1.NodePublishVolumeRequest).secrets == {"password": "pa55word-2"}
        assert "pa55word" not in str(caught.value)
        for file in stage.root.rglob("*.json"):
            assert "pa55word" not in file.read_text()
    assert "pa55word" not in "".join(capfd.readouterr())


async def test_a_secret_that_is_no_text_is_refused_without_showing_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        stage.cluster.add_secret("storage", "key", blob=b"\xff\xfe-private")
        with pytest.raises(VolumeError, match="expected text under key blob") as caught:
            await stage.set_up(persistent(node_publish_secret_ref=SECRET))
        assert "private" not in str(caught.value)
        assert caught.value.__cause__ is None


async def test_an_inline_volumes_secret_is_read_in_the_pods_namespace(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.drivers[NAME] = csi_driver(volume_lifecycle_modes=("Ephemeral",))
        stage.cluster.add_secret("shop", "key", a=b"b")
        await stage.set_up(inline(node_publish_secret_ref=LocalObjectReference(name="key")))
        assert stage.driver.last(v1.NodePublishVolumeRequest).secrets == {"a": "b"}


TOKEN_REQUESTS = (CSITokenRequest(audience="vault", expiration_seconds=3600), CSITokenRequest())


@pytest.mark.parametrize("in_secrets", [False, True])
async def test_the_driver_gets_the_tokens_that_it_wants(
    tmp_path: Path, autojump_clock: MockClock, in_secrets: bool
) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        stage.cluster.drivers[NAME] = csi_driver(
            token_requests=TOKEN_REQUESTS, service_account_token_in_secrets=in_secrets
        )
        mounted = await stage.set_up(persistent())
        request = stage.driver.last(v1.NodePublishVolumeRequest)
        holder, other = request.volume_context, request.secrets
        if in_secrets:
            holder, other = other, holder
        assert TOKENS_KEY not in other
        tokens = json.loads(holder[TOKENS_KEY])
        assert tokens["vault"]["token"] == "token-of-web-for-vault-3600"
        assert tokens[""]["token"] == "token-of-web-for--None"
        assert TOKENS_KEY not in stage.driver.last(v1.NodeStageVolumeRequest).volume_context
        assert mounted.refresh_at is None, "a driver that is not published to again gets no newer ones"


async def test_without_tokens_nothing_is_published(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        stage.cluster.drivers[NAME] = csi_driver(token_requests=TOKEN_REQUESTS)
        stage.cluster.tokens = False
        with pytest.raises(TransientVolumeError, match="service account token attributes: the API server is away"):
            await stage.set_up(persistent())
        assert stage.driver.names() == ["NodeStageVolume"]


async def test_a_driver_may_want_to_publish_again_and_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        assert not stage.kind.refreshes(persistent())
        stage.cluster.drivers[NAME] = csi_driver(requires_republish=True)
        assert stage.kind.refreshes(persistent())
        mounted = await stage.set_up(persistent())
        assert mounted.refresh_at is not None
        assert timedelta(seconds=60) <= mounted.refresh_at - stage.clock.now() <= timedelta(seconds=91)


@pytest.mark.parametrize(("renew_in", "refresh_in"), [(30, 30), (-300, 10)])
async def test_a_token_that_is_due_is_not_waited_with(
    tmp_path: Path, autojump_clock: MockClock, renew_in: int, refresh_in: int
) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        stage.cluster.drivers[NAME] = csi_driver(requires_republish=True, token_requests=TOKEN_REQUESTS)
        renew_at = stage.clock.now() + timedelta(seconds=renew_in)
        stage.cluster.token_life = (EXPIRES - renew_at) / 0.2
        mounted = await stage.set_up(persistent())
        assert mounted.refresh_at is not None
        assert (mounted.refresh_at - stage.clock.now()).total_seconds() == pytest.approx(refresh_in, abs=1)


async def test_a_refusal_leaves_nothing_behind(tmp_path: Path, autojump_clock: MockClock) -> None:
    faults = Faults({name: Fault("error") for name in ("NodeStageVolume", "NodePublishVolume")})
    async with csi_stage(tmp_path, faults=faults) as stage:
        stage.cluster.attach()
        with pytest.raises(VolumeError, match="code = Internal desc = the test wants it so") as caught:
            await stage.set_up(persistent())
        assert type(caught.value) is VolumeError
        assert [path for path in stage.left() if "vol_data" in path or "globalmount" in path] == []
        del faults.by_call["NodeStageVolume"]
        with pytest.raises(VolumeError, match="code = Internal"):
            await stage.set_up(persistent())
        assert not (stage.root / POD_FOLDER / "pv-1").exists()


@pytest.mark.parametrize("options", [{"refresh": True}, {"reconstructed": True}])
async def test_a_failed_refresh_leaves_the_volume_as_it_was(
    tmp_path: Path, autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    faults = Faults()
    async with csi_stage(tmp_path, faults=faults) as stage:
        stage.cluster.attach()
        spec = persistent()
        mounted = await stage.set_up(spec)
        faults.by_call["NodePublishVolume"] = Fault("error")
        with pytest.raises(VolumeError):
            await stage.kind.set_up(stage.request(spec, **options))
        assert mounted.path is not None
        assert (mounted.path / "volume").exists()
        assert (mounted.path.parent / "vol_data.json").exists()


@pytest.mark.parametrize("rpc", ["NodeStageVolume", "NodePublishVolume"])
@pytest.mark.parametrize("kind", ["hang", "lost", "late"])
async def test_a_lost_answer_leaves_what_is_needed_to_undo(
    tmp_path: Path, autojump_clock: MockClock, rpc: str, kind: Any
) -> None:
    async with csi_stage(tmp_path, faults=Faults({rpc: Fault(kind, times=1)})) as stage:
        stage.cluster.attach()
        spec = persistent()
        with pytest.raises(UncertainVolumeError):
            await stage.set_up(spec)
        await stage.kind.tear_down("uid-web", "pv-1")
        await stage.kind.unstage("", spec)
        assert stage.left() == (
            ["pods/uid-web", "pods/uid-web/volumes", POD_FOLDER] if rpc == "NodePublishVolume" else []
        )
        assert stage.driver.names().count("NodeUnstageVolume") == 1
        await stage.set_up(spec)


@pytest.mark.parametrize("rpc", ["NodeUnpublishVolume", "NodeUnstageVolume"])
@pytest.mark.parametrize("kind", ["error", "hang", "lost", "late"])
async def test_undoing_goes_on_until_the_driver_confirms(
    tmp_path: Path, autojump_clock: MockClock, rpc: str, kind: Any
) -> None:
    async with csi_stage(tmp_path, faults=Faults({rpc: Fault(kind, times=2)})) as stage:
        stage.cluster.attach()
        spec = persistent()
        await stage.set_up(spec)
        undo = {
            "NodeUnpublishVolume": lambda: stage.kind.tear_down("uid-web", "pv-1"),
            "NodeUnstageVolume": lambda: stage.kind.unstage("", spec),
        }
        if rpc == "NodeUnstageVolume":
            await stage.kind.tear_down("uid-web", "pv-1")
        for _ in range(2):
            with pytest.raises(VolumeError):
                await undo[rpc]()
        await undo[rpc]()
        if rpc == "NodeUnpublishVolume":
            await stage.kind.unstage("", spec)
        assert not any("vol_data" in path or "mount" in path for path in stage.left())


async def test_a_driver_that_is_gone_keeps_its_volumes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent()
        await stage.set_up(spec)
        stage.drivers.remove(NAME, "/csi.sock")
        with pytest.raises(TransientVolumeError, match=r"Unmounter\.TearDownAt failed to get CSI client"):
            await stage.kind.tear_down("uid-web", "pv-1")
        assert (stage.root / POD_FOLDER / "pv-1" / "vol_data.json").exists()


async def test_what_is_still_mounted_is_not_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        mounted = await stage.set_up(persistent())
        assert mounted.path is not None
        stage.mounter.mounts.append(Mount(point=mounted.path, kind="xfs"))
        with pytest.raises(VolumeError, match="still is a mount"):
            await stage.kind.tear_down("uid-web", "pv-1")
        assert (mounted.path.parent / "vol_data.json").exists()


async def test_data_that_a_driver_left_is_never_removed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        mounted = await stage.set_up(persistent())
        assert mounted.path is not None
        (mounted.path / "precious").touch()
        with pytest.raises(VolumeError, match="not empty"):
            await stage.kind.tear_down("uid-web", "pv-1")
        assert (mounted.path / "precious").exists()


async def test_a_volume_is_not_unstaged_while_it_is_mounted_elsewhere(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent()
        at = await stage.kind.stage(stage.request(spec))
        assert at is not None
        stage.mounter.mounts += [Mount(point=point, kind="xfs", device=(8, 1)) for point in (at, tmp_path / "backup")]
        with pytest.raises(VolumeError, match=r"still mounted by other references \[.*/backup\]"):
            await stage.kind.unstage("", spec)
        assert "NodeUnstageVolume" not in stage.driver.names()


async def test_another_pods_volume_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        await stage.set_up(persistent())
        other = await stage.set_up(persistent(), OTHER_POD)
        await stage.kind.tear_down("uid-web", "pv-1")
        assert other.path is not None
        assert (other.path / "volume").exists()


# After a restart of the agent


async def test_a_volume_is_known_again_from_the_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent()
        await stage.set_up(spec)
        found = await stage.kind.reconstruct("uid-web", "pv-1")
        assert found is not None
        assert stage.kind.unique_name(found, "uid-web") == stage.kind.unique_name(spec, "uid-web")
        assert (found.name, found.inner_name, found.block) == ("pv-1", "pv-1", False)
        assert found.persistent is not None
        await stage.kind.tear_down("uid-web", "pv-1")
        await stage.kind.unstage("", found)
        assert "NodeUnstageVolume" in stage.driver.names()
        assert await stage.kind.reconstruct("uid-web", "pv-1") is None


async def test_an_inline_volume_is_known_again_from_the_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.drivers[NAME] = csi_driver(volume_lifecycle_modes=("Ephemeral",))
        await stage.set_up(inline())
        found = await stage.kind.reconstruct("uid-web", "own")
        assert found is not None
        assert found.persistent is None
        assert stage.kind.unique_name(found, "uid-web") == "kubernetes.io/csi/uid-web-own"
        assert rules.source_of(found, "uid-web").handle == rules.inline_handle("uid-web", "own")


async def test_a_folder_that_tells_nothing_is_an_error_and_can_be_cleared(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with csi_stage(tmp_path) as stage:
        target = stage.kind.path("uid-web", "pv-1")
        target.mkdir(parents=True)
        with pytest.raises(VolumeError, match="failed to open volume data file"):
            await stage.kind.reconstruct("uid-web", "pv-1")
        (target.parent / "vol_data.json").write_text("{")
        with pytest.raises(VolumeError, match="failed to parse volume data file"):
            await stage.kind.reconstruct("uid-web", "pv-1")
        stage.mounter.mounts.append(Mount(point=target, kind="xfs"))
        await stage.kind.tear_down("uid-web", "pv-1")
        assert stage.mounter.mounts == []
        assert not target.parent.exists()
        assert stage.driver.names() == [], "nobody knows which driver to ask"


async def test_what_was_staged_is_found_without_a_pod(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        spec = persistent()
        await stage.kind.stage(stage.request(spec))
        (found,) = await stage.kind.staged_volumes()
        assert stage.kind.unique_name(found, "") == stage.kind.unique_name(spec, "")
        await stage.kind.unstage("", found)
        assert await stage.kind.staged_volumes() == []


async def test_what_was_made_before_anything_was_written_down_goes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        csi = stage.root / "plugins" / "kubernetes.io" / "csi"
        for folder in (csi / NAME / "0123", csi / NAME / "4567", csi / "volumeDevices" / "pv-1" / "data"):
            folder.mkdir(parents=True)
        (csi / NAME / "4567" / ".vol_data.json.new").write_text("{")
        others = csi / NAME / "89ab" / "globalmount"
        others.mkdir(parents=True)
        assert await stage.kind.staged_volumes() == []
        assert sorted(csi.rglob("*")) == [csi / NAME, others.parent, others, csi / "volumeDevices"]


# Groups


async def test_a_driver_may_set_the_group_itself(tmp_path: Path, autojump_clock: MockClock) -> None:
    capabilities = CAPABILITIES | {Capability.VOLUME_MOUNT_GROUP}
    async with csi_stage(tmp_path, capabilities=capabilities, disk=NoForeignWork()) as stage:
        stage.cluster.attach()
        stage.driver.storage.folder("vol/1")
        gid = (tmp_path / "storage").stat().st_gid
        await stage.set_up(persistent(fs_type="ext4"), group=gid)
        staged, published = stage.driver.last(v1.NodeStageVolumeRequest), stage.driver.last(v1.NodePublishVolumeRequest)
        for capability in (staged.volume_capability, published.volume_capability):
            assert capability.mount.volume_mount_group == str(gid)


class NoForeignWork(InlineDisk):
    """Nobody is to walk through the volume."""

    async def walk_foreign(self, where: object, work: Any, *, deadline: float) -> Any:
        raise AssertionError("a group was set")


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("None", {"fs_type": "ext4"}),
        ("ReadWriteOnceWithFSType", {"fs_type": ""}),
        ("ReadWriteOnceWithFSType", {"fs_type": "ext4", "spec": {"access_modes": ("ReadWriteMany",)}}),
        ("File", {"read_only": True}),
    ],
)
async def test_the_group_is_left_alone_where_the_driver_wants_it(
    tmp_path: Path, autojump_clock: MockClock, policy: str, options: dict[str, Any]
) -> None:
    async with csi_stage(tmp_path, disk=NoForeignWork()) as stage:
        stage.cluster.attach()
        stage.cluster.drivers[NAME] = csi_driver(fs_group_policy=policy)
        await stage.set_up(persistent(**options), group=1000)
        assert stage.driver.last(v1.NodePublishVolumeRequest).volume_capability.mount.volume_mount_group == ""


class SlowDisk(InlineDisk):
    async def walk_foreign(self, where: object, work: Any, *, deadline: float) -> Any:
        raise OSError("the volume is gone")


async def test_a_volume_without_its_group_is_taken_down_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path, disk=SlowDisk()) as stage:
        stage.cluster.attach()
        with pytest.raises(UncertainVolumeError, match="applyFSGroup failed for vol data: the volume is gone"):
            await stage.set_up(persistent(fs_type="ext4"), group=1000)


# Size


async def test_usage_comes_from_the_driver(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        stage.cluster.drivers[NAME] = csi_driver(volume_lifecycle_modes=("Persistent", "Ephemeral"))
        for spec in (persistent(), inline()):
            mounted = await stage.set_up(spec)
            usage = await stage.kind.usage(mounted)
            assert usage is not None
            assert usage.capacity is not None
            assert usage.capacity > 0
            assert usage.inodes is not None
            request = stage.driver.last(v1.NodeGetVolumeStatsRequest)
            assert request.volume_id == rules.source_of(spec, "uid-web").handle
            assert request.volume_path == str(mounted.path)
        assert stage.kind._context.drivers.measuring[NAME,].count == 2


async def test_a_driver_that_does_not_measure_is_not_asked(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path, capabilities=()) as stage:
        stage.cluster.attach()
        assert await stage.kind.usage(await stage.set_up(persistent())) is None
        assert "NodeGetVolumeStats" not in stage.driver.names()


async def test_a_volume_that_has_grown_takes_its_size(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path) as stage:
        stage.cluster.attach()
        stage.cluster.add_secret("storage", "key", a=b"b")
        spec = persistent(node_expand_secret_ref=SECRET, fs_type="ext4")
        await stage.set_up(spec)
        await stage.kind.expand(stage.request(spec), Quantity("2Gi"))
        request = stage.driver.last(v1.NodeExpandVolumeRequest)
        assert request.capacity_range.required_bytes == 2 * 2**30
        assert request.volume_path == str(stage.root / POD_FOLDER / "pv-1/mount")
        assert request.staging_target_path.endswith("/globalmount")
        assert request.secrets == {"a": "b"}
        assert request.volume_capability.mount.fs_type == "ext4"


@pytest.mark.parametrize(
    ("status", "refusal", "problem"),
    [
        (Status.FAILED_PRECONDITION, Refusal.IN_USE, " : rpc error: code = FailedPrecondition desc = no"),
        (Status.INVALID_ARGUMENT, Refusal.INFEASIBLE, " rpc error: code = InvalidArgument desc = no"),
        (Status.OUT_OF_RANGE, Refusal.INFEASIBLE, " rpc error: code = OutOfRange desc = no"),
        (Status.NOT_FOUND, Refusal.INFEASIBLE, " rpc error: code = NotFound desc = no"),
    ],
)
async def test_a_driver_may_refuse_to_grow_a_volume(
    tmp_path: Path, autojump_clock: MockClock, status: Status, refusal: Refusal, problem: str
) -> None:
    async with csi_stage(tmp_path, faults=Faults({"NodeExpandVolume": Fault("error", status, "no")})) as stage:
        with pytest.raises(NotExpandedError) as refused:
            await stage.kind.expand(stage.request(persistent()), Quantity("2Gi"))
        assert refused.value.refusal is refusal
        assert refused.value.problem == f"Expander.NodeExpand failed to expand the volume{problem}"


UNKNOWN_ABILITIES = "Expander.NodeExpand failed to check if node supports expansion : rpc error"


@pytest.mark.parametrize(
    ("faults", "kind", "problem"),
    [
        ({}, VolumeError, 'fetching NodeExpandSecretRef storage/key failed: secrets "key" not found'),
        ({"NodeGetCapabilities": Fault("error", Status.INTERNAL)}, VolumeError, UNKNOWN_ABILITIES),
        ({"NodeGetCapabilities": Fault("error", Status.UNAVAILABLE)}, UncertainVolumeError, UNKNOWN_ABILITIES),
    ],
)
async def test_only_a_driver_that_is_not_there_leaves_growing_untried(
    tmp_path: Path, autojump_clock: MockClock, faults: dict[str, Fault], kind: type[VolumeError], problem: str
) -> None:
    spec = persistent(node_expand_secret_ref=SECRET)
    async with csi_stage(tmp_path, faults=Faults(faults)) as stage:
        with pytest.raises(VolumeError) as failed:
            await stage.kind.expand(stage.request(spec), Quantity("2Gi"))
        assert type(failed.value) is kind
        assert failed.value.problem.startswith(problem)
        assert "NodeExpandVolume" not in stage.driver.names()
        stage.drivers.remove(NAME, "/csi.sock")
        with pytest.raises(TransientVolumeError):
            await stage.kind.expand(stage.request(spec), Quantity("2Gi"))


async def test_a_driver_that_leaves_growing_to_its_controller_is_not_asked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with csi_stage(tmp_path, capabilities=()) as stage:
        with pytest.raises(NotExpandedError) as refused:
            await stage.kind.expand(stage.request(persistent()), Quantity("2Gi"))
        assert refused.value.refusal is Refusal.UNSUPPORTED
        assert refused.value.problem == f"NodeExpand is not supported by the CSI driver {NAME}"
        assert stage.driver.names() == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INTERNAL, VolumeError),
        (Status.ABORTED, UncertainVolumeError),
        (Status.DEADLINE_EXCEEDED, UncertainVolumeError),
        (Status.UNAVAILABLE, UncertainVolumeError),
    ],
)
async def test_growing_may_fail(
    tmp_path: Path, autojump_clock: MockClock, status: Status, kind: type[VolumeError]
) -> None:
    async with csi_stage(tmp_path, faults=Faults({"NodeExpandVolume": Fault("error", status)})) as stage:
        with pytest.raises(
            VolumeError, match=r"Expander\.NodeExpand failed to expand the volume : rpc error"
        ) as failed:
            await stage.kind.expand(stage.request(persistent()), Quantity("2Gi"))
        assert type(failed.value) is kind
