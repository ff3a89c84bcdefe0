from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from tests.volumes.stage import Stage, config_map, empty_dir, pod, stage
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.sources import CONFIG_MAP, EMPTY_DIR

if TYPE_CHECKING:
    from trio.testing import MockClock

__all__ = ["stage"]


async def test_what_is_not_there_yet_is_told_with_what_is_done_and_why_it_failed(
    stage: Stage, autojump_clock: MockClock
) -> None:
    missing = VolumeError("config", 'configmap "settings" not found')
    stage.kind(CONFIG_MAP, behaviours={"set_up": [missing] * 100})
    stage.kind(EMPTY_DIR, behaviours={"set_up": [math.inf]})
    async with stage.running() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.prepare, pod("web", config_map(), empty_dir()))
        await trio.sleep(10)
        cache, config = manager.waits("uid-web")
        assert (cache.volume, cache.doing, cache.problem) == ("cache", "set up", "")
        assert cache.since is not None
        assert trio.current_time() - cache.since > 9
        assert (config.volume, config.doing) == ("config", ""), "it waits for another attempt"
        assert config.problem.endswith('configmap "settings" not found')
        assert manager.waits("uid-nobody") == ()
        nursery.cancel_scope.cancel()


async def test_what_does_not_go_is_told_until_it_has(stage: Stage, autojump_clock: MockClock) -> None:
    stage.kind(EMPTY_DIR, behaviours={"tear_down": [20.0]})
    async with stage.running() as manager, trio.open_nursery() as nursery:
        web = pod("web", empty_dir())
        await manager.prepare(web)
        assert manager.waits("uid-web") == ()
        nursery.start_soon(manager.release, "uid-web")
        await trio.sleep(10)
        (cache,) = manager.waits("uid-web")
        assert (cache.volume, cache.doing) == ("cache", "tear down")
        await trio.sleep(15)
        assert manager.waits("uid-web") == ()
