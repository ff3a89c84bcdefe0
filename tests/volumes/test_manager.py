"""What the owner of pods' volumes promises to pod workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.examples import examples
from tests.listening import told_by
from tests.volumes.stage import (
    Stage,
    config_map,
    empty_dir,
    pod,
    stage,
)
from trikubelet.api import ObjectMeta
from trikubelet.volumes.errors import (
    PodFoldersError,
    TransientVolumeError,
    UncertainVolumeError,
    VolumeError,
    VolumesNotReadyError,
)

if TYPE_CHECKING:
    from trio.testing import MockClock


__all__ = ["stage"]

CONFIG_MAP = "kubernetes.io/configmap"
EMPTY_DIR = "kubernetes.io/empty-dir"
CSI = "kubernetes.io/csi"


async def test_a_pod_without_volumes_gets_its_folders_only(stage: Stage) -> None:
    async with stage.running() as manager:
        await manager.prepare(pod())

    assert sorted(path.name for path in (stage.root / "pods" / "uid-web").iterdir()) == [
        "containers",
        "plugins",
        "volumes",
    ]
    assert (stage.root / "pods" / "uid-web" / "volumes").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("plugin", [EMPTY_DIR, CONFIG_MAP])
async def test_volumes_that_containers_mount_are_there_when_prepare_returns(
    stage: Stage, autojump_clock: MockClock, plugin: str
) -> None:
    kind = stage.kind(plugin, behaviours={"set_up": [5.0]})
    web = pod("web", empty_dir() if plugin == EMPTY_DIR else config_map("cache"))
    async with stage.running() as manager:
        assert manager.host_path(web, "cache") is None
        await manager.prepare(web)

        assert trio.current_time() == pytest.approx(5)
        assert manager.host_path(web, "cache") == kind.path("uid-web", "cache")
        assert manager.host_path(web, "other") is None


async def test_volumes_that_no_container_mounts_are_ignored(stage: Stage) -> None:
    kind = stage.kind(EMPTY_DIR)
    async with stage.running() as manager:
        await manager.prepare(pod("web", empty_dir("used"), empty_dir("unused"), mounts=["used"]))

    assert kind.calls == ["set_up used"]


async def test_a_prepared_pod_is_prepared_at_once_and_without_work(stage: Stage, autojump_clock: MockClock) -> None:
    kind, web = stage.kind(EMPTY_DIR), pod("web", empty_dir())
    async with stage.running() as manager:
        await manager.prepare(web)
        await manager.prepare(web)
        await trio.sleep(1000)
        await manager.prepare(web)

    assert kind.calls == ["set_up cache"]


async def test_all_volumes_of_a_pod_are_set_up_at_the_same_time(stage: Stage, autojump_clock: MockClock) -> None:
    stage.kind(CONFIG_MAP, behaviours={"set_up": [5.0, 5.0, 5.0]})
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map("a"), config_map("b"), config_map("c")))

    assert trio.current_time() == pytest.approx(5)


async def test_a_failed_volume_is_tried_again_with_backoff_and_each_failure_is_an_event(
    stage: Stage, autojump_clock: MockClock
) -> None:
    missing = VolumeError("config", 'configmap "settings" not found')
    kind = stage.kind(CONFIG_MAP, behaviours={"set_up": [missing] * 4})
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map()))

    assert trio.current_time() == pytest.approx(0.5 + 1 + 2 + 4)
    assert kind.count("set_up") == 5
    (event,) = stage.recorder.events_of("uid-web")
    assert (event.reason, event.message, event.count) == (
        "FailedMount",
        'MountVolume.SetUp failed for volume "config" : configmap "settings" not found',
        4,
    )


async def test_the_longest_backoff_is_two_minutes_and_two_seconds(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(CONFIG_MAP, behaviours={"set_up": [VolumeError("config", "broken")] * 100})
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError):
            await manager.prepare(pod("web", config_map()))
        while kind.count("set_up") < 12:
            await trio.sleep(1)
        before = trio.current_time()
        while kind.count("set_up") < 13:
            await trio.sleep(1)

    assert trio.current_time() - before == pytest.approx(122, abs=1)


async def test_prepare_gives_up_after_two_minutes_and_names_what_is_missing(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.kind(CONFIG_MAP, behaviours={"set_up b": [VolumeError("b", "broken")] * 100})
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError) as caught:
            await manager.prepare(pod("web", config_map("a"), config_map("b")))

    assert trio.current_time() == pytest.approx(123)
    assert caught.value.timed_out
    assert str(caught.value) == (
        "unmounted volumes=[b], unattached volumes=[], failed to process volumes=[]: context deadline exceeded"
    )


async def test_a_volume_that_comes_after_prepare_gave_up_wakes_the_pod(stage: Stage, autojump_clock: MockClock) -> None:
    gate = trio.Event()
    stage.kind(CONFIG_MAP, behaviours={"set_up": [gate]})
    async with stage.running() as manager:
        woken = told_by(manager.pod_changes)
        with pytest.raises(VolumesNotReadyError):
            await manager.prepare(pod("web", config_map()))
        assert woken == []
        gate.set()
        await trio.sleep(0.1)

    assert woken == ["uid-web"]


@pytest.mark.parametrize("plugin", [EMPTY_DIR, CONFIG_MAP])
async def test_work_goes_on_when_prepare_is_cancelled(stage: Stage, autojump_clock: MockClock, plugin: str) -> None:
    stage.kind(plugin, behaviours={"set_up": [10.0, 10.0]})
    web = pod("web", empty_dir() if plugin == EMPTY_DIR else config_map("cache"))
    async with stage.running() as manager:
        with trio.move_on_after(1):
            await manager.prepare(web)
        await trio.sleep(20)

        assert manager.host_path(web, "cache") is not None


async def test_released_volumes_are_taken_down_and_the_pods_folder_is_gone(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.kind(EMPTY_DIR), stage.kind(CONFIG_MAP)
    web = pod("web", empty_dir(), config_map())
    async with stage.running() as manager:
        await manager.prepare(web)
        assert await manager.pod_uids() == {"uid-web"}
        await manager.release("uid-web")

        assert await manager.pod_uids() == set()
        assert manager.host_path(web, "cache") is None
        assert set(manager.statistics().values()) == {0}
    assert not any(kind.mounts for kind in stage.kinds.values())
    assert stage.credentials.forgotten == ["uid-web"]


async def test_a_pod_that_was_never_prepared_is_released_at_once(stage: Stage) -> None:
    async with stage.running() as manager:
        await manager.release("uid-nobody")
        await manager.remove("..")


async def test_nothing_is_taken_down_while_containers_may_run(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(EMPTY_DIR)
    async with stage.running() as manager:
        await manager.prepare(pod("web", empty_dir()))
        stage.running_pods.add("uid-web")
        with pytest.raises(VolumeError, match="containers have ended"):
            await manager.release("uid-web")
        await trio.sleep(1000)
        assert kind.mounts

        stage.running_pods.clear()
        await manager.release("uid-web")
        assert not kind.mounts


async def test_a_volume_that_cannot_be_taken_down_is_tried_again_until_the_time_is_over(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind(CONFIG_MAP, behaviours={"tear_down": [VolumeError("config", "busy")] * 9})
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map()))
        with pytest.raises(VolumeError) as caught:
            await manager.release("uid-web")
        assert caught.value.problem == "mounted volumes=[kubernetes.io/configmap/uid-web-config]: busy"
        assert trio.current_time() == pytest.approx(123)
        await manager.release("uid-web")

    assert not kind.mounts
    assert stage.messages("uid-web") == []


async def test_a_pod_that_is_released_does_not_wait_for_its_volumes_to_come(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind(CONFIG_MAP, behaviours={"set_up": [3000.0]})
    async with stage.running() as manager:
        with trio.move_on_after(1):
            await manager.prepare(pod("web", config_map()))
        await manager.release("uid-web")

    assert trio.current_time() == pytest.approx(1)
    assert kind.calls == ["set_up config", "tear_down config"]  # nobody knows what the set-up left


async def test_a_pod_with_the_uid_of_one_that_is_being_released_waits(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(EMPTY_DIR, behaviours={"tear_down": [5.0]})
    web = pod("web", empty_dir())
    async with stage.running() as manager, trio.open_nursery() as nursery:
        await manager.prepare(web)
        nursery.start_soon(manager.release, "uid-web")
        await trio.sleep(1)
        await manager.prepare(web)
        assert trio.current_time() == pytest.approx(5)
        assert manager.host_path(web, "cache") is not None

    assert kind.calls == ["set_up cache", "tear_down cache", "set_up cache"]


async def test_a_second_release_waits_for_the_first(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(EMPTY_DIR, behaviours={"tear_down": [5.0]})
    async with stage.running() as manager:
        await manager.prepare(pod("web", empty_dir()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.release, "uid-web")
            nursery.start_soon(manager.remove, "uid-web")

    assert kind.count("tear_down") == 1


async def test_what_is_uncertain_is_not_given_to_containers_and_taken_down_all_the_same(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind(CONFIG_MAP, behaviours={"set_up": [UncertainVolumeError("config", "no answer")] * 100})
    web = pod("web", config_map())
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError):
            await manager.prepare(web)
        assert manager.mounted(web, "config") is None
        await manager.release("uid-web")

    assert kind.calls[-1] == "tear_down config"


@pytest.mark.parametrize("error", [VolumeError("config", "no"), TransientVolumeError("config", "no")])
async def test_what_failed_for_good_is_not_taken_down(
    stage: Stage, autojump_clock: MockClock, error: VolumeError
) -> None:
    kind = stage.kind(CONFIG_MAP, behaviours={"set_up": [error] * 100})
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError):
            await manager.prepare(pod("web", config_map()))
        await manager.release("uid-web")

    assert kind.count("tear_down") == 0


async def test_a_kinds_mistake_is_that_volumes_failure_only(stage: Stage, autojump_clock: MockClock) -> None:
    mistake = ExceptionGroup("nursery", [ZeroDivisionError("division by zero")])
    stage.kind(CONFIG_MAP, behaviours={"set_up": [mistake]})
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map()))

    assert stage.messages("uid-web") == ['MountVolume.SetUp failed for volume "config" : division by zero']


async def test_an_unknown_kind_ends_the_wait_at_once(stage: Stage, autojump_clock: MockClock) -> None:
    stage.kind(EMPTY_DIR)
    disk = {"name": "disk", "cephfs": {"monitors": []}}
    async with stage.running() as manager:
        with pytest.raises(VolumesNotReadyError) as caught:
            await manager.prepare(pod("web", disk, empty_dir()))

    assert not caught.value.timed_out
    assert (caught.value.unmounted, caught.value.unprocessed) == (("disk",), ("disk",))
    assert "install the CSI driver cephfs.csi.ceph.com" in caught.value.cause


async def test_a_container_added_later_gets_the_volumes_that_it_mounts(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(EMPTY_DIR)
    async with stage.running() as manager:
        await manager.prepare(pod("web", empty_dir("a"), empty_dir("b"), mounts=["a"]))
        assert kind.calls == ["set_up a"]
        await manager.prepare(pod("web", empty_dir("a"), empty_dir("b"), mounts=["a", "b"]))
        assert kind.calls == ["set_up a", "set_up b"]


async def test_a_uid_that_is_no_folders_name_is_refused(stage: Stage) -> None:
    bad = pod("web")
    bad = attrs.evolve(bad, metadata=ObjectMeta(name="web", namespace="default", uid="../etc"))
    async with stage.running() as manager:
        with pytest.raises(PodFoldersError):
            await manager.prepare(bad)
        await manager.release("../etc")


async def test_sub_paths_are_bound_to_a_place_of_their_own_and_gone_with_the_volume(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.kind(EMPTY_DIR)
    web = pod("web", empty_dir())
    async with stage.running() as manager:
        with pytest.raises(FileNotFoundError):
            await manager.bind_subpath(web, "main", 0, "cache", "sub")
        await manager.prepare(web)
        path = manager.host_path(web, "cache")
        assert path is not None
        bound = await manager.bind_subpath(web, "main", 0, "cache", "sub")
        assert bound == stage.root / "pods/uid-web/volume-subpaths/cache/main/0"
        assert [str(mount.point) for mount in stage.mounter.mounts] == [str(bound)]
        with pytest.raises(ValueError, match="subPath"):
            await manager.bind_subpath(web, "main", 1, "cache", "../../x")
        (path / "sub").rmdir()
        await manager.release("uid-web")

    assert stage.mounter.mounts == []
    assert not (stage.root / "pods/uid-web").exists()


async def test_usage_is_what_was_last_measured(stage: Stage, autojump_clock: MockClock) -> None:
    stage.usage_period = 60
    kind = stage.kind(EMPTY_DIR, used=7)
    async with stage.running() as manager:
        assert await manager.usage("uid-web") == {}
        await manager.prepare(pod("web", empty_dir()))
        await trio.sleep(200)
        assert (await manager.usage("uid-web"))["cache"].used == 7
        asked = kind.count("usage")
        await manager.usage("uid-web")
        assert kind.count("usage") == asked
        await manager.release("uid-web")
        await trio.sleep(200)
        assert await manager.usage("uid-web") == {}


async def test_many_pods_leave_nothing(stage: Stage, autojump_clock: MockClock) -> None:
    pods = examples(300)
    stage.kind(EMPTY_DIR)
    stage.kind(CONFIG_MAP, refreshing=True)
    async with stage.running() as manager:
        async with trio.open_nursery() as nursery:
            for number in range(pods):
                nursery.start_soon(manager.prepare, pod(f"p{number}", empty_dir(), config_map()))
        async with trio.open_nursery() as nursery:
            for number in range(pods):
                nursery.start_soon(manager.release, f"uid-p{number}")

        assert set(manager.statistics().values()) == {0}
        assert await manager.pod_uids() == set()
