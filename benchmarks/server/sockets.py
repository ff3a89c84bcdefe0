"""Clients and floors on the three kinds of socket: unix, TCP and TLS.

The client is the same for the agent and for `cat`: it sends a request, reads to the end, and looks at nothing. It lives
in the benchmark's process, which does nothing else meanwhile.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.linux.socket_address import socket_address

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS: Final = ("unix", "TCP", "TLS")
BUFFER: Final = 256 * 2**10
BLOCK: Final = 128 * 2**10
"""What `cat` reads at once."""
PATIENCE: Final = 120.0
Where = Path | tuple[str, int]


@attrs.frozen
class Place:
    """Somebody who listens."""

    kind: str
    where: Where

    def connect(self) -> socket.socket:
        """A connection, TLS established. The certificate is taken as it is, as API servers do."""
        if isinstance(self.where, Path):
            sock = socket.socket(socket.AF_UNIX)
            with socket_address(str(self.where)) as address:
                sock.connect(address)
        else:
            sock = socket.create_connection(self.where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(PATIENCE)
        return trusting().wrap_socket(sock) if self.kind == "TLS" else sock


@cache
def trusting() -> ssl.SSLContext:
    return ssl._create_unverified_context()


@attrs.frozen
class Read:
    """What a client got."""

    seconds: float
    size: int
    status: bytes
    """The first line of the answer."""


def read_all(place: Place, target: str) -> Read:
    """Ask for `target` (which `cat` does not listen to) and read to the end. The time is without the connection's."""
    buffer = bytearray(BUFFER)
    with place.connect() as sock:
        began = time.monotonic()
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
        size, status = 0, b""
        with suppress(ssl.SSLEOFError):
            while count := sock.recv_into(buffer):
                if not size:
                    status = bytes(buffer[: min(count, 40)]).partition(b"\r\n")[0]
                size += count
        return Read(time.monotonic() - began, size, status)


@contextmanager
def cat(kind: str, file: Path, folder: Path) -> Iterator[Place]:
    """Sends `file` to whoever connects: by `/bin/cat` into the socket; over TLS by reads and writes of its size.

    Over TLS in a process of its own, like the agent: whoever encrypts takes a core.
    """
    where: Where
    if kind == "unix":
        listener = socket.socket(socket.AF_UNIX)
        where = folder / "cat.sock"
        with socket_address(str(where)) as address:
            listener.bind(address)
        listener.listen()
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        where = ("127.0.0.1", listener.getsockname()[1])
    if kind == "TLS":
        pair = _pair(folder)
        process = multiprocessing.get_context("fork").Process(target=_serve_tls, args=(listener, file, pair))
        process.start()
        try:
            yield Place(kind, where)
        finally:
            process.kill()
            process.join()
            listener.close()
        return
    thread = threading.Thread(target=_serve, args=(listener, file), daemon=True)
    thread.start()
    try:
        yield Place(kind, where)
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        listener.close()
        if isinstance(where, Path):
            where.unlink()


def _serve(listener: socket.socket, file: Path) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(4096)
            subprocess.run(["cat", str(file)], stdout=connection.fileno(), check=False)


def _serve_tls(listener: socket.socket, file: Path, pair: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    while True:
        connection, _ = listener.accept()
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as stream:
            stream.recv(4096)
            with file.open("rb", buffering=0) as source:
                while block := source.read(BLOCK):
                    stream.sendall(block)


def _pair(folder: Path) -> Path:
    import trustme

    pair = folder / "cat.pem"
    trustme.CA().issue_cert("node").private_key_and_cert_chain_pem.write_to_path(pair)
    return pair
