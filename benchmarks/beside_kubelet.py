"""Lives of pods on a node of a real cluster, under one agent after the other, as a watch of the API server shows them.

    python -m benchmarks.beside_kubelet --kubeconfig ADMIN --node NODE --image IMAGE [--rounds N] [--json FILE]
        --agent 'kubelet=kubelet --config …' --agent 'trikubelet=trikubelet run --config …'

Needs a cluster whose node NODE is this machine, a container runtime that has IMAGE (with a shell), and the commands of
the agents, each of which leaves pods and node to the next one. The first agent is the peer of the others. Of each pod
is measured how long it takes from its creation until it is seen running, from the end of its process until it is seen
failed, and of another one from its deletion until it is gone. The floor is what the API server takes to show a change
to the same watch. Ends come at odd moments, so that nobody's period hides or shows.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.api import Pod, pod_from_dict
from trikubelet.clock import SystemClock
from trikubelet.kube_client.client import HttpApiClient, open_client
from trikubelet.kube_client.dialing import open_access
from trikubelet.kube_client.types import PODS, PatchType
from trikubelet.telemetry.logs import only_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMESPACE: Final = "default"
PATIENCE: Final = 120.0
WATCH_SECONDS: Final = 3600.0
ODD: Final = 0.137
"""Seconds by which each moment is later in its second than the last one."""
SCRIPT: Final = """
trap 'exit 0' TERM
until [ -e /ends/END ]; do sleep 0.02; done
touch /ends/ended; exit 3
"""
SHOWN: Final = "change to seen"
RUNS: Final = "creation to running"
FAILS: Final = "process's end to failed"
GOES: Final = "deletion to gone"


@attrs.define
class Lives:
    """Pods on the node, one after the other."""

    client: HttpApiClient
    node: str
    image: str
    shared: Path
    """A folder that is also in the containers."""
    found: dict[str, list[float]] = attrs.field(factory=dict)
    """Milliseconds by what was measured."""
    _seen: dict[str, Pod] = attrs.field(factory=dict)
    _news: trio.Event = attrs.field(factory=trio.Event)
    _made: int = 0

    async def follow(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        version = (await self.client.list(PODS, NAMESPACE)).resource_version
        async with self.client.watch(PODS, NAMESPACE, resource_version=version, timeout=WATCH_SECONDS) as events:
            task_status.started()
            async for event in events:
                name = event.object.metadata.name
                if event.type == "DELETED":
                    self._seen.pop(name, None)
                elif isinstance(event.object, Pod):
                    self._seen[name] = event.object
                self._news.set()
                self._news = trio.Event()

    async def play(self, number: int) -> None:
        """One pod that ends by itself, and one that is deleted."""
        pod = await self._started()
        began = time.monotonic()
        note = {"metadata": {"annotations": {"benchmark": str(number)}}}
        await self.client.patch(PODS, pod, NAMESPACE, PatchType.MERGE, note)
        await self._until(lambda: "benchmark" in self._seen[pod].metadata.annotations)
        self._took(SHOWN, began)
        await trio.sleep(0.5 + number * ODD % 1)
        (self.shared / pod).touch()
        while not (self.shared / "ended").exists():  # noqa: ASYNC110 - another process makes it
            await trio.sleep(0.001)
        began = time.monotonic()
        await self._until(lambda: self._seen[pod].status.phase == "Failed")
        self._took(FAILS, began)
        (self.shared / "ended").unlink()
        await self.client.delete(PODS, pod, NAMESPACE, grace_period=0)

        pod = await self._started()
        await trio.sleep(0.5 + number * ODD % 1)
        began = time.monotonic()
        await self.client.delete(PODS, pod, NAMESPACE)
        await self._until(lambda: pod not in self._seen)
        self._took(GOES, began)

    async def _started(self) -> str:
        self._made += 1
        name = f"beside-{time.time_ns()}-{self._made}"
        container = {
            "name": "main",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", SCRIPT.replace("END", name)],
            "volumeMounts": [{"name": "ends", "mountPath": "/ends"}],
        }
        spec: dict[str, Any] = {
            "nodeName": self.node,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": [{"name": "ends", "hostPath": {"path": str(self.shared)}}],
        }
        began = time.monotonic()
        await self.client.create(
            PODS, pod_from_dict({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        )
        await self._until(lambda: name in self._seen and self._seen[name].status.phase == "Running")
        self._took(RUNS, began)
        return name

    async def _until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE):
            while not condition():
                await self._news.wait()

    def _took(self, what: str, began: float) -> None:
        self.found.setdefault(what, []).append((time.monotonic() - began) * 1000)


@contextmanager
def running(command: str, log: Path) -> Iterator[None]:
    """An agent. It is asked to end afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(shlex.split(command), stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def measure(kubeconfig: Path, node: str, image: str, rounds: int, shared: Path) -> dict[str, list[float]]:
    access = open_access(kubeconfig, clock=SystemClock())
    async with open_client(access) as client, trio.open_nursery() as nursery:
        lives = Lives(client, node, image, shared)
        await nursery.start(lives.follow)
        await lives.play(0)  # the agent has just started
        lives.found.clear()
        for number in range(rounds):
            await lives.play(number)
        nursery.cancel_scope.cancel()
    return lives.found


@click.command(help=__doc__.partition("\n")[0])
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--node", required=True, help="The node that this machine is.")
@click.option("--image", required=True, help="An image with a shell that the runtime has.")
@click.option("--agent", "agents", multiple=True, required=True, metavar="NAME=COMMAND", help="The peer first.")
@click.option("--rounds", default=12, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims to this file.")
@picture_option
def main(kubeconfig: Path, node: str, image: str, agents: tuple[str, ...], rounds: int, json_file: Path | None) -> None:
    found: dict[str, dict[str, list[float]]] = {}
    with TemporaryDirectory() as folder:
        for given in agents:
            name, _, command = given.partition("=")
            with running(command, Path(folder) / f"{name}.log"):
                shared = Path(folder) / name
                shared.mkdir()
                with only_warnings():
                    found[name] = trio.run(measure, kubeconfig, node, image, rounds, shared)
    columns = ["milliseconds: p50 (slowest)", *found]
    rows = [
        [what, *(f"{median(one[what]):.0f} ({max(one[what]):.0f})" for one in found.values())]
        for what in (SHOWN, RUNS, FAILS, GOES)
    ]
    print_table(f"{rounds} rounds, one agent after the other", columns, rows)
    peer, *others = found
    results = [
        Result(f"{other} beside {peer}: {what}", "times", median(found[other][what]) / median(found[peer][what]), 1.0)
        for other in others
        for what in (RUNS, FAILS, GOES)
    ]
    sys.exit(not report(results, json_file))


if __name__ == "__main__":
    main()
