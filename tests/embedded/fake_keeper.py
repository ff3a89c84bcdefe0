"""A keeper that does as it is told: the socket and the name of one, and a script for each connection."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from trikubelet.embedded.keeper import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def greeting() -> dict[str, Any]:
    """Return what a keeper says of itself; this process is the keeper."""
    return {
        "version": protocol.VERSION,
        "features": [protocol.POD_NETWORK, protocol.APART],
        "pid": os.getpid(),
        "mode": "root",
        "overlay": True,
        "limits": [],
        "cgroup_v2": False,
        "cgroup_v1": [],
        "devices_confined": False,
        "seccomp": True,
        "landlock": 0,
        "apparmor": True,
        "problems": [],
    }


LISTING: dict[str, Any] = {"containers": [], "sandboxes": []}


@attrs.define
class Connection:
    """An agent's connection, at the keeper's end."""

    channel: trio.socket.SocketType

    async def request(self) -> dict[str, Any]:
        payload = await self.channel.recv(protocol.LARGEST_DATAGRAM)
        if not payload:
            raise trio.EndOfChannel
        message: dict[str, Any] = json.loads(payload)
        return message

    async def answer(self, **content: Any) -> str:
        """Read one request, answer it with `content`, and return its operation."""
        request = await self.request()
        await self.channel.send(json.dumps({"id": request["id"], **content}).encode())
        return str(request["op"])

    async def greet(self) -> None:
        assert await self.answer(ok=greeting()) == "hello"
        assert await self.answer(ok=LISTING) == "list"


Script = Callable[[Connection], Awaitable[None]]


async def die(connection: Connection) -> None:
    """Accepted, and gone."""


async def hang(connection: Connection) -> None:
    await trio.sleep_forever()


async def of_another_version(connection: Connection) -> None:
    await connection.answer(error={"kind": "invalid", "message": "the agent speaks protocol version 1, the keeper 2"})
    await trio.sleep_forever()


def of_the_first_version(requests: list[dict[str, Any]], **listing: Any) -> Script:
    """A keeper of the first protocol: it refuses any other version, and has no features.

    `requests` is what it was asked.
    """

    async def run(connection: Connection) -> None:
        hello = await connection.request()
        refusal = {"error": {"kind": "invalid", "message": f"version {hello['version']}, expected 1"}}
        answer = {"ok": {**greeting(), "version": 1, "features": []}} if hello["version"] == 1 else refusal
        await connection.channel.send(json.dumps({"id": hello["id"], **answer}).encode())
        await _do_as_asked(connection, requests, listing)

    return run


def without_features(requests: list[dict[str, Any]]) -> Script:
    """A keeper of today's protocol that has no features. `requests` is what it was asked."""

    async def run(connection: Connection) -> None:
        assert await connection.answer(ok={**greeting(), "features": []}) == "hello"
        await _do_as_asked(connection, requests, {})

    return run


async def _do_as_asked(connection: Connection, requests: list[dict[str, Any]], listing: dict[str, Any]) -> None:
    assert await connection.answer(ok={**LISTING, **listing}) == "list"
    while True:
        request = await connection.request()
        ok = {"ended": True} if request["op"] == "shutdown" else {}
        await connection.channel.send(json.dumps({"id": request["id"], "ok": ok}).encode())
        requests.append(request)
        if request["op"] == "shutdown":
            return


async def greet_and_die(connection: Connection) -> None:
    await connection.greet()


async def greet_and_stay(connection: Connection) -> None:
    await connection.greet()
    await trio.sleep_forever()


@attrs.define
class FakeKeeper:
    """Runs a script for each connection: the next one of `scripts`, the last one again and again."""

    root: Path
    scripts: list[Script]
    accepted_at: list[float] = attrs.field(factory=list)
    """When each connection came, in Trio's time."""

    async def _serve(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            channel, _ = await listener.accept()
            script = self.scripts[min(len(self.accepted_at), len(self.scripts) - 1)]
            self.accepted_at.append(trio.current_time())
            nursery.start_soon(self._connection, script, channel)

    async def _connection(self, script: Script, channel: trio.socket.SocketType) -> None:
        with channel:
            try:
                await script(Connection(channel))
            except (OSError, trio.EndOfChannel):
                return  # the agent gave up first


@asynccontextmanager
async def fake_keeper(root: Path, *scripts: Script) -> AsyncIterator[FakeKeeper]:
    """A keeper in `root`; this process gives its name, so it counts as alive."""
    root.mkdir(exist_ok=True)
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(root, os.O_PATH | os.O_CLOEXEC)
    await listener.bind(f"/proc/self/fd/{folder}/{protocol.SOCKET_NAME}")
    os.close(folder)
    listener.listen(16)
    identity = {
        "pid": os.getpid(),
        "start_ticks": protocol.process_start_ticks(os.getpid()),
        "boot_id": protocol.boot_id(),
    }
    (root / protocol.IDENTITY_NAME).write_text(json.dumps(identity))
    keeper = FakeKeeper(root, list(scripts))
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper._serve, listener, nursery)
            yield keeper
            nursery.cancel_scope.cancel()
