"""How the owner of pods' volumes keeps up to date what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.volumes.stage import (
    Stage,
    at,
    config_map,
    empty_dir,
    pod,
    stage,
)
from trikubelet.volumes.errors import (
    UncertainVolumeError,
    VolumeError,
)

if TYPE_CHECKING:
    from trio.testing import MockClock


__all__ = ["stage"]

CONFIG_MAP = "kubernetes.io/configmap"
EMPTY_DIR = "kubernetes.io/empty-dir"
CSI = "kubernetes.io/csi"


async def test_an_object_that_appears_ends_the_backoff(stage: Stage, autojump_clock: MockClock) -> None:
    missing = VolumeError("config", "not found")
    stage.kind(CONFIG_MAP, behaviours={"set_up": [missing] * 5})
    async with stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, pod("web", config_map()))
        await trio.sleep(8.1)  # the next attempt would be at 15.5
        assert stage.kinds[CONFIG_MAP].count("set_up") == 5
        stage.objects.change("configmaps", "default", "other")
        stage.objects.change("secrets", "default", "settings")
        await trio.sleep(0.1)
        assert stage.kinds[CONFIG_MAP].count("set_up") == 5
        stage.objects.change("configmaps", "default", "settings")
    assert trio.current_time() == pytest.approx(8.2)


async def test_a_changed_object_is_shown_at_once_by_the_volumes_that_show_it(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind(CONFIG_MAP, refreshing=True)
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map("a", "one"), config_map("b", "two")))
        stage.objects.change("configmaps", "default", "two")
        await trio.sleep(0.01)

        assert kind.calls[2:] == ["refresh b"]


async def test_an_object_that_changes_during_the_refresh_is_shown_again(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind(CONFIG_MAP, refreshing=True, behaviours={"refresh": [5.0]})
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map()))
        for _ in range(10):
            stage.objects.change("configmaps", "default", "settings")
            await trio.sleep(0.1)
        await trio.sleep(10)

    assert kind.count("refresh") == 2
    assert kind.most_at_once == 1


async def test_an_object_that_changes_during_the_set_up_is_shown_again(stage: Stage, autojump_clock: MockClock) -> None:
    kind = stage.kind(CONFIG_MAP, refreshing=True, behaviours={"set_up": [5.0]})
    async with stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, pod("web", config_map()))
        await trio.sleep(1)
        stage.objects.change("configmaps", "default", "settings")
        await trio.sleep(10)

    assert kind.calls == ["set_up config", "refresh config"]


async def test_a_failed_refresh_leaves_the_volume_to_the_pod_and_is_tried_again(
    stage: Stage, autojump_clock: MockClock
) -> None:
    away = UncertainVolumeError("config", "no answer")
    kind = stage.kind(CONFIG_MAP, refreshing=True, behaviours={"refresh": [away, VolumeError("config", "gone")]})
    web = pod("web", config_map())
    async with stage.running() as manager:
        await manager.prepare(web)
        stage.objects.change("configmaps", "default", "settings")
        for _ in range(10):
            await trio.sleep(0.2)
            assert manager.host_path(web, "config") is not None
            await manager.prepare(web)

    assert kind.count("refresh") == 3
    assert stage.messages("uid-web") == [
        'MountVolume.SetUp failed for volume "config" : no answer',
        'MountVolume.SetUp failed for volume "config" : gone',
    ]


async def test_a_failure_after_a_success_begins_with_the_shortest_backoff(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind(CONFIG_MAP, refreshing=True, behaviours={"refresh": [VolumeError("config", "no")] * 5})
    async with stage.running() as manager:
        await manager.prepare(pod("web", config_map()))
        stage.objects.change("configmaps", "default", "settings")
        await trio.sleep(60)
        assert kind.count("refresh") == 6
        kind.behaviours = {"refresh": [VolumeError("config", "no")]}
        stage.objects.change("configmaps", "default", "settings")
        await trio.sleep(0.6)
        assert kind.count("refresh") == 8


async def test_a_pod_whose_labels_changed_is_shown_anew_by_its_next_sync(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind("kubernetes.io/downward-api", refreshing=True)
    web = pod("web", {"name": "info", "downwardAPI": {"items": []}}, labels={"color": "red"})
    async with stage.running() as manager:
        await manager.prepare(web)
        await manager.prepare(web)
        manager.refresh(web)
        await trio.sleep(0.1)
        assert kind.count("refresh") == 0
        blue = attrs.evolve(web, metadata=attrs.evolve(web.metadata, labels={"color": "blue"}))
        manager.refresh(blue)
        await trio.sleep(0.1)

    assert kind.count("refresh") == 1
    assert kind.requests[-1].pod.metadata.labels == {"color": "blue"}


async def test_each_sync_renews_content_that_is_not_fresh(stage: Stage, autojump_clock: MockClock) -> None:
    kind, other = stage.kind(CONFIG_MAP, refreshing=True), stage.kind(EMPTY_DIR)
    web = pod("web", config_map(), empty_dir())
    async with stage.running() as manager:
        await manager.prepare(web)
        for _ in range(5):
            await trio.sleep(60)
            manager.refresh(web)
            manager.refresh(web)
        await trio.sleep(1)

    assert kind.count("refresh") == 5
    assert other.calls == ["set_up cache"]


async def test_content_is_renewed_when_its_time_comes(stage: Stage, autojump_clock: MockClock) -> None:
    stage.clock.now()
    kind = stage.kind("kubernetes.io/projected", refresh_at=lambda: at(trio.current_time() + 2880))
    async with stage.running() as manager:
        await manager.prepare(pod("web", {"name": "token", "projected": {"sources": []}}))
        await trio.sleep(2879)
        assert kind.count("refresh") == 0
        await trio.sleep(12)
        assert kind.count("refresh") == 1
        await trio.sleep(2880)
        assert kind.count("refresh") == 2


async def test_content_that_could_not_be_renewed_is_not_asked_for_all_the_time(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.clock.now()
    kind = stage.kind("kubernetes.io/projected", refresh_at=lambda: at(100))
    async with stage.running() as manager:
        await manager.prepare(pod("web", {"name": "token", "projected": {"sources": []}}))
        await trio.sleep(700)

    assert 10 <= kind.count("refresh") <= 20


async def test_credentials_that_changed_are_shown_by_the_volumes_that_show_them(
    stage: Stage, autojump_clock: MockClock
) -> None:
    kind = stage.kind("kubernetes.io/projected", refreshing=True)
    bundle = {"name": "bundle", "projected": {"sources": [{"clusterTrustBundle": {"name": "ca", "path": "ca.pem"}}]}}
    token = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    async with stage.running() as manager:
        await manager.prepare(pod("a", bundle, token))
        await manager.prepare(pod("b", bundle))
        stage.credentials.change("uid-a")
        await trio.sleep(0.1)
        assert kind.calls[3:] == ["refresh bundle"]
        stage.credentials.change("")
        await trio.sleep(0.1)
        assert kind.calls[4:] == ["refresh bundle", "refresh bundle"]
