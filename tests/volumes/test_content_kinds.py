"""configMap, secret, downwardAPI and projected volumes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.volumes.content_stage import (
    ALL,
    API_ACCESS,
    CONFIG,
    DOWNWARD,
    FOLDERS,
    NAME,
    NOW,
    SECRET,
    TOKEN,
    Stage,
    contents,
    filled_stage,
    mode,
    mount,
)
from tests.volumes.fake_mounter import FakeMounter
from trikubelet.api import ConfigMap, Quantity
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.model import VolumeSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return filled_stage(tmp_path)


@pytest.mark.parametrize(("volume", "folder"), list(zip(ALL, FOLDERS, strict=True)))
async def test_a_volume_is_where_the_kubelet_puts_it(stage: Stage, volume: dict[str, Any], folder: str) -> None:
    kind, spec = stage.kind(volume), VolumeSpec("vol", "vol", "")
    mounted = await stage.set_up(volume)
    assert mounted.path == stage.root / f"pods/uid-1/volumes/kubernetes.io~{folder}/vol"
    assert mounted.read_only
    assert kind.unique_name(spec, "uid-1") == f"kubernetes.io/{folder}/uid-1-vol"
    assert kind.refreshes(spec)
    assert not kind.attachable(spec)
    assert await kind.reconstruct("uid-1", "vol") == VolumeSpec("vol", "vol", f"kubernetes.io/{folder}")
    assert stage.left() == ["plugins/kubernetes.io~empty-dir/wrapped_vol", f"volumes/kubernetes.io~{folder}/vol"]
    for _ in range(2):
        await stage.tear_down(volume)
    assert stage.left() == []
    assert stage.mounter.table().mounts == ()
    assert await kind.reconstruct("uid-1", "vol") is None


@pytest.mark.parametrize(
    ("volume", "kind"), [(CONFIG, None), (SECRET, "tmpfs"), (DOWNWARD, "tmpfs"), (API_ACCESS, "tmpfs")]
)
async def test_secrets_are_in_memory_and_config_maps_on_disk(
    stage: Stage, volume: dict[str, Any], kind: str | None
) -> None:
    path = (await stage.set_up(volume)).path
    assert path is not None
    found = stage.mounter.table().at(path)
    assert (None if found is None else found.kind) == kind
    if found is not None:
        assert set(found.super_options) == {"rw", "mode=1777", "noswap"}
    else:
        assert mode(path) == 0o777


async def test_a_volume_in_memory_is_no_larger_than_the_pod_and_the_node(stage: Stage) -> None:
    stage.allocatable = {"memory": Quantity("1Gi")}
    path = (await stage.set_up(SECRET)).path
    assert path is not None
    assert f"size={2**30}" in stage.options(path)
    await stage.tear_down(SECRET)
    limited = [{"name": "main", "image": "i", "resources": {"limits": {"memory": "64Mi"}}}]
    await stage.set_up(SECRET, pod={"containers": limited})
    assert f"size={2**26}" in stage.options(path)


async def test_keys_are_files_with_the_volumes_mode(stage: Stage) -> None:
    path = (await stage.set_up(CONFIG)).path
    assert path is not None
    assert contents(path) == {"a": b"1", "b": b"2"}
    assert mode(path / "a") == 0o644
    assert stage.objects.asked == [("space", "cm")]
    items = [{"key": "pw", "path": "d/password", "mode": 0o400}]
    path = (await stage.set_up({"secret": {"secretName": "sec", "defaultMode": 0o600, "items": items}})).path
    assert path is not None
    assert (path / "d/password").read_bytes() == b"hunter2"
    assert mode(path / "d/password") == 0o400


@pytest.mark.parametrize(
    ("volume", "problem"),
    [
        ({"configMap": {"name": "no"}}, 'configmap "no" not found'),
        ({"secret": {"secretName": "no"}}, 'secret "no" not found'),
        (
            {"configMap": {"name": "cm", "items": [{"key": "k", "path": "p"}]}},
            "configmap references non-existent config key: k",
        ),
        (
            {"secret": {"secretName": "sec", "items": [{"key": "k", "path": "p"}]}},
            "references non-existent secret key: k",
        ),
        ({"projected": {"sources": [{"configMap": {"name": "no"}}]}}, 'configmap "no" not found'),
        (
            {"projected": {"sources": [{"secret": {"name": "no"}}, TOKEN, {"configMap": {"name": "no"}}]}},
            '[secret "no" not found, configmap "no" not found]',
        ),
        (
            {"projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}},
            "ClusterTrustBundle projection requires either name or signerName to be set",
        ),
        (
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "../p"}]}},
            "invalid path: must not contain '..': ../p",
        ),
    ],
)
async def test_what_cannot_be_had_is_told_and_leaves_nothing(
    stage: Stage, volume: dict[str, Any], problem: str
) -> None:
    assert await stage.problem(volume) == problem
    assert stage.left() == []
    assert stage.mounter.table().mounts == ()


@pytest.mark.parametrize(
    "volume",
    [
        {"configMap": {"name": "no", "optional": True, "items": [{"key": "k", "path": "p"}]}},
        {"secret": {"secretName": "no", "optional": True}},
        {"projected": {"sources": [{"secret": {"name": "no", "optional": True}}]}},
        {"projected": {"sources": [{"configMap": {"name": "no", "optional": True}}]}},
    ],
)
async def test_an_optional_object_may_be_missing_but_not_unreachable(stage: Stage, volume: dict[str, Any]) -> None:
    path = (await stage.set_up(volume)).path
    assert path is not None
    assert contents(path) == {}
    unreachable = ObjectError("failed to sync cache: timed out waiting for the condition", "unavailable")
    stage.objects.secrets["no"] = stage.objects.config_maps["no"] = unreachable
    assert await stage.problem(volume) == unreachable.message


async def test_without_a_cluster_projected_volumes_need_a_client_only_for_what_is_in_it(stage: Stage) -> None:
    stage.credentials.problem = ObjectError("cannot use TokenManager when kubelet is in standalone mode", "no client")
    stage.objects.config_maps["cm"] = ObjectError("couldn't get configMap space/cm, no kubeClient defined", "no client")
    problem = "cannot setup projected volume vol because kube client is not configured"
    assert await stage.problem(API_ACCESS) == problem
    own = {"projected": {"sources": [{"downwardAPI": {"items": [NAME]}}]}}
    path = (await stage.set_up(own)).path
    assert path is not None
    assert contents(path) == {"name": b"web"}


async def test_a_pods_own_fields_follow_the_pod(stage: Stage) -> None:
    request = stage.request(DOWNWARD)
    kind = stage.kind(DOWNWARD)
    await kind.set_up(request)
    assert contents(request.path) == {"name": b"web", "labels": b'app="<web>"'}
    metadata = attrs.evolve(request.pod.metadata, labels={"app": "new"})
    await kind.set_up(attrs.evolve(request, pod=attrs.evolve(request.pod, metadata=metadata), refresh=True))
    assert contents(request.path) == {"name": b"web", "labels": b'app="new"'}


async def test_a_projected_volume_has_all_its_parts_and_is_renewed_with_the_first_of_them(stage: Stage) -> None:
    certificate = {
        "podCertificate": {"signerName": "s/x", "keyType": "ED25519", "credentialBundlePath": "bundle.pem"},
    }
    anchors = {"clusterTrustBundle": {"name": "root", "path": "anchors.pem"}}
    volume = {"projected": {"sources": [TOKEN, {"secret": {"name": "sec"}}, certificate, anchors]}}
    mounted = await stage.set_up(volume)
    assert mounted.path is not None
    assert contents(mounted.path) == {
        "token": b"token-1",
        "pw": b"hunter2",
        "bundle.pem": b"KEYCHAIN",
        "anchors.pem": b"anchors of root",
    }
    assert set(stage.credentials.asked) == {("uid-1", (), 3607), ("vol", 2, "s/x")}
    assert mounted.refresh_at == stage.credentials.renew_at
    stage.credentials.certificate_renew_at = NOW + timedelta(minutes=5)
    assert (await stage.set_up(volume)).refresh_at == NOW + timedelta(minutes=5)


async def test_a_token_has_its_audience(stage: Stage) -> None:
    token = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}
    await stage.set_up({"projected": {"sources": [token]}})
    assert stage.credentials.asked == [("uid-1", ("vault",), 600)]


async def test_a_token_that_could_not_be_renewed_is_asked_for_again_after_a_minute(stage: Stage) -> None:
    stage.credentials.renew_at = NOW - timedelta(minutes=1)
    assert (await stage.set_up(API_ACCESS)).refresh_at == NOW + timedelta(minutes=1)
    without = {"projected": {"sources": [{"downwardAPI": {"items": [NAME]}}]}}
    assert (await stage.set_up(without)).refresh_at is None


async def test_of_two_parts_with_one_path_the_later_is_shown(stage: Stage) -> None:
    items = [{"key": "pw", "path": "a"}]
    parts = [{"configMap": {"name": "cm"}}, {"secret": {"name": "sec", "items": items}}]
    path = (await stage.set_up({"projected": {"sources": parts}})).path
    assert path is not None
    assert contents(path) == {"a": b"hunter2", "b": b"2"}


async def test_the_tokens_of_a_pod_are_forgotten_with_its_volume(stage: Stage) -> None:
    await stage.set_up(API_ACCESS)
    assert stage.credentials.forgotten == []
    await stage.tear_down(API_ACCESS)
    assert stage.credentials.forgotten == ["uid-1"]


async def test_an_update_is_shown_and_without_one_nothing_is_written(stage: Stage) -> None:
    path = (await stage.set_up(CONFIG)).path
    assert path is not None
    version = (path / "..data").readlink()
    await stage.set_up(CONFIG, refresh=True)
    assert (path / "..data").readlink() == version
    stage.objects.config_maps["cm"] = ConfigMap(data={"b": "3"}, binary_data={"c": b"\xff"})
    await stage.set_up(CONFIG, refresh=True)
    assert (path / "..data").readlink() != version
    assert contents(path) == {"b": b"3", "c": b"\xff"}


@pytest.mark.parametrize("volume", [CONFIG, {"projected": {"sources": [{"configMap": {"name": "cm"}}]}}])
async def test_a_refresh_that_fails_leaves_the_old_content(
    stage: Stage, volume: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = (await stage.set_up(volume)).path
    assert path is not None
    known = stage.objects.config_maps.pop("cm")
    assert await stage.problem(volume, refresh=True) == 'configmap "cm" not found'
    assert contents(path) == {"a": b"1", "b": b"2"}
    stage.objects.config_maps["cm"] = ConfigMap(data={"new": "x"})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr(os, "fchmod", full)
    for more in ({"refresh": True}, {"reconstructed": True}, {}):
        assert await stage.problem(volume, **more) == "cannot write /somewhere: No space left on device"
        assert contents(path) == {"a": b"1", "b": b"2"}
    assert isinstance(known, ConfigMap)


async def test_a_first_content_that_cannot_be_written_leaves_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    problem = await stage.problem(SECRET)
    assert problem == f"cannot write {stage.request(SECRET).path}: No space left on device"
    assert stage.left() == []
    assert stage.mounter.table().mounts == ()


async def test_an_optional_object_that_went_takes_its_files_with_it(stage: Stage) -> None:
    volume = {"configMap": {"name": "cm", "optional": True}}
    path = (await stage.set_up(volume)).path
    assert path is not None
    del stage.objects.config_maps["cm"]
    await stage.set_up(volume, refresh=True)
    assert contents(path) == {}
    assert not os.path.lexists(path / "a")


async def test_other_volumes_find_their_mount_points_inside(stage: Stage) -> None:
    mounts = [mount("vol", "/v"), mount("other", "/v/inner"), mount("third", "/v/inner/deep")]
    containers = [{"name": "main", "image": "i", "volumeMounts": mounts}]
    path = (await stage.set_up(CONFIG, pod={"containers": containers})).path
    assert path is not None
    assert mode(path / "inner") == 0o755
    assert list((path / "inner").iterdir()) == []


async def test_a_volume_whose_mount_is_gone_is_mounted_and_filled_again(stage: Stage) -> None:
    path = (await stage.set_up(SECRET)).path
    assert path is not None
    stage.mounter.unmount(path)
    for entry in path.iterdir():
        if entry.name == "..data" or not entry.name.startswith(".."):
            entry.unlink()
    await stage.set_up(SECRET, refresh=True)
    assert stage.mounter.is_mount(path)
    assert contents(path) == {"pw": b"hunter2"}


async def test_a_folder_that_somebody_deleted_is_made_again(stage: Stage) -> None:
    path = (await stage.set_up(CONFIG)).path
    assert path is not None
    path.rename(path.with_name("away"))
    await stage.set_up(CONFIG)
    assert contents(path) == {"a": b"1", "b": b"2"}
    assert mode(path) == 0o777


async def test_no_secret_is_in_an_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(VolumeError) as failed:
        await stage.set_up(SECRET)
    error: BaseException | None = failed.value
    while error is not None:
        assert "hunter2" not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


async def test_what_a_volume_takes_is_measured(stage: Stage) -> None:
    mounted = await stage.set_up(CONFIG)
    usage = await stage.kind(CONFIG).usage(mounted)
    assert usage is not None
    # The folder, the version, two files, three links.
    assert usage.inodes_used == 7
    assert usage.used is not None
    assert usage.used > 0


async def test_without_the_right_to_mount_a_secret_is_on_disk_and_stays_there(stage: Stage) -> None:
    mounter = stage.mounter = FakeMounter(failures={"tmpfs": PermissionError(1, "Operation not permitted")})
    path = (await stage.set_up(SECRET)).path
    assert path is not None
    assert (contents(path), mode(path)) == ({"pw": b"hunter2"}, 0o777)
    await stage.set_up(SECRET, refresh=True)
    assert len(mounter.calls) == 1
    await stage.tear_down(SECRET)
    assert stage.left() == []


async def test_a_volume_that_cannot_be_unmounted_stays_and_is_told(stage: Stage) -> None:
    path = (await stage.set_up(SECRET)).path
    assert path is not None
    assert isinstance(stage.mounter, FakeMounter)
    stage.mounter.failures["unmount"] = OSError(16, "Device or resource busy", str(path))
    with pytest.raises(VolumeError, match=f"cannot remove {path}: Device or resource busy"):
        await stage.tear_down(SECRET)
    assert contents(path) == {"pw": b"hunter2"}
    stage.mounter.failures.clear()
    await stage.tear_down(SECRET)
    assert stage.left() == []
