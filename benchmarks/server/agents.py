"""Agents that serve their ports, as processes: what `trikubelet run` is, on ports that are free.

    python -m benchmarks.server.agents FILE run …

is `trikubelet run …`, but that every port has the number that the kernel gives it, and that there is one more, `plain`:
the node's without TLS. `FILE` gets the addresses as JSON once they are listened on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from benchmarks.agent_process import NODE_NAME, PATIENCE, compile_package, write_configuration
from benchmarks.server.sockets import Place
from trikubelet.agent.server import AgentServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trikubelet.node_api.listeners import Port

REPOSITORY: Final = Path(__file__).parents[2]
OPEN: Final[dict[str, Any]] = {
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}
"""Settings that let everybody do everything."""
NEVER_ROTATED: Final = "1Ti"
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@attrs.frozen
class ServingAgent:
    """An agent that listens, with everything of it in `folder`."""

    folder: Path
    pid: int
    addresses: Mapping[str, tuple[str, int]]

    @property
    def manifests(self) -> Path:
        return self.folder / "manifests"

    @property
    def socket(self) -> Path:
        return self.folder / "root" / "trikubelet.sock"

    def place(self, kind: str) -> Place:
        """Where it listens with that kind of socket."""
        return Place(kind, self.socket if kind == "unix" else self.addresses["node" if kind == "TLS" else "plain"])

    def cpu(self) -> float:
        """Seconds so far, of the threads that are there."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def resident(self) -> int:
        """Bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE


@contextmanager
def serving_agent(
    folder: Path, endpoint: str, settings: Mapping[str, Any] = OPEN, flags: Sequence[str] = ()
) -> Iterator[ServingAgent]:
    """Start an agent on `folder/manifests`; at the end it drains and is waited for."""
    (folder / "manifests").mkdir(parents=True)
    configuration = write_configuration(
        folder, address="127.0.0.1", healthzPort=0, containerLogMaxSize=NEVER_ROTATED, **settings
    )
    found = folder / "addresses.json"
    command = [
        *(sys.executable, "-m", "benchmarks.server.agents", str(found), "run"),
        f"--config={configuration}",
        f"--manifests={folder / 'manifests'}",
        f"--root-dir={folder / 'root'}",
        f"--runtime-endpoint={endpoint}",
        f"--node-name={NODE_NAME}",
        "--drain-on-exit",
        *flags,
    ]
    compile_package()
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY)
    try:
        deadline = time.monotonic() + PATIENCE
        while not found.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the agent does not start: {(folder / 'agent.log').read_text()[-2000:]}")
            time.sleep(0.01)
        addresses = {name: (host, number) for name, (host, number) in json.loads(found.read_text()).items()}
        yield ServingAgent(folder, process.pid, addresses)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


# The process


class OnFreePorts(AgentServer):
    """What an agent serves, where nobody else does."""

    addresses_file: Path

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(super().run)
            unfinished = self.addresses_file.with_suffix(".tmp")
            unfinished.write_text(json.dumps(self.addresses))
            unfinished.rename(self.addresses_file)
            task_status.started()

    def _ports(self) -> Sequence[Port]:
        ports = [attrs.evolve(port, number=0) for port in super()._ports()]
        plain = [attrs.evolve(port, name="plain", secure=None) for port in ports if port.name == "node"]
        return [*ports, *plain]


def main(addresses_file: str, *arguments: str) -> None:
    """Be an agent."""
    import trikubelet.agent.service
    from trikubelet.cli.main import main as command_line

    OnFreePorts.addresses_file = Path(addresses_file)
    trikubelet.agent.service.AgentServer = OnFreePorts  # type: ignore[attr-defined]
    sys.argv = ["trikubelet", *arguments]
    command_line()


if __name__ == "__main__":
    main(*sys.argv[1:])
