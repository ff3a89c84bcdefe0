"""What an agent finds of its predecessor's volumes, and what it does with them (kubelet: `reconstruct_test.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.volumes.stage import InlineDisk, Stage, add_claim, claimed, config_map, empty_dir, pod, stage
from trikubelet.volumes.errors import TransientVolumeError, VolumeError, VolumesNotReadyError
from trikubelet.volumes.kinds.protocol import Kinds
from trikubelet.volumes.model import VolumeSpec
from trikubelet.volumes.reconstruct import VolumeFolder, find_folders, reconstruct

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


__all__ = ["stage"]

CONFIG_MAP = "kubernetes.io/configmap"
EMPTY_DIR = "kubernetes.io/empty-dir"
CSI = "kubernetes.io/csi"


def test_folders_of_volumes_are_found_by_the_kubelets_layout(tmp_path: Path) -> None:
    pods = tmp_path / "pods"
    for folder in (
        "a/volumes/kubernetes.io~empty-dir/cache",
        "a/volumes/kubernetes.io~empty-dir/.cache.new",
        "a/volumes/kubernetes.io~csi/pv-1/mount",
        "a/plugins/kubernetes.io~empty-dir/wrapped_x",
        "b/volumes/kubernetes.io~configmap",
        "c/volumeDevices/kubernetes.io~csi",
    ):
        (pods / folder).mkdir(parents=True)
    (pods / "c/volumeDevices/kubernetes.io~csi/pv-2").symlink_to("/dev/null")
    (pods / "file").write_text("")
    (pods / "link").symlink_to(pods / "a")

    assert find_folders(tmp_path) == [
        VolumeFolder("a", CSI, "pv-1", block=False),
        VolumeFolder("a", EMPTY_DIR, "cache", block=False),
        VolumeFolder("c", CSI, "pv-2", block=True),
    ]


def test_a_new_root_folder_has_nothing(tmp_path: Path) -> None:
    assert find_folders(tmp_path) == []


async def test_what_a_kind_cannot_make_out_is_remembered_by_its_path(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(CSI, staged=True)
    for name in ("good", "bad", "nothing"):
        kind.path("uid", name).mkdir(parents=True)
    stage.root.joinpath("pods/uid/volumes/example.com~strange/x").mkdir(parents=True)
    kind.left = {("uid", "bad"): VolumeError("bad", "vol_data.json is broken"), ("uid", "nothing"): None}
    found = await reconstruct(stage.root, Kinds.of([kind]), InlineDisk())

    assert [(one.unique_name, one.staged, one.understood) for one in found] == [
        ("kubernetes.io/csi/uid-bad", False, False),
        ("kubernetes.io/csi/good", True, True),
    ]


@pytest.mark.parametrize("question", ["reconstruct", "staged_volumes"])
async def test_what_lies_on_the_disk_does_not_keep_the_agent_from_starting(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    from tests.volumes.fake_kind import FakeKind

    async def stumble(*_: object, **__: object) -> None:
        raise TypeError("nobody thought of that")

    kind = stage.kind(CSI)
    kind.path("uid", "x").mkdir(parents=True)
    monkeypatch.setattr(FakeKind, question, stumble)
    async with stage.running() as manager:
        assert manager.statistics()["mounts"] == 1


async def test_a_kind_that_does_not_answer_does_not_keep_the_agent_from_starting(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.volumes.fake_kind import FakeKind

    async def hang(*_: object, **__: object) -> VolumeSpec | None:
        await trio.sleep_forever()

    kind = stage.kind(CSI)
    kind.path("uid", "x").mkdir(parents=True)
    monkeypatch.setattr(FakeKind, "reconstruct", hang)
    async with stage.running() as manager:
        assert manager.statistics()["mounts"] == 1
    assert trio.current_time() <= 10


async def test_volumes_of_a_running_pod_stay_and_are_set_up_again(stage: Stage, autojump_clock: MockClock) -> None:
    kind, web = stage.kind(CONFIG_MAP), pod("web", config_map())
    async with stage.running() as manager:
        await manager.prepare(web)
    stage.running_pods.add("uid-web")
    async with stage.running() as manager:
        await trio.sleep(1000)
        assert manager.mounted(web, "config") is None  # nobody knows yet
        await manager.prepare(web)
        assert manager.mounted(web, "config") is not None

    assert kind.calls == ["set_up config", "set_up config"]
    assert [request.reconstructed for request in kind.requests] == [False, True]


async def test_volumes_of_a_pod_that_went_meanwhile_are_taken_down_when_that_is_known(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, staged=True)
    stage.kind(EMPTY_DIR)
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed(), empty_dir()))
    async with stage.running() as manager:
        await trio.sleep(1000)
        assert kind.calls[2:] == []
        assert await manager.pod_uids() == {"uid-web"}
        await manager.remove("uid-web")

        assert await manager.pod_uids() == set()
        assert set(manager.statistics().values()) == {0}
    assert kind.calls[2:] == ["tear_down pv-1", "unstage pv-1"]
    assert not kind.staged_names
    assert not kind.mounts


async def test_a_final_failure_says_nothing_about_what_was_found(stage: Stage, autojump_clock: MockClock) -> None:
    kind, web = stage.kind(CONFIG_MAP), pod("web", config_map())
    async with stage.running() as manager:
        await manager.prepare(web)
    kind.behaviours = {"set_up": [VolumeError("config", "no"), TransientVolumeError("config", "not yet")] * 50}
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError):
            await manager.prepare(web)
        await manager.release("uid-web")

    assert not kind.mounts


async def test_what_could_not_be_made_out_is_taken_down_with_its_pod(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, staged=True)
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed()))
    kind.left = {("uid-web", "pv-1"): VolumeError("pv-1", "vol_data.json is broken")}
    async with stage.running() as manager:
        await manager.remove("uid-web")

        assert set(manager.statistics().values()) == {0}
    assert not kind.mounts


async def test_what_could_not_be_made_out_is_recognised_when_its_pod_wants_it(
    stage: Stage, autojump_clock: MockClock
) -> None:
    add_claim(stage.storage)
    kind, web = stage.kind(CSI, staged=True), pod("web", claimed())
    async with stage.running() as manager:
        await manager.prepare(web)
    kind.left = {("uid-web", "pv-1"): VolumeError("pv-1", "vol_data.json is broken")}
    async with stage.running() as manager:
        await manager.prepare(web)
        assert manager.statistics()["mounts"] == 1
        await manager.release("uid-web")

        assert set(manager.statistics().values()) == {0}
    assert kind.calls == [
        "stage pv-1",
        "set_up pv-1",
        "stage pv-1",
        "set_up pv-1",
        "tear_down pv-1",
        "unstage pv-1",
    ]


async def test_a_volume_that_two_pods_had_is_unstaged_after_the_second(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    kind = stage.kind(CSI, staged=True)
    async with stage.running() as manager:
        await manager.prepare(pod("a", claimed()))
        await manager.prepare(pod("b", claimed()))
    async with stage.running() as manager:
        await manager.remove("uid-a")
        assert kind.staged_names == {"pv-1"}
        await manager.remove("uid-b")
    assert not kind.staged_names


async def test_what_was_only_staged_is_unstaged_at_once(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(CSI, staged=True)
    kind.staged_names = {"pv-1", "pv-2"}

    async def staged_volumes() -> list[VolumeSpec]:
        return [VolumeSpec(name, name, CSI) for name in sorted(kind.staged_names)]

    kind.staged_volumes = staged_volumes
    async with stage.running() as manager:
        await trio.sleep(1)
        assert set(manager.statistics().values()) == {0}
    assert sorted(kind.calls) == ["unstage pv-1", "unstage pv-2"]


async def test_what_is_in_use_is_not_known_before_the_nodes_status(stage: Stage, autojump_clock: MockClock) -> None:
    add_claim(stage.storage)
    name = "kubernetes.io/csi/pv-1"
    kind = stage.kind(CSI, staged=True)
    async with stage.running() as manager:
        await manager.prepare(pod("web", claimed()))
    stage.storage.attached_volumes = None
    async with stage.running() as manager:
        assert manager.in_use() is None
        await manager.remove("uid-web")  # the pod can go, but its volume is not unstaged yet
        assert kind.calls[2:] == ["tear_down pv-1"]
        assert manager.in_use() is None
        stage.storage.attach({name: "/dev/sdb", "kubernetes.io/csi/other": ""})
        while manager.in_use() is None:
            await trio.lowlevel.checkpoint()  # the manager has its turn
        assert manager.in_use() == (name,)
        await trio.sleep(1)

        assert kind.calls[3:] == ["unstage pv-1"]
        assert manager.in_use() == ()


async def test_without_staged_volumes_nothing_waits_for_the_nodes_status(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.kind(EMPTY_DIR)
    stage.storage.attached_volumes = None
    async with stage.running() as manager:
        assert manager.in_use() == ()
