"""Looking at the node."""

from __future__ import annotations

import ipaddress
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from tests.node.stage import IP, MACHINE, SETTINGS
from trikubelet.node.address_choice import HostAddresses, IPAddress
from trikubelet.node.conditions import Pressure
from trikubelet.node.observer import IMAGES_PERIOD, FactSources, NodeObserver, look_up
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.runtime.state import RuntimeState
from trikubelet.sim import SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

OTHER = ipaddress.ip_address("10.0.0.9")


async def nowhere(name: str) -> tuple[IPAddress, ...]:
    await trio.lowlevel.checkpoint()
    return ()


@asynccontextmanager
async def observing(sim: SimulatedRuntime, **parts: Any) -> AsyncIterator[NodeObserver]:
    async with sim.connect() as channel, trio.open_nursery() as nursery:
        state = RuntimeState(RuntimeClient(channel))
        options: dict[str, Any] = {
            "runtime_version": lambda: v1.VersionResponse(runtime_name="sim", runtime_version="v1.2.3"),
            "host": lambda: HostAddresses(local=frozenset({IP}), preferred=(IP,)),
            "lookup": nowhere,
        }
        sources = FactSources(**(options | parts))
        observer = NodeObserver(MACHINE, SETTINGS.addresses, state, ImageClient(channel), sources)
        await nursery.start(state.run)
        await nursery.start(observer.run)
        yield observer
        nursery.cancel_scope.cancel()


async def test_facts_are_gathered_from_all_parts(autojump_clock: MockClock) -> None:
    parts = {"pressure": lambda: Pressure(disk=True), "volumes_in_use": lambda: ("v",), "warnings": lambda: ("w",)}
    async with observing(SimulatedRuntime(), **parts, shutdown_problem=lambda: "node is shutting down") as observer:
        facts = observer.facts()
        assert (facts.machine, facts.runtime_name, facts.runtime_version) == (MACHINE, "sim", "v1.2.3")
        assert facts.problems == ("node is shutting down",)
        assert (facts.pressure, facts.volumes_in_use, facts.warnings) == (Pressure(disk=True), ("v",), ("w",))
        assert facts.host.preferred == (IP,)
        assert list(facts.abilities.handlers) == [""]


async def test_images_that_come_are_seen_and_told(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with observing(sim) as observer:
        before = observer.facts().images
        changes = observer.changed.subscribe()
        async with sim.connect() as channel:
            await ImageClient(channel).pull_image(v1.ImageSpec(image="registry.example/new:1"))
        await trio.sleep(IMAGES_PERIOD + 1)
        assert len(observer.facts().images) == len(before) + 1
        assert len(changes) == 1


async def test_images_stay_known_while_the_runtime_does_not_answer(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    async with sim.connect() as channel:
        await ImageClient(channel).pull_image(v1.ImageSpec(image="registry.example/new:1"))
    async with observing(sim) as observer:
        known = observer.facts().images
        assert known
        sim.restart(downtime=200)
        await trio.sleep(100)
        assert observer.facts().images == known
        assert observer.facts().problems != ()


async def test_a_host_that_cannot_be_asked_keeps_its_addresses(autojump_clock: MockClock) -> None:
    answers: list[Any] = [HostAddresses(preferred=(IP,))]

    def host() -> HostAddresses:
        if not answers:
            raise OSError("no netlink")
        found: HostAddresses = answers.pop()
        return found

    async with observing(SimulatedRuntime(), host=host) as observer:
        assert observer.facts().host.problem is None
        again = observer.facts().host
        assert (again.preferred, again.problem) == ((IP,), "no netlink")


async def test_what_the_name_server_said_counts_until_it_says_otherwise(autojump_clock: MockClock) -> None:
    answers: list[tuple[IPAddress, ...] | None] = [(), None, (OTHER,)]

    async def lookup(name: str) -> tuple[IPAddress, ...] | None:
        await trio.lowlevel.checkpoint()
        assert name == "n"
        return answers.pop() if answers else ()

    async with observing(SimulatedRuntime(), lookup=lookup) as observer:
        assert observer.facts().host.resolved == (OTHER,)
        await trio.sleep(11)
        assert observer.facts().host.resolved == (OTHER,)
        await trio.sleep(10)
        assert observer.facts().host.resolved == ()


async def test_a_start_that_asks_no_name_server_waits_for_nothing(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with observing(SimulatedRuntime(), lookup=None) as observer:
        assert trio.current_time() == began
        assert observer.facts().host.preferred == (IP,)


async def test_a_name_in_the_hosts_file_is_found() -> None:
    found = await look_up("localhost")
    assert found
    assert all(ip.is_loopback for ip in found)
