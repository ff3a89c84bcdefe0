"""Talks HTTP to the agent over the unix socket in its root folder.

The standard library's client on a unix socket: it costs a few milliseconds to import, where httpx costs a hundred.
"""

from __future__ import annotations

import http.client
import json
import math
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from trikubelet.cli.failures import CommandError
from trikubelet.cli.root_dir import SOCKET_NAME
from trikubelet.linux.socket_address import socket_address

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_SECONDS: Final = 30.0
IMPORT_TIMEOUT_SECONDS: Final = 1800.0
MOST_TOGETHER: Final = 100

Query = Mapping[str, str | int | bool | list[str] | None]
"""A list is a parameter that is sent several times."""


Tick = Callable[[], None]
"""Called each second for as long as a command waits for the agent."""
TICK_SECONDS: Final = 1.0


class _TickingSocket(socket.socket):
    """Calls `tick` each second in which it waits for bytes. Its timeout is that of one read."""

    tick: Tick | None = None
    _due: float = math.inf

    def begin(self, tick: Tick) -> None:
        self.tick, self._due = tick, time.monotonic() + TICK_SECONDS

    def recv_into(self, *arguments: Any) -> int:
        if self.tick is not None:
            self._await_bytes(self.tick)
        return super().recv_into(*arguments)

    def _await_bytes(self, tick: Tick) -> None:
        timeout = self.gettimeout()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        arrivals = select.poll()
        arrivals.register(self, select.POLLIN)
        while not arrivals.poll(max(min(self._due, deadline) - time.monotonic(), 0) * 1000):
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError
            if now >= self._due:
                tick()
                self._due = time.monotonic() + TICK_SECONDS


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None, tick: Tick | None) -> None:
        super().__init__("localhost")
        self._path = path
        self._timeout = timeout
        self._tick = tick

    def connect(self) -> None:
        self.sock = sock = _TickingSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self._tick is not None:
            sock.begin(self._tick)
        self.sock.settimeout(TIMEOUT_SECONDS)
        with socket_address(str(self._path)) as address:
            self.sock.connect(address)
        self.sock.settimeout(self._timeout)


class AgentClient:
    """The agent of one root folder. Every failure is a CommandError."""

    def __init__(self, root_dir: Path) -> None:
        self.socket = root_dir / SOCKET_NAME

    def get(self, path: str, query: Query | None = None, *, accept: str = "*/*") -> Any:
        """JSON of a GET. `accept`: the form that is asked for."""
        with self._request("GET", path, query or {}, TIMEOUT_SECONDS, accept=accept) as response:
            return json.loads(response.read())

    def post(self, path: str, query: Query | None = None) -> Any:
        """JSON of a POST; waits long, since it makes the agent work."""
        with self._request("POST", path, query or {}, IMPORT_TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def post_together(self, paths: Sequence[str], query: Query, tick: Tick) -> Iterator[Any]:
        """Send the requests, then yield the JSON of each answer, or its CommandError, in their order.

        At most `MOST_TOGETHER` at once: each has a connection.
        """
        for first in range(0, len(paths), MOST_TOGETHER):
            yield from self._post_at_once(paths[first : first + MOST_TOGETHER], query, tick)

    def _post_at_once(self, paths: Sequence[str], query: Query, tick: Tick) -> Iterator[Any]:
        with ExitStack() as stack:
            connections: list[_UnixConnection | CommandError] = []
            for path in paths:
                try:
                    sent = stack.enter_context(self._sent("POST", path, query, IMPORT_TIMEOUT_SECONDS, None, tick))
                    connections.append(sent)
                except CommandError as error:
                    connections.append(error)
            for connection in connections:
                try:
                    if isinstance(connection, CommandError):
                        raise connection
                    with self._answer(connection, IMPORT_TIMEOUT_SECONDS) as response:
                        yield json.loads(response.read())
                except CommandError as error:
                    yield error

    def put(self, path: str, body: bytes, query: Query | None = None) -> Any:
        """JSON of a PUT."""
        with self._request("PUT", path, query or {}, TIMEOUT_SECONDS, body) as response:
            return json.loads(response.read())

    def delete(self, path: str, query: Query | None = None) -> Any:
        """JSON of a DELETE."""
        with self._request("DELETE", path, query or {}, TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def lines(self, path: str, query: Query | None = None, tick: Tick | None = None) -> Iterator[bytes]:
        """Lines of a stream as they arrive, without deadline."""
        rest = b""
        for block in self.blocks(path, query, tick):
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def blocks(self, path: str, query: Query | None = None, tick: Tick | None = None) -> Iterator[bytes]:
        """Bytes of a stream as they arrive, without deadline. One that the agent did not end is a CommandError."""
        with self._request("GET", path, query or {}, None, tick=tick) as response:
            while block := response.read1(65536):
                yield block

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        query: Query,
        timeout: float | None,
        body: bytes | None = None,
        tick: Tick | None = None,
        accept: str = "*/*",
    ) -> Iterator[http.client.HTTPResponse]:
        with self._sent(method, path, query, timeout, body, tick, accept) as connection:
            with self._answer(connection, timeout) as response:
                yield response

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        query: Query,
        timeout: float | None,
        body: bytes | None,
        tick: Tick | None,
        accept: str = "*/*",
    ) -> Iterator[_UnixConnection]:
        connection = _UnixConnection(self.socket, timeout, tick)
        try:
            with self._told(timeout):
                connection.request(method, request_target(path, query), body, {"Accept": accept})
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _answer(self, connection: _UnixConnection, timeout: float | None) -> Iterator[http.client.HTTPResponse]:
        with self._told(timeout):
            response = connection.getresponse()
            if response.status >= 400:
                text = response.read(4096).decode(errors="replace").strip()
                raise CommandError(text or f"the agent answered {response.status} {response.reason}")
            yield response

    @contextmanager
    def _told(self, timeout: float | None) -> Iterator[None]:
        """Faults of the connection become CommandErrors."""
        try:
            yield
        except TimeoutError:
            raise CommandError(f"the agent on {self.socket} did not answer within {timeout:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise lost_agent(self.socket, error) from None


def agent_gone(socket: Path) -> CommandError:
    """The end of a stream that had not come to its end."""
    return CommandError(f"the agent on {socket} has gone, so nothing more can be told: start this command again")


def lost_agent(socket: Path, error: Exception) -> CommandError:
    """Why the agent's socket does not answer, or no longer does."""
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return CommandError(f"no agent answers on {socket}: is `trikubelet run` running with this --root-dir?")
    if isinstance(error, PermissionError):
        return CommandError(f"{socket} belongs to another user: run this command as the agent's user")
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return CommandError(f"{socket} cannot be used: {error}")
    if isinstance(error, http.client.IncompleteRead):
        return agent_gone(socket)
    return CommandError(f"the connection to the agent on {socket} was lost: {str(error) or type(error).__name__}")


def request_target(path: str, query: Query) -> str:
    """Path and query as they are sent."""
    parameters = {
        name: "true" if value is True else value if isinstance(value, list) else str(value)
        for name, value in query.items()
        if value is not None and value is not False
    }
    return quote(path) + (f"?{urlencode(parameters, doseq=True)}" if parameters else "")
