"""From an endpoint that begins to fail to the death of its container, beside a bare StopContainer.

Each pod has a liveness probe at an address of its own. At a random moment that address begins to answer with 500; its
server writes down when, and when it has answered so as often as the threshold says. The container's process is watched
by its pidfd. Containers without probes are stopped by a bare client of the same runtime, in turns with the others.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from benchmarks.detect.processes import COMMAND, POD_NAME, agent_on, runtime_process, until_running
from benchmarks.probes.targets import address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.agent_process import AgentProcess
    from benchmarks.detect.processes import RuntimeProcess
    from benchmarks.probes.targets import Targets
    from trikubelet.rpc.cri.client import RuntimeClient

PERIOD: Final = 1
THRESHOLD: Final = 2
GRACE: Final = 5
QUIET: Final = 2.0
LONGEST: Final = 30.0


@attrs.frozen
class Kill:
    """One container, in ms."""

    delay: float
    """From when its endpoint failed until it was dead."""
    answered: float
    """Until it was dead from the answer that reached the threshold, or the last one: a probe out of time has none."""

    @property
    def beyond(self) -> float:
        """The delay beyond period x threshold."""
        return self.delay - 1000 * PERIOD * THRESHOLD


@attrs.frozen
class Kills:
    """On one runtime."""

    runtime: str
    agent: list[Kill]
    floor: list[float]
    """From a bare StopContainer until the process is dead, in ms."""


def measure_kills(kind: str, folder: Path, targets: Targets, kills: int, told: Callable[[str], object]) -> Kills:
    """So many containers are killed for their probes, and as many by a bare client."""
    with runtime_process(kind, folder / "cri") as runtime, agent_on(folder / "agent", runtime.endpoint) as agent:
        for number in range(kills):
            _write(agent, runtime, f"failing-{number}", _probe(targets, number))
            _write(agent, runtime, f"floor-{number}", None)
        ours, floor = trio.run(_kill_all, runtime, targets, kills, told)
    return Kills(kind, ours, floor)


async def _kill_all(
    runtime: RuntimeProcess, targets: Targets, kills: int, told: Callable[[str], object]
) -> tuple[list[Kill], list[float]]:
    pauses = random.Random(1)
    ours, floor = [], []
    async with runtime.client() as client:
        running = await until_running(client, 2 * kills)
        containers = {each.labels[POD_NAME].rpartition("-")[0]: each.id for each in running}
        await trio.sleep(QUIET)
        for number in range(kills):
            told(f"{runtime.kind}: {number + 1} of {kills}")
            await trio.sleep(pauses.uniform(0, PERIOD))
            ours.append(await _fail(client, targets, containers[f"failing-{number}"], address(number)))
            floor.append(await _stop(client, containers[f"floor-{number}"]))
    return ours, floor


async def _fail(client: RuntimeClient, targets: Targets, container: str, where: str) -> Kill:
    pidfd = await _pidfd(client, container)
    try:
        failed = targets.make_unwell(where)
        dead = await _until_dead(pidfd)
        answers = targets.make_well(where)
    finally:
        os.close(pidfd)
    *_, reached = [failed, *answers[:THRESHOLD]]
    return Kill(1000 * (dead - failed), 1000 * (dead - reached))


async def _stop(client: RuntimeClient, container: str) -> float:
    """What it takes the runtime, in ms."""
    pidfd = await _pidfd(client, container)
    try:
        async with trio.open_nursery() as nursery:
            began = time.monotonic()
            nursery.start_soon(client.stop_container, container, GRACE)
            return 1000 * (await _until_dead(pidfd) - began)
    finally:
        os.close(pidfd)


async def _pidfd(client: RuntimeClient, container: str) -> int:
    reply = await client.container_status(container, verbose=True)
    return os.pidfd_open(json.loads(reply.info["info"])["pid"])


async def _until_dead(pidfd: int) -> float:
    """When; by CLOCK_MONOTONIC."""
    with trio.fail_after(LONGEST):
        await trio.lowlevel.wait_readable(pidfd)
    return time.monotonic()


def _probe(targets: Targets, number: int) -> dict[str, Any]:
    action = {"host": address(number), "port": targets.ports["good"], "path": "/"}
    return {"httpGet": action, "periodSeconds": PERIOD, "timeoutSeconds": 1, "failureThreshold": THRESHOLD}


def _write(agent: AgentProcess, runtime: RuntimeProcess, name: str, probe: dict[str, Any] | None) -> None:
    container: dict[str, Any] = {"name": "main", "image": runtime.image, "command": COMMAND}
    if probe is not None:
        container["livenessProbe"] = probe
    spec = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    (agent.manifests / f".{name}").write_text(json.dumps(pod))
    (agent.manifests / f".{name}").rename(agent.manifests / f"{name}.json")
