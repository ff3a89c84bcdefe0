"""Talks HTTP to the agent over the unix socket in its root folder.

The standard library's client on a unix socket: it costs a few milliseconds to import, where httpx costs a hundred.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from trikubelet.cli.failures import CommandError
from trikubelet.cli.root_dir import SOCKET_NAME
from trikubelet.linux.socket_address import socket_address

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_SECONDS: Final = 30.0
IMPORT_TIMEOUT_SECONDS: Final = 1800.0

Query = Mapping[str, str | int | bool | list[str] | None]
"""A list is a parameter that is sent several times."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost")
        self._path = path
        self._timeout = timeout

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        with socket_address(str(self._path)) as address:
            self.sock.connect(address)
        self.sock.settimeout(self._timeout)


class AgentClient:
    """The agent of one root folder. Every failure is a CommandError."""

    def __init__(self, root_dir: Path) -> None:
        self.socket = root_dir / SOCKET_NAME

    def get(self, path: str, query: Query | None = None) -> Any:
        """JSON of a GET."""
        with self._request("GET", path, query or {}, TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def post(self, path: str, query: Query | None = None) -> Any:
        """JSON of a POST; waits long, since it makes the agent work."""
        with self._request("POST", path, query or {}, IMPORT_TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def put(self, path: str, body: bytes, query: Query | None = None) -> Any:
        """JSON of a PUT."""
        with self._request("PUT", path, query or {}, TIMEOUT_SECONDS, body) as response:
            return json.loads(response.read())

    def delete(self, path: str) -> Any:
        """JSON of a DELETE."""
        with self._request("DELETE", path, {}, TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def lines(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """Lines of a stream as they arrive, without deadline."""
        rest = b""
        for block in self.blocks(path, query):
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def blocks(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """Bytes of a stream as they arrive, without deadline. One that the agent did not end is a CommandError."""
        with self._request("GET", path, query or {}, None) as response:
            while block := response.read1(65536):
                yield block

    @contextmanager
    def _request(
        self, method: str, path: str, query: Query, timeout: float | None, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self.socket, timeout)
        try:
            connection.request(method, request_target(path, query), body)
            response = connection.getresponse()
            if response.status >= 400:
                text = response.read(4096).decode(errors="replace").strip()
                raise CommandError(text or f"the agent answered {response.status} {response.reason}")
            yield response
        except TimeoutError:
            raise CommandError(f"the agent on {self.socket} did not answer within {timeout:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise lost_agent(self.socket, error) from None
        finally:
            connection.close()


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
