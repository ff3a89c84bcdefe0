"""A connection to the system's message bus, by which systemd and logind are asked.

jeepney knows the wire; here is what a long-lived agent needs around it. Every call has a deadline. A signal counts only
when the service itself has sent it: anybody may send signals on a system bus, and what they say makes this agent end
pods. A subscription ends when its service has gone from the bus or come anew, since whatever was arranged with it is
lost then, and when the connection is lost. Nothing connects again by itself: the caller knows what to set up anew.

A connection takes about a millisecond to make, so rare callers make one for each call.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
from jeepney import DBusAddress, HeaderFields, MatchRule, Message, MessageType, Properties, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus import get_bus
from jeepney.bus_messages import message_bus
from jeepney.fds import FileDescriptor
from jeepney.io.trio import DBusConnection

from trikubelet.formats.values import define, frozen
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SYSTEM_BUS: Final = "SYSTEM"
"""The address that DBUS_SYSTEM_BUS_ADDRESS names, else the usual one."""
CONNECT_WITHIN: Final = 5.0
ANSWER_WITHIN: Final = 10.0
"""Seconds."""
_BUS: Final = "org.freedesktop.DBus"
_OWNER_CHANGED: Final = "NameOwnerChanged"


class BusError(Exception):
    """The bus could not be reached, or a call on it has failed."""


class BusLostError(BusError):
    """The connection has ended: nothing will come over it any more."""


class BusReplyError(BusError):
    """The service has refused a call. `name` is the D-Bus name of the error."""

    def __init__(self, called: str, name: str, message: str) -> None:
        super().__init__(f"{called} was answered with {name}: {message}")
        self.name = name


@frozen
class Interface:
    """An interface of one object of a service."""

    service: str
    path: str
    name: str

    @property
    def address(self) -> DBusAddress:
        return DBusAddress(self.path, bus_name=self.service, interface=self.name)


@define(eq=False)
class _Call:
    """A call on its way."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    reply: Message | None = None


@define(eq=False)
class _Subscription:
    interface: Interface
    signal: str
    owner: str
    """The owner of the service's name on the bus. Empty while unknown: then no signal is accepted."""
    send: trio.MemorySendChannel[tuple[Any, ...]]


class Bus:
    """A connection, made by `open_bus`."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._calls: dict[int, _Call] = {}
        self._subscriptions: list[_Subscription] = []
        self._lost: str | None = None

    async def call(
        self,
        interface: Interface,
        method: str,
        signature: str = "",
        *arguments: Any,
        answer: str = "",
        within: float = ANSWER_WITHIN,
    ) -> tuple[Any, ...]:
        """Call a method and give what it answers, which has the signature `answer`; a file descriptor is a jeepney
        `FileDescriptor`, for the caller to close. Raises BusError. Cancelling it does not undo what was asked for."""
        message = new_method_call(interface.address, method, signature or None, arguments)
        return await self._ask(message, f"{interface.name}.{method}", answer, within)

    async def get(self, interface: Interface, name: str, signature: str) -> Any:
        """A property's value, of the type that the signature says. Raises BusError."""
        called = f"{interface.name}.{name}"
        ((found, value),) = await self._ask(Properties(interface.address).get(name), called, "v")
        if found != signature:
            raise _other_answer(called, signature, found)
        return value

    @asynccontextmanager
    async def signals(
        self, interface: Interface, signal: str
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[Any, ...]]]:
        """What the service, which has to be there, tells by a signal: the arguments of each.

        The channel ends when the service is not the same any more, or the connection is lost. Raises BusError.
        """
        send, receive = trio.open_memory_channel[tuple[Any, ...]](math.inf)
        subscription = _Subscription(interface, signal, "", send)
        self._subscriptions.append(subscription)
        owner_changes = MatchRule(type="signal", sender=_BUS, interface=_BUS, member=_OWNER_CHANGED)
        owner_changes.add_arg_condition(0, interface.service)
        wanted = MatchRule(
            type="signal", sender=interface.service, interface=interface.name, member=signal, path=interface.path
        )
        try:
            await self._ask(message_bus.AddMatch(owner_changes), "AddMatch")
            question = message_bus.GetNameOwner(interface.service)
            (subscription.owner,) = await self._ask(question, "GetNameOwner", "s")
            await self._ask(message_bus.AddMatch(wanted), "AddMatch")
            yield receive
        finally:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            send.close()
            receive.close()

    async def receive(self, scope: trio.CancelScope) -> None:
        """Take what comes until the connection is lost or the scope is cancelled."""
        try:
            with scope:
                while True:
                    self._take(await self._connection.receive())
        except Exception as error:  # noqa: BLE001 - jeepney raises whatever it stumbles over in what was sent
            self._lost = str(error) or type(error).__name__
        finally:
            self._lost = self._lost or "it was closed"
            for call in self._calls.values():
                call.answered.set()
            for subscription in self._subscriptions:
                subscription.send.close()
            self._subscriptions.clear()

    async def _ask(
        self, message: Message, called: str, answer: str = "", within: float = ANSWER_WITHIN
    ) -> tuple[Any, ...]:
        """`answer`: the signature of what has to come."""
        if self._lost is not None:
            raise BusLostError(f"cannot call {called}: the connection to the message bus is lost: {self._lost}")
        serial = next(self._connection.outgoing_serial)
        call = self._calls[serial] = _Call()
        try:
            with trio.fail_after(within):
                await self._connection.send(message, serial=serial)
                await call.answered.wait()
            reply, call.reply = call.reply, None
        except trio.TooSlowError:
            raise BusError(f"{called} was not answered within {within:g} s") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise BusLostError(f"cannot call {called}: {error}") from error
        finally:
            del self._calls[serial]
            if call.reply is not None:
                _drop(call.reply)  # it came while the caller was being cancelled
        if reply is None:
            raise BusLostError(f"the connection to the message bus was lost before {called} was answered: {self._lost}")
        if reply.header.message_type is MessageType.error:
            texts = [part for part in reply.body if isinstance(part, str)]
            raise BusReplyError(called, reply.header.fields.get(HeaderFields.error_name, "an error"), " ".join(texts))
        found = reply.header.fields.get(HeaderFields.signature, "")
        if found != answer:
            _drop(reply)
            raise _other_answer(called, answer, found)
        return tuple(reply.body)

    def _take(self, message: Message) -> None:
        fields = message.header.fields
        call = self._calls.get(fields.get(HeaderFields.reply_serial, -1))
        if call is not None and message.header.message_type in (MessageType.method_return, MessageType.error):
            call.reply = message
            call.answered.set()
        elif message.header.message_type is MessageType.signal:
            self._receive(message)
        else:
            _drop(message)

    def _receive(self, message: Message) -> None:
        fields = message.header.fields
        sender, signal = fields.get(HeaderFields.sender), fields.get(HeaderFields.member)
        interface, path = fields.get(HeaderFields.interface), fields.get(HeaderFields.path)
        if sender == _BUS and signal == _OWNER_CHANGED:
            service, _before, owner = message.body
            for one in [one for one in self._subscriptions if one.interface.service == service]:
                if one.owner and one.owner != owner:
                    self._subscriptions.remove(one)
                    one.send.close()
            return
        for one in self._subscriptions:
            wanted = (one.owner, one.interface.name, one.interface.path, one.signal)
            if (sender, interface, path, signal) == wanted:
                one.send.send_nowait(tuple(message.body))


