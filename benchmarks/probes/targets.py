"""Servers to be probed, in a process of their own, and what they saw.

    python -m benchmarks.probes.targets

serves until its input ends. All of 127.0.0.0/8 leads here: each probe has an address of its own there, so the server
knows by the address, before it has read anything, who asks. Times are of CLOCK_MONOTONIC, which processes share.
"""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY: Final = Path(__file__).parents[2]
WELL: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
UNWELL: Final = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
SERVING: Final = b"\x08\x01"
"""A HealthCheckResponse."""
BACKLOG: Final = 1024


def address(number: int) -> str:
    """Of a probe."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


# The side of whoever measures


@attrs.frozen
class Targets:
    """The servers: ports, and questions about what they saw."""

    ports: dict[str, int]
    """`good` answers, `tls` by HTTPS, `grpc` is healthy, `hangs` takes connections and says nothing, `full` has its
    packets dropped, nobody listens on `closed`."""
    _process: subprocess.Popen[str]

    def forget(self) -> None:
        """Who was there so far."""
        self._ask("forget")

    def arrivals(self) -> dict[str, list[float]]:
        """When somebody connected, by address, to the port that answers."""
        return dict(self._ask("arrivals"))

    def make_unwell(self, where: str) -> float:
        """From the returned moment on, the address answers with 500."""
        return float(self._ask(f"unwell {where}"))

    def make_well(self, where: str) -> list[float]:
        """When it answered with 500 until now."""
        return list(self._ask(f"well {where}"))

    def _ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def running_targets() -> Iterator[Targets]:
    """Servers that listen."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.probes.targets"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    with process:
        assert process.stdout is not None
        yield Targets(json.loads(process.stdout.readline()), process)


# The process


class Web:
    """Answers HTTP, all in one thread, and writes down when somebody came. Closes after its answer."""

    def __init__(self) -> None:
        self.arrivals: dict[str, list[float]] = {}
        self.unwell: dict[str, list[float]] = {}
        self._selector = selectors.EpollSelector()

    def listen(self, *, answers: bool) -> int:
        listener = _listener()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, answers))
        return int(listener.getsockname()[1])

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self, listener: socket.socket, answers: bool) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = listener.accept()
                now = time.monotonic()
                where = connection.getsockname()[0]
                if answers:
                    self.arrivals.setdefault(where, []).append(now)
                connection.setblocking(False)
                self._selector.register(
                    connection, selectors.EVENT_READ, lambda c=connection, w=where: self._read(c, w, answers)
                )

    def _read(self, connection: socket.socket, where: str, answers: bool) -> None:
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        if data and not answers:
            return
        if data:
            told = self.unwell.get(where)
            with suppress(OSError):
                connection.send(WELL if told is None else UNWELL)
            if told is not None:
                told.append(time.monotonic())
        self._selector.unregister(connection)
        connection.close()


def _listener(backlog: int = BACKLOG) -> socket.socket:
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(backlog)
    return listener


def _serve_tls(stack: ExitStack) -> int:
    import trustme

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="trikubelet-probes-")))
    trustme.CA().issue_cert("somebody.else").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    listener = _listener()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as stream:
                stream.recv(4096)
                stream.sendall(WELL)

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def _serve_grpc(stack: ExitStack) -> int:
    import grpc

    server = grpc.server(ThreadPoolExecutor(4))
    methods = {"Check": grpc.unary_unary_rpc_method_handler(lambda request, context: SERVING)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    stack.callback(server.stop, None)
    return int(port)


def main() -> None:
    """Serve, and answer questions from standard input."""
    with ExitStack() as stack:
        web, full, closed, waiting = Web(), _listener(0), socket.socket(), socket.socket()
        waiting.connect(("127.0.0.1", full.getsockname()[1]))
        closed.bind(("", 0))
        ports = {
            "good": web.listen(answers=True),
            "hangs": web.listen(answers=False),
            "full": full.getsockname()[1],
            "closed": closed.getsockname()[1],
            "tls": _serve_tls(stack),
            "grpc": _serve_grpc(stack),
        }
        threading.Thread(target=web.run, daemon=True).start()
        print(json.dumps(ports), flush=True)
        for line in sys.stdin:
            print(json.dumps(_answered(web, *line.split())), flush=True)


def _answered(web: Web, what: str, where: str = "") -> object:
    match what:
        case "forget":
            web.arrivals.clear()
        case "arrivals":
            return dict(web.arrivals)
        case "unwell":
            web.unwell[where] = []
            return time.monotonic()
        case "well":
            return web.unwell.pop(where)
    return None


if __name__ == "__main__":
    main()
