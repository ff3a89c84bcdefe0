"""The connection to the message bus, on a real one."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
import trio
from jeepney import DBusAddress, HeaderFields, new_signal
from jeepney.io.trio import open_dbus_connection

from tests.patience import PATIENCE
from tests.private_bus import Handler, PrivateBus, RefusalError, bus, service
from trikubelet.linux.dbus import Bus, BusError, BusLostError, BusReplyError, Interface, open_bus

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bus"]

CLOCK = Interface("org.example.Clock", "/org/example/Clock", "org.example.Clock.Hands")


async def add(one: int, other: int) -> tuple[str, tuple[Any, ...]]:
    return "i", (one + other,)


async def refuse() -> tuple[str, tuple[Any, ...]]:
    raise RefusalError("org.example.No", "not today")


async def never() -> tuple[str, tuple[Any, ...]]:
    await trio.sleep_forever()
    raise AssertionError


def properties(name: str) -> tuple[str, Any]:
    return "t", len(name)


METHODS: dict[str, Handler] = {"Add": add, "Refuse": refuse, "Never": never}


async def test_methods_and_properties(bus: PrivateBus) -> None:
    async with service(bus.address, CLOCK, METHODS, properties), open_bus(bus.address) as connection:
        assert await connection.call(CLOCK, "Add", "ii", 2, 3, answer="i") == (5,)
        assert await connection.get(CLOCK, "Hours", "t") == 5
        with pytest.raises(
            BusReplyError, match=r"Hands\.Refuse was answered with org\.example\.No: not today"
        ) as caught:
            await connection.call(CLOCK, "Refuse")
        assert caught.value.name == "org.example.No"
        with pytest.raises(BusError, match=r"Hands\.Never was not answered within 0\.05 s"):
            await connection.call(CLOCK, "Never", within=0.05)
        nobody = Interface("org.example.Nobody", "/", "org.example.Nobody")
        with pytest.raises(BusReplyError, match="ServiceUnknown"):
            await connection.call(nobody, "Add")


async def test_an_answer_of_another_shape_is_an_error_like_any_other(bus: PrivateBus) -> None:
    async with service(bus.address, CLOCK, METHODS, properties), open_bus(bus.address) as connection:
        with pytest.raises(BusError, match=r"Hands\.Add was answered with values of the types 'i', expected 's'"):
            await connection.call(CLOCK, "Add", "ii", 1, 1, answer="s")
        with pytest.raises(BusError, match="the types 'i', expected ''"):
            await connection.call(CLOCK, "Add", "ii", 1, 1)
        with pytest.raises(BusError, match=r"Hands\.Hours was answered with values of the types 't', expected 'b'"):
            await connection.get(CLOCK, "Hours", "b")


async def test_many_calls_at_once_each_get_their_own_answer(bus: PrivateBus) -> None:
    answers: dict[int, Any] = {}

    async def ask(connection: Bus, number: int) -> None:
        (answers[number],) = await connection.call(CLOCK, "Add", "ii", number, number, answer="i")

    async with service(bus.address, CLOCK, METHODS, properties), open_bus(bus.address) as connection:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, connection, number)
    assert answers == {number: 2 * number for number in range(50)}


async def test_signals_count_when_the_service_sends_them(bus: PrivateBus) -> None:
    async with (
        service(bus.address, CLOCK, METHODS, properties) as clock,
        open_bus(bus.address) as connection,
        connection.signals(CLOCK, "Struck") as signals,
    ):
        forger = await open_dbus_connection(bus.address)
        await forger.send(new_signal(CLOCK.address, "Struck", "i", (13,)))
        direct = new_signal(DBusAddress(CLOCK.path, interface=CLOCK.name), "Struck", "i", (14,))
        direct.header.fields[HeaderFields.destination] = connection._connection.unique_name
        await forger.send(direct)
        await forger.aclose()
        await clock.emit("Chimed", "i", 1)
        await clock.emit("Struck", "i", 12)
        with trio.fail_after(5):
            assert await signals.receive() == (12,)


async def test_a_subscription_ends_when_its_service_is_another_one(bus: PrivateBus) -> None:
    async with open_bus(bus.address) as connection:
        with pytest.raises(BusReplyError, match="NameHasNoOwner"):
            async with connection.signals(CLOCK, "Struck"):
                pass
        async with service(bus.address, CLOCK, METHODS, properties):
            subscription = connection.signals(CLOCK, "Struck")
            signals = await subscription.__aenter__()
        with trio.fail_after(5), pytest.raises(trio.EndOfChannel):
            await signals.receive()
        await subscription.__aexit__(None, None, None)
        async with service(bus.address, CLOCK, METHODS, properties):
            assert await connection.call(CLOCK, "Add", "ii", 1, 1, answer="i") == (2,), (
                "the connection itself is as good as before"
            )


async def test_who_is_cancelled_hears_of_nothing_else(bus: PrivateBus) -> None:
    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        async with open_bus(bus.address) as connection, connection.signals(CLOCK, "Struck") as signals:
            task_status.started()
            await signals.receive()

    async with service(bus.address, CLOCK, METHODS, properties), trio.open_nursery() as nursery:
        await nursery.start(listen)
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught


async def test_a_bus_that_goes_is_told_to_everybody(bus: PrivateBus) -> None:
    lost: list[str] = []

    async def ask(connection: Bus) -> None:
        with pytest.raises(BusLostError) as caught:
            await connection.call(CLOCK, "Never")
        lost.append(str(caught.value))

    async with service(bus.address, CLOCK, METHODS, properties), open_bus(bus.address) as connection:
        async with connection.signals(CLOCK, "Struck") as signals, trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection)
            await trio.testing.wait_all_tasks_blocked()
            bus.stop()
            with trio.fail_after(5), pytest.raises(trio.EndOfChannel):
                await signals.receive()
        with pytest.raises(BusLostError, match="is lost"):
            await connection.call(CLOCK, "Add", "ii", 1, 1, answer="i")
    assert "Never" in lost[0]


async def test_descriptors_that_nobody_takes_are_closed(bus: PrivateBus) -> None:
    ours, theirs = os.pipe()

    async def give() -> tuple[str, tuple[Any, ...]]:
        await trio.sleep(0.1)
        return "h", (theirs,)

    async with service(bus.address, CLOCK, {"Give": give, **METHODS}, properties), open_bus(bus.address) as connection:
        (taken,) = await connection.call(CLOCK, "Give", answer="h")
        taken.close()
        with pytest.raises(BusError, match="not answered"):
            await connection.call(CLOCK, "Give", within=0.02)
        await trio.sleep(0.2)
        assert await connection.call(CLOCK, "Add", "ii", 1, 1, answer="i") == (2,)
    os.close(theirs)
    with trio.fail_after(5):
        await trio.lowlevel.wait_readable(ours)  # the last writer is gone
    os.close(ours)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("unix:path=/nonexistent/bus", "cannot connect to the message bus at /nonexistent/bus: .*No such file"),
        ("tcp:host=localhost,port=1", "expected the address of a message bus, unix:path="),
        ("nonsense", "expected the address of a message bus, unix:path="),
    ],
)
async def test_a_bus_that_is_not_there(address: str, text: str) -> None:
    with pytest.raises(BusError, match=text):
        async with open_bus(address):
            pass


async def test_a_socket_that_is_no_bus(tmp_path: Path) -> None:
    async def close_at_once(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async def say_nothing(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    for name, handler, within, text in (
        ("closes", close_at_once, PATIENCE, "closed the connection during the handshake"),
        ("silent", say_nothing, 0.1, "has not answered for 0.1 s"),
    ):
        listener = trio.socket.socket(socket.AF_UNIX)
        await listener.bind(str(tmp_path / name))
        listener.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, handler, [trio.SocketListener(listener)])
            with pytest.raises(BusError, match=text):
                async with open_bus(f"unix:path={tmp_path / name}", within=within):
                    pass
            nursery.cancel_scope.cancel()
