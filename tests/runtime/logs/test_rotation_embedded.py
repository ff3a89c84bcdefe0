"""Rotating the log of a container that writes as fast as it can, on the embedded runtime."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from tests.embedded.runtime_node import running_node
from trikubelet.clock import SystemClock
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import Channel, Server
from trikubelet.runtime.logs.rotation import LogLocks, LogRotator
from trikubelet.runtime.logs.rotation_choice import LogRotationPolicy

pytestmark = pytest.mark.root

FILES = 6
SCRIPT = "i=0; while true; do echo line $i; i=$((i+1)); done"


@attrs.frozen
class Own:
    root: Path
    names: list[str]
    log_locks: LogLocks = attrs.field(factory=LogLocks)

    def pod_log_directories(self) -> list[str]:
        return self.names

    def logs_directory(self, name: str) -> Path:
        return self.root / name


async def test_no_line_is_lost_or_written_twice(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    async with running_node(tmp_path / "runtime", logs) as node, trio.open_nursery() as nursery:
        server = Server(node.runtime.handlers)

        async def connect() -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve_stream, theirs)
            return ours

        async with Channel(connect) as channel:
            rotator = LogRotator(
                RuntimeClient(channel),
                cast("Any", Own(logs, ["default_web_uid-web"])),
                policy=LogRotationPolicy(max_size=30_000, max_files=1000),
                clock=SystemClock(),
            )
            sandbox = await node.sandbox("default_web_uid-web")
            folder = logs / "default_web_uid-web" / "main"
            folder.mkdir(parents=True, exist_ok=True)
            container = await node.launch(sandbox, ["sh", "-c", SCRIPT], name="main/0")
            with trio.fail_after(30):
                while len(files_in(folder)) < FILES:
                    await rotator.rotate_all()
            await node.stop(container, 0)
            lines, files = read_all(folder), files_in(folder)
            await node.remove_everything()
            assert await node.runtime.shutdown()
        nursery.cancel_scope.cancel()
    assert len([name for name in files if not name.endswith(".gz")]) == 2
    assert lines == [f"line {number}" for number in range(len(lines))]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_all(directory: Path) -> list[str]:
    rotated = sorted(path for path in directory.iterdir() if path.name != "0.log")
    data = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in rotated]
    log = directory / "0.log"
    data.append(log.read_bytes() if log.exists() else b"")
    return [line.split(" ", 3)[3] for line in b"".join(data).decode().splitlines()]