@asynccontextmanager
async def open_bus(address: str = SYSTEM_BUS, *, within: float = CONNECT_WITHIN) -> AsyncIterator[Bus]:
    """A connection to a bus, for as long as the context lasts. Raises BusError when there is none `within` seconds."""
    connection = await _connect(address, within)
    try:
        with body_errors():
            async with trio.open_nursery() as nursery:
                bus = Bus(connection)
                # A cancelled caller gets Cancelled, not the error of a lost connection.
                receiving = trio.CancelScope(shield=True)
                nursery.start_soon(bus.receive, receiving)
                try:
                    (connection.unique_name,) = await bus._ask(message_bus.Hello(), "Hello", "s", within)
                    yield bus
                finally:
                    receiving.cancel()
    finally:
        connection.socket.close()


async def _connect(address: str, within: float) -> DBusConnection:
    try:
        path = get_bus(address)
    except (KeyError, ValueError, RuntimeError, StopIteration) as error:
        raise BusError(f"expected the address of a message bus, unix:path=…, got {address!r}: {error}") from error
    shown = path.replace("\0", "@")
    try:
        with trio.fail_after(within):
            stream = await trio.open_unix_socket(path)
            try:
                await _authenticate(stream)
            except BaseException:
                stream.socket.close()
                raise
    except trio.TooSlowError:
        raise BusError(f"the message bus at {shown} has not answered for {within:g} s") from None
    except (OSError, trio.BrokenResourceError, AuthenticationError) as error:
        raise BusError(f"cannot connect to the message bus at {shown}: {error}") from error
    return DBusConnection(stream.socket, enable_fds=True)


async def _authenticate(stream: trio.SocketStream) -> None:
    conversation = Authenticator(enable_fds=True, inc_null_byte=False)
    await stream.send_all(b"\0")
    for line in conversation:
        await stream.send_all(line)
        answer = await stream.receive_some()
        if not answer:
            raise AuthenticationError(b"", "It closed the connection during the handshake")
        conversation.feed(bytes(answer))
    await stream.send_all(BEGIN)


def _other_answer(called: str, expected: str, got: str) -> BusError:
    return BusError(f"{called} was answered with values of the types {got!r}, expected {expected!r}")


def _drop(message: Message) -> None:
    """The reply is not wanted any more: its descriptors are closed."""
    for descriptor in _descriptors(message.body):
        descriptor.close()


def _descriptors(part: Any) -> Iterator[FileDescriptor]:
    if isinstance(part, FileDescriptor):
        yield part
    elif isinstance(part, tuple | list):
        for one in part:
            yield from _descriptors(one)
