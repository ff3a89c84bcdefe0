"""Plugins introduce themselves, and are taken into use or told why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tests.plugins.stage import FakePlugin, NotingHandler, registering
from tests.throwing import throw_into, tree
from trikubelet.supervision import FAULTS

if TYPE_CHECKING:
    from trio.testing import MockClock

ONE, OTHER = Path("/reg/one.sock"), Path("/reg/other.sock")
PREFIX = "RegisterPlugin error -- "


async def test_a_plugin_is_validated_registered_and_told_so(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        plugin = stage.add(ONE, FakePlugin("d", endpoint="/csi.sock", versions=("1.0.0", "0.3")))
        await trio.sleep(0.1)
        assert stage.handler.calls == ["validate d /csi.sock 1.0.0,0.3", "register d"]
        assert plugin.told == [""]
        assert stage.status() == [("Test d", True)]


async def test_without_an_endpoint_the_plugin_works_on_the_socket_that_it_registered_with(
    autojump_clock: MockClock,
) -> None:
    async with registering() as stage:
        stage.add(ONE, FakePlugin())
        await trio.sleep(0.1)
        assert stage.handler.registered["d"].endpoint == str(ONE)


async def test_a_plugin_whose_socket_went_is_given_up(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(ONE, FakePlugin())
        await trio.sleep(0.1)
        stage.sockets.vanish(ONE)
        await trio.sleep(0.1)
        assert stage.handler.calls[-1] == "deregister d"
        assert stage.registrar.statistics() == []


async def test_a_plugin_that_is_given_up_is_registered_and_not_wanted(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(ONE, FakePlugin())
        stage.add(OTHER, FakePlugin("e", type_="Unknown"))
        await trio.sleep(0.1)
        assert [(one.wanted, one.registered) for one in stage.registrar.statistics()] == [(True, True), (True, False)]
        stage.handler.giving_up_takes = 5.0
        stage.sockets.vanish(ONE)
        await trio.sleep(0.1)
        assert [(one.wanted, one.registered) for one in stage.registrar.statistics()] == [(False, True), (True, False)]


async def test_a_socket_made_anew_is_another_plugin(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(ONE, FakePlugin("d"))
        await trio.sleep(0.1)
        plugin = stage.add(ONE, FakePlugin("d", versions=("2",)))
        await trio.sleep(0.1)
        assert stage.handler.calls == [
            f"validate d {ONE} 1",
            "register d",
            "deregister d",
            f"validate d {ONE} 2",
            "register d",
        ]
        assert plugin.told == [""]


async def test_a_type_that_nobody_handles_is_refused_until_somebody_does(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        plugin = stage.add(ONE, FakePlugin(type_="DevicePlugin"))
        await trio.sleep(0.1)
        refusal = f"{PREFIX}no handler registered for plugin type: DevicePlugin at socket {ONE}"
        assert plugin.told == [refusal]
        handler = NotingHandler()
        stage.registrar.add_handler("DevicePlugin", handler)
        await trio.sleep(0.1)
        assert plugin.told == [refusal, ""]
        assert list(handler.registered) == ["d"]


async def test_a_refused_plugin_is_told_why_and_asked_again_ever_more_seldom(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.handler.invalid = "version 9 is not supported"
        plugin = stage.add(ONE, FakePlugin())
        await trio.sleep(0.4)
        assert plugin.told == [f"{PREFIX}plugin validation failed with err: version 9 is not supported"]
        await trio.sleep(3600)
        assert 30 < len(plugin.told) < 45
        assert "register d" not in stage.handler.calls
        stage.handler.invalid = ""
        await trio.sleep(140)
        assert plugin.told[-1] == ""
        assert stage.registrar.statistics()[0].failures == 0


async def test_a_plugin_that_cannot_be_used_is_not_given_up_for_it(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.handler.refusal = "NodeGetInfo failed"
        plugin = stage.add(ONE, FakePlugin())
        await trio.sleep(0.1)
        assert plugin.told == [f"{PREFIX}plugin registration failed with err: NodeGetInfo failed"]
        stage.sockets.vanish(ONE)
        await trio.sleep(0.1)
        assert stage.handler.calls == [f"validate d {ONE} 1", "register d"]


async def test_a_plugin_that_does_not_hear_that_it_is_used_is_not(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        plugin = FakePlugin()
        plugin.fails_to_hear = 1
        stage.add(ONE, plugin)
        await trio.sleep(0.3)
        assert stage.handler.calls[-1] == "deregister d"
        assert "failed to send registration status" in stage.registrar.statistics()[0].problem
        await trio.sleep(1)
        assert plugin.told == [""]
        assert stage.status() == [("Test d", True)]


async def test_a_socket_on_which_nobody_listens_yet_is_no_failure(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        plugin = FakePlugin()
        plugin.listening = False
        stage.add(ONE, plugin)
        await trio.sleep(3)
        assert stage.registrar.statistics()[0].failures == 0
        plugin.listening = True
        await trio.sleep(2)
        assert plugin.told == [""]


async def test_a_plugin_that_says_nothing_is_waited_for_some_time_only(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        plugin = FakePlugin()
        plugin.info_takes = 1e6
        stage.add(ONE, plugin)
        await trio.sleep(11.2)
        (status,) = stage.registrar.statistics()
        assert status.problem.startswith(f"{PREFIX}failed to get plugin info using RPC GetInfo at socket {ONE}")
        plugin.info_takes = 0
        await trio.sleep(2)
        assert plugin.told == [""]


async def test_a_socket_that_goes_while_its_plugin_is_registered_ends_that_and_gives_it_up(
    autojump_clock: MockClock,
) -> None:
    async with registering() as stage:
        stage.handler.takes = 100
        plugin = stage.add(ONE, FakePlugin())
        await trio.sleep(1)
        stage.sockets.vanish(ONE)
        await trio.sleep(1)
        assert stage.handler.calls == [f"validate d {ONE} 1", "register d", "deregister d"]
        assert plugin.told == []


async def test_a_plugin_that_waits_for_its_name_has_it_as_soon_as_the_other_is_gone(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(ONE, FakePlugin())
        await trio.sleep(0.1)
        second = stage.add(OTHER, FakePlugin())
        await trio.sleep(600)
        assert "" not in second.told
        stage.sockets.vanish(ONE)
        await trio.sleep(0.1)
        assert second.told[-1] == ""
        assert stage.status() == [("Test d", True)]


async def test_what_is_done_for_one_name_has_an_order_and_other_names_do_not_wait(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.handler.takes = 10
        stage.handler.one_of_a_name = False
        for name in ("same", "same", "different"):
            stage.add(Path(f"/reg/{len(stage.plugins)}"), FakePlugin(name))
        await trio.sleep(1)
        assert sorted(call.split()[1] for call in stage.handler.calls if call.startswith("register")) == [
            "different",
            "same",
        ]
        await trio.sleep(10)
        assert stage.handler.calls.count("register same") == 2


async def test_the_end_of_the_registrar_leaves_plugins_registered(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(ONE, FakePlugin())
        await trio.sleep(0.1)
    assert list(stage.handler.registered) == ["d"]


async def test_a_plugin_that_brings_a_fault_to_light_is_taken_up_again(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(OTHER, FakePlugin("well"))
        await trio.sleep(0.1)
        stage.handler.faults = 1
        plugin = stage.add(ONE, FakePlugin("odd"))
        await trio.sleep(FAULTS.first + 0.5)
        assert stage.handler.calls[2:] == [
            f"validate odd {ONE} 1",
            "register odd",
            "deregister odd",
            f"validate odd {ONE} 1",
            "register odd",
        ]
        assert plugin.told == [""]
        assert stage.status() == [("Test odd", True), ("Test well", True)]


async def test_a_fault_while_sockets_are_looked_at_leaves_plugins_as_they_are(autojump_clock: MockClock) -> None:
    async with registering() as stage:
        stage.add(OTHER, FakePlugin("well"))
        await trio.sleep(0.1)
        [looking] = [task for _, task in tree(stage.root) if task.name.endswith("PluginRegistrar.run")]
        throw_into(looking)
        stage.add(ONE, FakePlugin("late"))
        await trio.sleep(FAULTS.first + 0.5)
        assert stage.status() == [("Test late", True), ("Test well", True)]
        assert "deregister well" not in stage.handler.calls
