"""What one unary call costs: our channel, grpclib on asyncio and on Trio through trio-asyncio, and grpcio.

All call `RuntimeService/Version` with betterproto's messages over the same Unix socket, in rounds that take turns, so
that a busy machine disturbs them alike. The medians of the rounds are compared. The time includes what the server
takes; the CPU time is the client's alone, with all its threads: grpcio is C++ and has some.

    python -m benchmarks.grpc                                    # against our server in a process of its own
    python -m benchmarks.grpc --endpoint unix:///run/containerd/containerd.sock
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import attrs
import click
import grpc
import grpclib.client
import trio

from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.rpc.cri.v1 import RuntimeServiceStub, VersionRequest, VersionResponse
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_SERVER = """
import sys
import trio
from trikubelet.rpc.cri.v1 import RuntimeServiceBase, VersionResponse
from trikubelet.rpc.grpc import Server

class Runtime(RuntimeServiceBase):
    async def version(self, version_request):
        return VersionResponse(
            version="0.1.0", runtime_name="containerd", runtime_version="1.6.20", runtime_api_version="v1"
        )

async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([Runtime()]).serve_unix, sys.argv[1])
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()

trio.run(main)
"""
_WARM_UP = 20


@contextmanager
def _server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/server.sock"
        command = [sys.executable, "-c", _SERVER, path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield path
            process.communicate()


@attrs.frozen
class Cost:
    """Of one call, in seconds."""

    wall: float
    cpu: float


async def _measure(call: Callable[[VersionRequest], Awaitable[VersionResponse]], calls: int) -> Cost:
    request = VersionRequest(version="v1")
    for _ in range(_WARM_UP):
        await call(request)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        await call(request)
    return Cost((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)


def _grpclib_channel(path: str) -> grpclib.client.Channel:
    channel = grpclib.client.Channel(path=path)
    # grpclib names its default host and port here, for a Unix socket too, which some servers refuse.
    channel._authority = "localhost"
    return channel


async def _ours(path: str, calls: int) -> Cost:
    async with open_unix_channel(path) as channel:
        stub = RuntimeServiceStub(channel, timeout=10)
        return await _measure(stub.version, calls)


async def _grpclib(path: str, calls: int) -> Cost:
    async with _grpclib_channel(path) as channel:
        stub = RuntimeServiceStub(channel, timeout=10)
        return await _measure(stub.version, calls)


async def _grpclib_on_trio(path: str, calls: int) -> Cost:
    from trio_asyncio import aio_as_trio, open_loop

    async with open_loop(), aio_as_trio(_grpclib_channel(path)) as channel:
        stub = RuntimeServiceStub(channel, timeout=10)
        return await _measure(aio_as_trio(stub.version), calls)


def _grpcio(path: str, calls: int) -> Cost:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        version = channel.unary_unary(
            "/runtime.v1.RuntimeService/Version",
            request_serializer=VersionRequest.SerializeToString,
            response_deserializer=VersionResponse.FromString,
        )

        async def call(request: VersionRequest) -> VersionResponse:
            reply: VersionResponse = version(request, timeout=10)
            return reply

        return trio.run(_measure, call, calls)


def _run_asyncio(client: Callable[[str, int], Awaitable[Cost]], path: str, calls: int) -> Cost:
    async def run() -> Cost:
        return await client(path, calls)

    return asyncio.run(run())


_CLIENTS: dict[str, Callable[[str, int], Cost]] = {
    "trikubelet.rpc.grpc on Trio": lambda path, calls: trio.run(_ours, path, calls),
    "grpclib on asyncio": lambda path, calls: _run_asyncio(_grpclib, path, calls),
    "grpclib on Trio (trio-asyncio)": lambda path, calls: trio.run(_grpclib_on_trio, path, calls),
    "grpcio": _grpcio,
}
_MOST_CPU = 0.2e-3
"""Seconds, of a call of ours."""


@click.command()
@click.option("--endpoint", help="A container runtime to call, unix://…; by default our own server.")
@click.option("--calls", default=300, show_default=True, help="Calls in each round.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the aims here.")
@picture_option
def main(endpoint: str | None, calls: int, rounds: int, json_file: Path | None) -> None:
    """Measure the time of a unary call."""
    warnings.simplefilter("ignore")
    if endpoint is not None:
        times = _rounds(endpoint.removeprefix("unix://"), calls, rounds)
    else:
        with _server() as path:
            times = _rounds(path, calls, rounds)
    print_table(
        f"One unary call to {endpoint or 'our server'}, µs",
        ["client", "median", "best", "worst", "CPU"],
        [[name, *_row(costs)] for name, costs in times.items()],
    )
    ours, grpclib_asyncio, grpclib_trio, _ = (median(cost.wall for cost in costs) for costs in times.values())
    cpu = median(cost.cpu for cost in times["trikubelet.rpc.grpc on Trio"])
    results = [
        Result("unary call, ours over grpclib on asyncio", "times", ours / grpclib_asyncio, 1.0),
        Result("unary call, ours over grpclib through trio-asyncio", "times", ours / grpclib_trio, 1.0),
        Result("unary call, CPU of ours", "ms", cpu * 1e3, _MOST_CPU * 1e3),
    ]
    sys.exit(0 if report(results, json_file) else 1)


def _row(costs: list[Cost]) -> list[str]:
    walls = [cost.wall for cost in costs]
    values = (median(walls), min(walls), max(walls), median(cost.cpu for cost in costs))
    return [f"{value * 1e6:.0f}" for value in values]


def _rounds(path: str, calls: int, rounds: int) -> dict[str, list[Cost]]:
    times: dict[str, list[Cost]] = {name: [] for name in _CLIENTS}
    for _ in range(rounds):
        for name, client in _CLIENTS.items():
            times[name].append(client(path, calls))
    return times


if __name__ == "__main__":
    main()
