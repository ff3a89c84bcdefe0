"""logind over a real message bus, and the shutdown manager on it."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.node.shutdown.login1 import login1
from tests.node.shutdown.test_groups import CRITICAL, periods, pod
from tests.node.shutdown.test_manager import FakeNode, TrioWallClock
from tests.private_bus import PrivateBus, bus, service
from trikubelet.node.shutdown.interface import LogindError
from trikubelet.node.shutdown.logind import LOGIND, SYSTEMD, WHAT, SystemLogind
from trikubelet.node.shutdown.manager import ShutdownManager
from trikubelet.node.shutdown.record import ShutdownRecord
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

__all__ = ["bus"]


def logind_on(bus: PrivateBus, folder: Path) -> SystemLogind:
    return SystemLogind(bus.address, folder / "logind.conf.d" / "99-kubelet.conf")


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def watching(logind: SystemLogind, node: FakeNode) -> AsyncIterator[ShutdownManager]:
    manager = ShutdownManager(
        logind,
        periods((0, 20), (CRITICAL, 10)),
        record=ShutdownRecord(None),
        recorder=EventRecorder(TrioWallClock()),
        clock=TrioWallClock(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run, node)
        yield manager
        nursery.cancel_scope.cancel()


async def test_what_is_asked_of_logind(bus: PrivateBus, tmp_path: Path) -> None:
    async with login1(bus.address, longest_delay=7) as theirs, logind_on(bus, tmp_path).session() as session:
        assert await session.longest_delay() == 7.0
        assert not await session.is_shutting_down()
        inhibitor = await session.inhibit()
        assert theirs.asked == [("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")]
        assert theirs.asked == [WHAT]
        await theirs.shut_down()
        assert await session.next_change()
        assert await session.is_shutting_down()
        with pytest.raises(LogindError, match="OperationInProgress"):
            await session.inhibit()
        await theirs.call_off()
        assert not await session.next_change()
        await trio.sleep(0.1)
        assert theirs.inhibitors == 1
        inhibitor.release()
        inhibitor.release()
        await until(lambda: theirs.inhibitors == 0)


async def test_logind_is_told_by_its_own_configuration_to_wait_longer(bus: PrivateBus, tmp_path: Path) -> None:
    killed: list[tuple[Any, ...]] = []

    async def kill_unit(*arguments: Any) -> tuple[str, tuple[Any, ...]]:
        killed.append(arguments)
        return "", ()

    logind = logind_on(bus, tmp_path)
    async with (
        login1(bus.address),
        service(bus.address, SYSTEMD, {"KillUnit": kill_unit}, lambda _: ("s", "")),
        logind.session() as session,
    ):
        await session.allow_delay(30)
        assert killed == [("systemd-logind.service", "all", 1)]
        assert logind.override.read_text() == "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n"
        assert logind.override.stat().st_mode & 0o777 == 0o644
        hindered = SystemLogind(bus.address, tmp_path / "bus.conf" / "99-kubelet.conf")
        async with hindered.session() as other:
            with pytest.raises(LogindError, match=r"set InhibitDelayMaxSec=40 in /etc/systemd/logind\.conf"):
                await other.allow_delay(40)


async def test_an_inhibitor_outlives_its_agent_where_the_service_manager_keeps_it(
    bus: PrivateBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        async with login1(bus.address) as theirs:
            async with watching(logind_on(bus, tmp_path), FakeNode([])):
                await until(lambda: theirs.inhibitors == 1)
            await trio.lowlevel.wait_readable(systemd)
            message, (held,), *_ = socket.recv_fds(systemd, 100, 1)
            assert message == b"FDSTORE=1\nFDNAME=shutdown-inhibitor"
            await trio.sleep(0.1)
            assert theirs.inhibitors == 1
            monkeypatch.setattr("trikubelet.linux.sd_notify.kept", lambda name: [held])
            inherited = logind_on(bus, tmp_path).inherited()
            assert inherited is not None
            inherited.release()
            await trio.lowlevel.wait_readable(systemd)
            assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=shutdown-inhibitor"
            await until(lambda: theirs.inhibitors == 0)


async def test_a_logind_that_answers_otherwise(bus: PrivateBus, tmp_path: Path) -> None:
    async def inhibit(*what: str) -> tuple[str, tuple[Any, ...]]:
        return "", ()

    def facts(name: str) -> tuple[str, Any]:
        return ("t", 5) if name == "InhibitDelayMaxUSec" else ("s", "perhaps")

    async with (
        service(bus.address, LOGIND, {"Inhibit": inhibit}, facts),
        logind_on(bus, tmp_path).session() as session,
    ):
        with pytest.raises(LogindError, match=r"Inhibit was answered with values of the types '', expected 'h'"):
            await session.inhibit()
        with pytest.raises(LogindError, match=r"PreparingForShutdown was answered with .* 's', expected 'b'"):
            await session.is_shutting_down()


async def test_no_bus_and_no_logind(bus: PrivateBus, tmp_path: Path) -> None:
    with pytest.raises(LogindError, match="ServiceUnknown"):
        async with logind_on(bus, tmp_path).session():
            pass
    bus.stop()
    with pytest.raises(LogindError, match="cannot connect to the message bus"):
        async with logind_on(bus, tmp_path).session():
            pass


async def test_bus_and_logind_are_started_anew_in_the_middle_of_a_shutdown(bus: PrivateBus, tmp_path: Path) -> None:
    node = FakeNode([pod("critical", CRITICAL, 30), pod("normal", 0, 30)], takes={"normal": 1.0, "critical": 0.1})
    async with watching(logind_on(bus, tmp_path), node) as manager:
        async with login1(bus.address) as first:
            await until(lambda: first.inhibitors == 1)
            await first.shut_down()
            await until(lambda: node.asked)
            bus.restart()
            async with login1(bus.address, preparing=True) as second:
                await until(lambda: second.asked)
                assert first.inhibitors == 1, "the one that delays the shutdown"
                await until(lambda: node.ended == ["normal", "critical"])
                await until(lambda: first.inhibitors == 0)
                assert manager.shutting_down
                assert len(node.asked) == 2, "once each"


async def test_a_new_logind_gets_an_inhibitor_too(bus: PrivateBus, tmp_path: Path) -> None:
    node = FakeNode([])
    async with watching(logind_on(bus, tmp_path), node):
        for _ in range(3):
            async with login1(bus.address) as theirs:
                await until(lambda: theirs.inhibitors == 1)
