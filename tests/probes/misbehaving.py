"""Servers for a container, each port with a way of its own to treat clients. A script without anything of ours.

    python misbehaving.py FOLDER web=PORT tls=PORT …

`FOLDER` has the certificate of the TLS port, `server.pem`. What writes there: `serving`, made when all ports are open.
What is read there: as long as `unwell` exists, `/marked`, the gRPC service `marked` and the port `marked` are not well.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SLOW = 5.0
"""Seconds: longer than anybody waits for."""
LONG = b"x" * 8192

Handler = Callable[[socket.socket], None]


class Web:
    """Answers by the path."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self._folder = folder
        self._ports = ports

    def serve(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = connection.recv(4096)
            if not data:
                return
            head += data
            if not head.startswith(b"GET "):
                connection.sendall(_reply("400 Bad Request"))
                return
        host = next(line[6:] for line in head.decode().splitlines() if line.lower().startswith("host: "))
        self._answer(connection, head.split()[1].decode(), host.partition(":")[0])

    def _answer(self, connection: socket.socket, path: str, host: str) -> None:
        match path.strip("/"):
            case "ok":
                connection.sendall(_reply("200 OK", body=b"fine"))
            case "marked":
                well = not (self._folder / "unwell").exists()
                connection.sendall(_reply("200 OK" if well else "500 Unwell"))
            case "slow":
                time.sleep(SLOW)
            case "unwell":
                connection.sendall(_reply("503 Unwell", body=b"secret"))
            case "reset":
                reset(connection)
            case "here":
                connection.sendall(_reply("302 Found", "Location: /ok"))
            case "secured":
                connection.sendall(_reply("302 Found", f"Location: https://{host}:{self._ports['tls']}/ok"))
            case "loop":
                connection.sendall(_reply("302 Found", "Location: /loop"))
            case "away":
                connection.sendall(_reply("302 Found", "Location: http://elsewhere.invalid/", body=b"gone"))
            case "endless":
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                while True:
                    connection.sendall(LONG)
            case "stalls":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                time.sleep(SLOW)
            case "short":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            case "garbage":
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


def reset_later(connection: socket.socket) -> None:
    """Not before the client knows that it is connected: it has sent something, or ended."""
    connection.recv(1)
    reset(connection)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def mute(connection: socket.socket) -> None:
    """Takes what comes, and says nothing."""
    while connection.recv(4096):
        pass


def listen(port: int, backlog: int = 128) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(backlog)
    return listener


def serve(listener: socket.socket, handler: Handler) -> None:
    def handle(connection: socket.socket) -> None:
        try:
            with connection:
                handler(connection)
        except OSError:
            pass  # whoever asked has seen enough

    def accept() -> None:
        while True:
            threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def encrypted(certificate: Path, handler: Handler) -> Handler:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as stream:
            handler(stream)

    return handle


def hold_full(port: int) -> list[socket.socket]:
    """A port whose queue of connections to be accepted is full: the packets of others are dropped."""
    listener, waiting = listen(port, backlog=0), socket.socket()
    waiting.connect(("127.0.0.1", port))
    return [listener, waiting]


def follow_mark(port: int, folder: Path) -> None:
    """A port that is open while all is well."""

    def follow() -> None:
        listener = listen(port)
        while True:
            if (folder / "unwell").exists() == (listener.fileno() != -1):
                if listener.fileno() == -1:
                    listener = listen(port)
                else:
                    listener.close()
            time.sleep(0.02)

    threading.Thread(target=follow, daemon=True).start()


def serve_grpc(port: int, folder: Path | None) -> object:
    """gRPC's own server; with the health service if there is a folder."""
    import grpc

    well, unwell = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse

    def check(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert folder is not None
        match request[2:]:  # HealthCheckRequest: the name, after its tag and its length
            case b"" | b"serving":
                return well
            case b"unwell":
                return unwell
            case b"marked":
                return unwell if (folder / "unwell").exists() else well
            case b"slow":
                time.sleep(SLOW)
                return well
        context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        raise AssertionError

    server = grpc.server(ThreadPoolExecutor(16))
    if folder is not None:
        methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
    if not server.add_insecure_port(f"0.0.0.0:{port}"):
        raise OSError(f"port {port} is taken")
    server.start()
    return server


def _reply(status: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def main(folder: Path, ports: dict[str, int]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # who is the first in a container is spared it otherwise
    web = Web(folder, ports).serve
    serve(listen(ports["web"]), web)
    serve(listen(ports["tls"]), encrypted(folder / "server.pem", web))
    serve(listen(ports["reset"]), reset_later)
    serve(listen(ports["mute"]), mute)
    follow_mark(ports["marked"], folder)
    kept = [hold_full(ports["full"]), serve_grpc(ports["grpc"], folder), serve_grpc(ports["nohealth"], None)]
    (folder / "serving").touch()
    print("serving", len(kept), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), {name: int(port) for name, _, port in (word.partition("=") for word in sys.argv[2:])})
