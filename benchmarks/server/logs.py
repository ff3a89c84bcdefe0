"""How fast an agent serves a log of 200-byte lines, beside `cat` through the same kind of socket to the same client.

Speeds count the bytes of the file: what has to be read, however little of it is wanted. The aim is a hundred MiB a
second, or half of what `cat` reaches.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import attrs

from benchmarks.server.agents import ServingAgent, serving_agent
from benchmarks.server.sockets import KINDS, Place, cat, read_all
from tests.node_api.numbered_log import record, write

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.detect.processes import RuntimeProcess

POD: Final = "writes"
QUERIES: Final = {
    "plain": "",
    "timestamps": "timestamps=true",
    "stream=Stdout": "stream=Stdout",
    "tailLines": "tailLines={lines}",
}
MIB: Final = 2**20
START_PATIENCE: Final = 60.0


@attrs.frozen
class Speed:
    """Of one kind of socket and one query; seconds are medians."""

    kind: str
    query: str
    size: int
    """Of the file."""
    seconds: float
    cat: float
    """Seconds that `cat` takes for the same file."""
    cpu: float
    """Seconds of the agent, of the turn that took longest to read."""

    @property
    def rate(self) -> float:
        """MiB of the file a second."""
        return self.size / MIB / self.seconds

    @property
    def share(self) -> float:
        """Of the speed of `cat`."""
        return self.cat / self.seconds


def measure_logs(
    runtime: RuntimeProcess, folder: Path, size: int, rounds: int, told: Callable[[str], None]
) -> list[Speed]:
    """An agent on a simulated runtime, whose one container has a log of `size` bytes."""
    with serving_agent(folder, runtime.endpoint) as agent:
        start_pods(agent, [POD], runtime.image)
        [log] = (folder / "logs").glob(f"default_{POD}-*/main/0.log")
        lines = size // len(record(0))
        write(log, lines)
        speeds = []
        for kind in KINDS:
            told(f"logs by {kind}")
            speeds += _measure_kind(agent, kind, log, lines, rounds)
        return speeds


def start_pods(agent: ServingAgent, names: list[str], image: str) -> None:
    """Bring pods of one container each, and wait until the agent says that all run."""
    from benchmarks.detect.processes import write_manifests

    write_manifests(agent.manifests, names, image)
    deadline = time.monotonic() + START_PATIENCE + len(names)
    while sum(pod["status"].get("phase") == "Running" for pod in pods_of(agent)) < len(names):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the pods do not run: {(agent.folder / 'agent.log').read_text()[-2000:]}")
        time.sleep(0.1)


def pods_of(agent: ServingAgent) -> list[dict[str, Any]]:
    """As the agent lists them."""
    with Place("unix", agent.socket).connect() as sock:
        sock.sendall(b"GET /pods HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        body = b"".join(_received(sock)).partition(b"\r\n\r\n")[2]
    pods: list[dict[str, Any]] = json.loads(body)["items"]
    return pods


def _received(sock: socket.socket) -> Iterator[bytes]:
    while data := sock.recv(65536):
        yield data


def _measure_kind(agent: ServingAgent, kind: str, log: Path, lines: int, rounds: int) -> list[Speed]:
    """Each round asks every query once, and `cat` before it."""
    pod = next(pod for pod in pods_of(agent))["metadata"]["name"]
    place, size = agent.place(kind), log.stat().st_size
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in QUERIES}
    with cat(kind, log, agent.folder) as floor:
        for _ in range(rounds):
            for name, query in QUERIES.items():
                bare = read_all(floor, "/")
                if bare.size != size:
                    raise RuntimeError(f"cat sent {bare.size} bytes of {size}")
                cpu = agent.cpu()
                got = read_all(place, f"/containerLogs/default/{pod}/main?{query.format(lines=lines)}")
                if not got.status.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"{name}: {got.status!r}")
                if got.size < 0.6 * size:
                    raise RuntimeError(f"{name}: {got.size} bytes of a log of {size}")
                taken[name].append((got.seconds, bare.seconds, agent.cpu() - cpu))
    return [
        Speed(kind, name, size, *(median(turn[part] for turn in turns) for part in range(3)))
        for name, turns in taken.items()
    ]
