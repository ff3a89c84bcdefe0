"""CPU and time of one probe of each kind, beside a bare client that makes the same connection.

Probes are asked one after the other, by the handlers that an agent has, of servers in another process. What the other
side takes is not counted.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.detect.processes import runtime_process, until_running
from benchmarks.probes.bare import start_container
from trikubelet.api import Container, ObjectMeta, Pod, from_dict
from trikubelet.api import Probe as ApiProbe
from trikubelet.container.model import ContainerID
from trikubelet.http.client.connect import close_quietly
from trikubelet.probes.asking import NetworkAndExec
from trikubelet.probes.types import Outcome, ProbeKind, ProbeTarget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from benchmarks.detect.processes import RuntimeProcess
    from benchmarks.probes.targets import Targets
    from trikubelet.rpc.cri.client import RuntimeClient

HOST: Final = "127.0.0.1"
REQUEST: Final = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bare\r\nAccept: */*\r\nConnection: close\r\n\r\n"
_TRUSTING: Final = ssl._create_unverified_context()
WARM_UP: Final = 0.05
"""Share of the probes."""
SHARES: Final = {"tcpSocket": 1.0, "httpGet": 1.0, "httpGet, HTTPS": 0.3, "grpc": 0.3, "exec": 0.1}
"""How many of each kind are asked, in shares: slow ones are measured with fewer."""


@attrs.frozen
class Cost:
    """Of one probe, in µs."""

    kind: str
    cpu: float
    wall: float
    floor: str
    """What the bare client does."""
    floor_cpu: float
    floor_wall: float


def measure_costs(targets: Targets, folder: Path, count: int) -> list[Cost]:
    """`count` probes of each kind, fewer of slow ones. Commands are asked of an embedded runtime in another process."""
    with runtime_process("embedded", folder / "cri") as runtime:
        return trio.run(_measure, targets, runtime, folder, count)


async def _measure(targets: Targets, runtime: RuntimeProcess, folder: Path, count: int) -> list[Cost]:
    async with runtime.client() as client:
        container = await _running_container(client, runtime, folder)
        asker = NetworkAndExec(client)
        ports = targets.ports
        kinds: dict[str, tuple[dict[str, object], str, Callable[[], Awaitable[object]]]] = {
            "tcpSocket": ({"tcpSocket": {"port": ports["good"]}}, "connect, close", lambda: _bare(ports["good"])),
            "httpGet": (
                {"httpGet": {"path": "/", "port": ports["good"]}},
                "connect, send, read, close",
                lambda: _bare(ports["good"], REQUEST),
            ),
            "httpGet, HTTPS": (
                {"httpGet": {"path": "/", "port": ports["tls"], "scheme": "HTTPS"}},
                "the same by TLS",
                lambda: _bare(ports["tls"], REQUEST, _TRUSTING),
            ),
            "grpc": ({"grpc": {"port": ports["grpc"]}}, "call by grpcio", lambda: _bare_grpc(ports["grpc"])),
            "exec": (
                {"exec": {"command": ["true"]}},
                "ExecSync",
                lambda: client.exec_sync(container, ["true"], 1.0),
            ),
        }
        costs = []
        for kind, (handler, floor, bare) in kinds.items():
            target = _target(handler, container)
            number = max(5, int(count * SHARES[kind]))

            async def ask(target: ProbeTarget = target) -> None:
                answer = await asker(target)
                if answer.outcome is not Outcome.SUCCESS:
                    raise RuntimeError(f"expected a success, got {answer}")

            ours, theirs = await _timed(ask, number), await _timed(bare, number)
            costs.append(Cost(kind, *ours, floor, *theirs))
        return costs


async def _timed(ask: Callable[[], Awaitable[object]], count: int) -> tuple[float, float]:
    """CPU and time of each call, in µs."""
    for _ in range(max(2, int(count * WARM_UP))):
        await ask()
    cpu, wall = time.process_time(), time.monotonic()
    for _ in range(count):
        await ask()
    return 1e6 * (time.process_time() - cpu) / count, 1e6 * (time.monotonic() - wall) / count


async def _bare(port: int, request: bytes = b"", context: ssl.SSLContext | None = None) -> None:
    """Blocks: there is nobody else in this process."""
    with socket.create_connection((HOST, port)) as sock:
        if request:
            stream = sock if context is None else context.wrap_socket(sock, suppress_ragged_eofs=True)
            stream.sendall(request)
            while stream.recv(16384):
                pass
            sock = stream
        sock.setblocking(False)
        close_quietly(sock)


async def _bare_grpc(port: int) -> None:
    import grpc

    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)


async def _running_container(client: RuntimeClient, runtime: RuntimeProcess, folder: Path) -> str:
    container = await start_container(client, runtime.image, "asked", folder / "logs")
    await until_running(client, 1)
    return container


def _target(handler: dict[str, object], container: str) -> ProbeTarget:
    probe = from_dict(ApiProbe, {**handler, "timeoutSeconds": 5, "periodSeconds": 10})
    return ProbeTarget(
        Pod(metadata=ObjectMeta(name="asked", namespace="default", uid="asked")),
        Container(name="main", readiness_probe=probe),
        ContainerID("embedded", container),
        HOST,
        ProbeKind.READINESS,
    )
