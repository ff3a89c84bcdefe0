"""A message bus of its own for a test, and services on it that are written in the test.

The daemon is Debian's `dbus-daemon` with a configuration that lets everybody do everything. `restart` starts it anew on
the same address, and whoever was connected has to come again.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pytest
import trio
from jeepney import HeaderFields, MessageFlag, MessageType, new_error, new_method_return, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.trio import DBusConnection, open_dbus_connection

from trikubelet.linux.dbus import Interface

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from jeepney import Message

Handler: TypeAlias = Callable[..., Awaitable[tuple[str, tuple[Any, ...]]]]
"""Gets the arguments, gives signature and values of the answer. A `RefusalError` becomes an error on the wire."""

CONFIGURATION = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""
PROPERTIES = "org.freedesktop.DBus.Properties"


class RefusalError(Exception):
    """Answered as a D-Bus error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@attrs.define
class PrivateBus:
    folder: Path
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"unix:path={self.folder / 'bus.sock'}"

    def start(self) -> None:
        """Returns when it takes connections."""
        configuration = self.folder / "bus.conf"
        configuration.write_text(CONFIGURATION.format(socket=self.folder / "bus.sock"))
        command = ["dbus-daemon", f"--config-file={configuration}", "--nofork", "--nosyslog", "--print-address"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the bus has not started"

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None
        (self.folder / "bus.sock").unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    if shutil.which("dbus-daemon") is None:
        pytest.skip("needs dbus-daemon: apt-get install dbus-daemon")
    private = PrivateBus(tmp_path)
    private.start()
    yield private
    private.stop()


@attrs.define(eq=False)
class Service:
    """One object of one service."""

    connection: DBusConnection
    interface: Interface
    methods: Mapping[str, Handler]
    properties: Callable[[str], tuple[str, Any]]
    """Signature and value, by name."""

    async def run(self) -> None:
        """Answer until cancelled or the connection is lost. Each call is a task of its own."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    message = await self.connection.receive()
                    if message.header.message_type is MessageType.method_call:
                        nursery.start_soon(self._answer, message)
        except* (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def emit(self, signal: str, signature: str, *arguments: Any) -> None:
        await self.connection.send(new_signal(self.interface.address, signal, signature, arguments))

    async def _answer(self, call: Message) -> None:
        fields = call.header.fields
        name, interface = fields[HeaderFields.member], fields.get(HeaderFields.interface)
        try:
            if fields[HeaderFields.path] != self.interface.path:
                raise RefusalError("org.freedesktop.DBus.Error.UnknownObject", fields[HeaderFields.path])
            if interface == PROPERTIES and name == "Get":
                signature, body = "v", (self.properties(call.body[1]),)
            elif interface == self.interface.name and name in self.methods:
                signature, body = await self.methods[name](*call.body)
            else:
                raise RefusalError("org.freedesktop.DBus.Error.UnknownMethod", f"{interface}.{name}")
            reply = new_method_return(call, signature or None, body)
        except RefusalError as refusal:
            reply = new_error(call, refusal.name, "s", (str(refusal),))
        if not call.header.flags & MessageFlag.no_reply_expected:
            reply.header.fields[HeaderFields.destination] = fields[HeaderFields.sender]
            await self.connection.send(reply)


@asynccontextmanager
async def service(
    address: str,
    interface: Interface,
    methods: Mapping[str, Handler],
    properties: Callable[[str], tuple[str, Any]],
) -> AsyncIterator[Service]:
    """A service that answers for as long as the context lasts."""
    connection = await open_dbus_connection(address, enable_fds=True)
    try:
        async with connection.router() as router:
            reply = await router.send_and_get_reply(message_bus.RequestName(interface.service))
            assert reply.body == (1,), "the name is taken"
        made = Service(connection, interface, methods, properties)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()
    finally:
        await connection.aclose()
