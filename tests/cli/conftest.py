"""A stand-in for the agent: the standard library's HTTP server on the unix socket that the commands look for."""

from __future__ import annotations

import json
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click.testing
import pytest

from trikubelet.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        agent: StandInAgent = self.server.agent  # type: ignore[attr-defined]
        agent.requests.append(f"{self.command} {self.path}")
        if (begin := agent.streams.get(f"{self.command} {self.path}")) is not None:
            self._break_off(begin)
            return
        first = agent.beginnings.get(f"{self.command} {self.path}")
        if first is not None:
            self.send_response(200)
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(first)
            self.wfile.flush()
        agent.before.get(f"{self.command} {self.path}", lambda: None)()
        status, body = agent.answers.get(f"{self.command} {self.path}", (404, b"there is nothing here\n"))
        if first is None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
        self.wfile.write(body)

    def _break_off(self, begin: bytes) -> None:
        """Send a stream as an agent does that is killed meanwhile."""
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(f"{len(begin):x}\r\n".encode() + begin + b"\r\n")
        self.close_connection = True

    do_GET = _answer  # noqa: N815
    do_POST = _answer  # noqa: N815
    do_DELETE = _answer  # noqa: N815

    def do_PUT(self) -> None:
        agent: StandInAgent = self.server.agent  # type: ignore[attr-defined]
        agent.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self._answer()

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests want no log."""


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@attrs.define
class StandInAgent:
    """What it is asked, and what it answers."""

    root_dir: Path
    answers: dict[str, tuple[int, bytes]] = attrs.field(factory=dict)
    requests: list[str] = attrs.field(factory=list)
    bodies: list[bytes] = attrs.field(factory=list)
    """Of PUTs."""
    before: dict[str, Callable[[], object]] = attrs.field(factory=dict)
    """Called before an answer is given."""
    beginnings: dict[str, bytes] = attrs.field(factory=dict)
    """Of streams: what is sent before that, and the rest after it."""
    streams: dict[str, bytes] = attrs.field(factory=dict)
    """Those that begin so, and then break off."""

    def will_answer(self, request: str, data: Any, status: int = 200) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.answers[request] = (status, body)

    def has_pods(self, *pods: dict[str, Any]) -> None:
        self.will_answer("GET /pods", {"apiVersion": "v1", "kind": "PodList", "items": list(pods)})


@pytest.fixture
def root_dir() -> Iterator[Path]:
    """A short path: a unix socket's may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def agent(root_dir: Path) -> Iterator[StandInAgent]:
    """An agent that answers."""
    stand_in = StandInAgent(root_dir)
    stand_in.will_answer("GET /version", {"agent": "1", "node": "node"})
    with _Server(str(root_dir / "trikubelet.sock"), _Handler) as server:
        server.agent = stand_in  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stand_in
        server.shutdown()
        thread.join()


@attrs.frozen
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(*arguments: object) -> Outcome:
    """Run a command in this process."""
    result = click.testing.CliRunner().invoke(cli, [str(argument) for argument in arguments], standalone_mode=False)
    error = result.exception
    if isinstance(error, click.ClickException):
        return Outcome(error.exit_code, result.stdout, result.stderr + error.format_message())
    if error is not None and not isinstance(error, SystemExit):
        raise error
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    return Outcome(code, result.stdout, result.stderr)


def a_pod(name: str = "web-node", namespace: str = "default", **status: Any) -> dict[str, Any]:
    """A pod as the agent reports it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
        "spec": {"nodeName": "node", "containers": [{"name": "main", "image": "x:1"}]},
        "status": {"phase": "Running", **status},
    }
