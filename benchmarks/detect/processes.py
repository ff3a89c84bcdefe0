"""The processes that `benchmarks.detect` measures: a container runtime behind a socket, and an agent beside it.

    python -m benchmarks.detect.processes sim|embedded --socket PATH --root FOLDER

serves CRI until it gets SIGTERM. Every runtime is a process of its own, also those that usually live in the agent's:
so a bare client can ask all of them, and the agent's CPU and memory are the agent's alone.

Nothing in a simulated runtime can be killed. There a container crashes by a command that is executed in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from benchmarks.agent_process import PATIENCE, compile_package, running_agent
from tests.containerd_node import TEST_IMAGE, ContainerdNode
from trikubelet.clock import SystemClock
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import Server, open_unix_channel
from trikubelet.sim import ExecOutcome, Program, SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from benchmarks.agent_process import AgentProcess

REPOSITORY: Final = Path(__file__).parents[1]
RUNTIMES: Final = ("embedded", "containerd", "sim")
IMAGES: Final = {"embedded": "localhost/host", "containerd": TEST_IMAGE, "sim": "sim/service:1"}
POLL: Final = 0.001
CRASH: Final = "crash"
"""A command: the simulated container with the id that follows ends as if it had been killed."""
COMMAND: Final = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait $!"]
POD_NAME: Final = "io.kubernetes.pod.name"
POD_UID: Final = "io.kubernetes.pod.uid"
KILLED: Final = 137


# Runtimes


@attrs.frozen
class RuntimeProcess:
    """A runtime that answers."""

    kind: str
    socket: Path
    pid: int

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    @property
    def image(self) -> str:
        """It is there, or can be had, and has a shell."""
        return IMAGES[self.kind]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RuntimeClient]:
        async with open_unix_channel(self.socket) as channel:
            yield RuntimeClient(channel)


@contextmanager
def runtime_process(kind: str, folder: Path, number: int = 0) -> Iterator[RuntimeProcess]:
    """One runtime in `folder`; nothing is left of it. Runtimes that live at the same time have different numbers."""
    if kind == "containerd":
        node = ContainerdNode(folder, f"br-{number}d{os.getpid() % 10000}", network=number)
        try:
            node.start()
            node.import_images()
            assert node.process is not None
            yield RuntimeProcess(kind, node.socket, node.process.pid)
        finally:
            node.stop()
        return
    folder.mkdir(parents=True)
    socket = folder / "cri.sock"
    command = [sys.executable, "-m", "benchmarks.detect.processes", kind, f"--socket={socket}", f"--root={folder}"]
    with _process(command, folder / "runtime.log", cwd=REPOSITORY) as process:
        _wait_until(socket.exists, process, folder / "runtime.log")
        runtime = RuntimeProcess(kind, socket, process.pid)
        try:
            yield runtime
        finally:
            if kind != "sim":
                trio.run(_remove_everything, runtime)


async def _remove_everything(runtime: RuntimeProcess) -> None:
    async with runtime.client() as client:
        for sandbox in await client.list_pod_sandboxes():
            await client.stop_pod_sandbox(sandbox.id)
            await client.remove_pod_sandbox(sandbox.id)


# Agents


@contextmanager
def agent_on(folder: Path, endpoint: str, *flags: str) -> Iterator[AgentProcess]:
    """An agent that takes pods, as many as there may be. At the end it is waited for, and its pods go on."""
    folder.mkdir()
    with running_agent(folder, endpoint, ("--max-pods=10000", "--no-drain-on-exit", *flags)) as agent:
        agent.wait_until_it_listens()
        yield agent


def write_manifests(manifests: Path, names: Sequence[str], image: str) -> None:
    """Bring pods of one container each, as close to each other as can be."""
    for name in names:
        container = {"name": "main", "image": image, "command": COMMAND}
        spec = {"terminationGracePeriodSeconds": 5, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        (manifests / f".{name}").write_text(json.dumps(pod))
    for name in names:
        (manifests / f".{name}").rename(manifests / f"{name}.json")


async def until_running(
    client: RuntimeClient, pods: int, told: Callable[[int], object] = lambda running: None
) -> list[v1.Container]:
    """Wait until so many containers run; `told` how many do so far. Raises trio.TooSlowError."""
    running = v1.ContainerFilter(state=v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_RUNNING))
    with trio.fail_after(PATIENCE):
        while len(containers := await client.list_containers(running)) < pods:
            told(len(containers))
            await trio.sleep(0.2)
    told(pods)
    return containers


@contextmanager
def _process(command: list[str], log: Path, cwd: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    compile_package()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises RuntimeError with the end of its log when the process ends first, or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} does not start: {log.read_text()[-2000:]}")
        time.sleep(0.01)


# A runtime's process


def simulated_runtime() -> SimulatedRuntime:
    """One whose containers run until they are stopped, or told to crash. They have logs: agents look after those."""
    sim = SimulatedRuntime(clock=SystemClock(), log_limit=10, write_logs=True)

    def execute(command: Sequence[str]) -> ExecOutcome:
        if command[0] == CRASH:
            sim.end_container(sim.machine.containers[command[1]], KILLED)
        return ExecOutcome()

    sim.images.add(IMAGES["sim"])
    sim.program(attrs.evolve(Program.runs_forever(), exec=execute))
    return sim


async def _serve(kind: str, socket: Path, root: Path) -> None:
    handlers: Any
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            if kind == "sim":
                handlers, shutdown = simulated_runtime().handlers, None
            else:
                from trikubelet.embedded.runtime import EmbeddedRuntime

                embedded = EmbeddedRuntime(root / "runtime", clock=SystemClock())
                await nursery.start(embedded.run)
                handlers, shutdown = embedded.handlers, embedded.shutdown
            await nursery.start(Server(handlers).serve_unix, socket)
            await anext(signals)
            if shutdown is not None:
                await shutdown()
            nursery.cancel_scope.cancel()


@click.command()
@click.argument("kind", type=click.Choice(["sim", "embedded"]))
@click.option("--socket", required=True, type=click.Path(path_type=Path), help="Where to serve CRI.")
@click.option("--root", required=True, type=click.Path(path_type=Path), help="The embedded runtime's folder.")
def main(kind: str, socket: Path, root: Path) -> None:
    """Serve a runtime until SIGTERM."""
    trio.run(_serve, kind, socket, root)


if __name__ == "__main__":
    main()
