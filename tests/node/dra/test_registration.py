"""Plugins that come and go, and slices of those that are gone (`registration_test.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.dra_driver import ToyDriver
from tests.kube_client.scripted_client import lost, status_error
from tests.node.dra.situations import TOY, make_pod
from tests.node.dra.stage import NODE, Stage, claim_stage, settle
from trikubelet.api import ObjectMeta, ResourceSlice, ResourceSliceSpec
from trikubelet.kube_client.types import RESOURCE_SLICES
from trikubelet.node.dra.plugin import DRAPluginError, chosen_service
from trikubelet.node.dra.slices import WIPING_DELAY
from trikubelet.plugins.handlers import PluginRefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["v1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin"], "v1beta1.DRAPlugin"),
        (["v1.DRAPlugin", "v1alpha1.NodeHealth"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1.DRAPlugin"),
    ],
)
def test_the_newest_version_is_spoken(versions: list[str], chosen: str) -> None:
    assert chosen_service(versions) == chosen


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ((), "empty list of supported gRPC services"),
        (("1.0.0",), 'none of services supported by the plugin (["1.0.0"]) are supported by the kubelet'),
    ],
)
async def test_a_plugin_that_speaks_none_is_refused(
    tmp_path: Path, autojump_clock: MockClock, versions: tuple[str, ...], problem: str
) -> None:
    async with claim_stage(tmp_path) as stage:
        plugin = stage.plugin(ToyDriver(versions=versions))
        with pytest.raises(PluginRefusedError) as error:
            stage.manager.plugin_handler.validate(plugin)
        prefix = f"invalid supported gRPC versions of DRA driver plugin {TOY} at endpoint {plugin.endpoint}: "
        assert str(error.value).startswith(prefix + problem)


async def test_the_newest_plugin_that_can_be_reached_is_asked(tmp_path: Path, autojump_clock: MockClock) -> None:
    old, new = ToyDriver(), ToyDriver()
    async with claim_stage(tmp_path) as stage:
        plugins = stage.manager.plugin_handler
        with pytest.raises(DRAPluginError, match=f"DRA driver {TOY} is not registered"):
            plugins.get(TOY)
        await stage.register(old)
        await stage.register(new, "new.sock")
        with pytest.raises(PluginRefusedError, match="already registered for DRA driver plugin"):
            await stage.register(new, "new.sock")
        assert plugins.get(TOY).endpoint.endswith("new.sock")
        stage.kill(new)
        await settle()
        assert plugins.get(TOY).endpoint.endswith("toy.sock")
        stage.kill(old)
        await settle()
        assert plugins.get(TOY).endpoint.endswith("new.sock")
        await stage.deregister(new, "new.sock")
        await stage.deregister(new, "new.sock")
        assert plugins.get(TOY).endpoint.endswith("toy.sock")
        await stage.deregister(old)
        assert plugins.all() == []


async def test_no_plugins_are_taken_before_the_agent_runs_and_after(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with claim_stage(tmp_path) as stage:
        await stage.stop()
        with pytest.raises(PluginRefusedError, match="the agent starts, or ends"):
            await stage.register(ToyDriver())


def put_slices(stage: Stage) -> None:
    for name, driver, node in (("own", TOY, NODE), ("other", "other.example.com", NODE), ("far", TOY, "elsewhere")):
        stage.client.put(ResourceSlice(metadata=ObjectMeta(name=name), spec=ResourceSliceSpec(driver, node)))


def slices(stage: Stage) -> list[str]:
    return [one.metadata.name for one in stage.client.all_of(RESOURCE_SLICES)]


async def test_slices_of_the_node_go_when_the_agent_starts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with claim_stage(tmp_path) as stage:
        put_slices(stage)
        await stage.restart()
        await trio.sleep(1)
        assert slices(stage) == ["far"]
        assert {call.options["field_selector"] for call in stage.client.called("deletecollection")} == {
            f"spec.nodeName={NODE}"
        }


@pytest.mark.parametrize("how", ["deregistered", "killed"])
async def test_slices_of_a_driver_go_half_a_minute_after_it(
    tmp_path: Path, autojump_clock: MockClock, how: str
) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        await trio.sleep(100)
        put_slices(stage)
        if how == "killed":
            stage.kill(driver)
        else:
            await stage.deregister(driver)
        await trio.sleep(WIPING_DELAY - 1)
        assert slices(stage) == ["far", "other", "own"]
        await trio.sleep(2)
        assert slices(stage) == ["far", "other"]


async def test_a_driver_that_comes_back_in_time_keeps_them(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        put_slices(stage)
        stage.kill(driver)
        await trio.sleep(WIPING_DELAY - 10)
        stage.listen(driver)
        await trio.sleep(100)
        assert "own" in slices(stage)
        stage.client.fail("deletecollection", RESOURCE_SLICES, lost(), times=1000)
        stage.kill(driver)
        await trio.sleep(WIPING_DELAY + 10)
        stage.listen(driver)
        await trio.sleep(10)
        stage.client.heal()
        await trio.sleep(1000)
        assert "own" in slices(stage), "an attempt that failed is not made again"


@pytest.mark.parametrize("error", [status_error(401, "Unauthorized"), status_error(500), lost()])
async def test_a_deletion_that_fails_is_tried_again(tmp_path: Path, autojump_clock: MockClock, error: Any) -> None:
    async with claim_stage(tmp_path) as stage:
        await stage.stop()
        put_slices(stage)
        stage.client.fail("deletecollection", RESOURCE_SLICES, error, times=3)
        await stage.run_manager()
        await trio.sleep(20)
        assert slices(stage) == ["far"]


async def test_a_server_without_slices_is_asked_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with claim_stage(tmp_path) as stage:
        await stage.stop()
        stage.client.fail("deletecollection", RESOURCE_SLICES, status_error(404, "NotFound"), times=10)
        before = len(stage.client.called("deletecollection"))
        await stage.run_manager()
        await trio.sleep(1000)
        assert len(stage.client.called("deletecollection")) == before + 1


async def test_calls_of_a_plugin_that_goes_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(takes=20)
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        began = trio.current_time()
        with pytest.RaisesGroup(Exception):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.manager.prepare, make_pod("p", "c"))
                await driver.begun("NodePrepareResources")
                await stage.deregister(driver)
        assert trio.current_time() - began < 1
