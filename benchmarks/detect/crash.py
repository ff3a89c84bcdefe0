"""How long after a container's crash its restart begins, step by step, beside a bare client that does nothing else.

Each crash is a SIGKILL from outside. A container's first restart waits for no back-off, so each crash has a pod of its
own. From then on one client of the runtime's, without any knowledge of the agent, asks in short intervals: does the
runtime say that the container has ended, does it hold a new one, does that run. When the agent decided is in its log,
in its line "pod planned": the last one before the new container.

The floor kills a container too, on a second runtime of the kind, waits by the same questions, then creates and starts
one. Crashes of both take turns, so that noise hits both alike, with random pauses, so that they meet no period.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.detect.processes import (
    COMMAND,
    CRASH,
    POD_NAME,
    POD_UID,
    POLL,
    RuntimeProcess,
    agent_on,
    runtime_process,
    until_running,
    write_manifests,
)
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trikubelet.rpc.cri.client import RuntimeClient

DECISION: Final = "pod planned"
PAUSES: Final = (0.2, 1.2)
"""Seconds between crashes, at least and at most: beyond the kubelet's period of a second."""
QUIET: Final = 2.0
"""Seconds after which an agent has done all that the starts of its pods bring with them."""
LONGEST: Final = 60.0
"""Seconds after which a crash that nobody noticed is a failure of the benchmark."""


@attrs.frozen
class Crash:
    """One crash and what followed, in ns of the wall clock."""

    killed: int
    dead: int
    """The kernel said so, by the process's pidfd."""
    known: int
    """The runtime said so."""
    decided: int
    created: int
    """The runtime has a new container."""
    running: int

    def milliseconds(self, since: str, until: str) -> float:
        """Between two of the moments, named as the fields are."""
        nanoseconds: int = getattr(self, until) - getattr(self, since)
        return nanoseconds / 1e6


STEPS: Final = (
    ("killed → process dead", "killed", "dead"),
    ("dead → runtime knows", "dead", "known"),
    ("knows → restart decided", "known", "decided"),
    ("decided → created", "decided", "created"),
    ("created → running", "created", "running"),
    ("dead → running again", "dead", "running"),
)


@attrs.frozen
class Crashes:
    """On one kind of runtime."""

    runtime: str
    agent: list[Crash]
    floor: list[Crash]

    def decision(self, share: float) -> float:
        """Milliseconds from the runtime's knowledge to the decision: the percentile."""
        return percentile([crash.milliseconds("known", "decided") for crash in self.agent], share)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def decisions(lines: Iterable[str]) -> dict[str, list[int]]:
    """When the agent planned each pod, in ns, by the pod's name; from its log of JSON lines."""
    planned: dict[str, list[int]] = {}
    for line in lines:
        if DECISION not in line:
            continue
        entry = json.loads(line)
        if entry["event"] == DECISION:
            moment = round(datetime.fromisoformat(entry["timestamp"]).timestamp() * 1e6) * 1000
            planned.setdefault(entry["pod"].partition("_")[0], []).append(moment)
    return planned


def with_decision(crash: Crash, planned: Sequence[int]) -> Crash:
    """The crash with the last plan that was made between the death and the new container. Raises RuntimeError."""
    between = [moment for moment in planned if crash.killed <= moment <= crash.created]
    if not between:
        raise RuntimeError(
            "the agent's log has no plan between a crash and the new container: has its wording changed?"
        )
    return attrs.evolve(crash, decided=max(between))


def measure_crashes(
    kind: str, folder: Path, crashes: int, flags: Sequence[str] = (), progress: Callable[[int], object] = lambda _: None
) -> Crashes:
    """So many crashes of the agent's and of the floor's. `flags`: more of them for the agent."""
    with runtime_process(kind, folder / "agent-cri", 0) as runtime, runtime_process(kind, folder / "cri", 1) as bare:
        names = [f"crash-{number}" for number in range(crashes)]
        with agent_on(folder / "agent", runtime.endpoint, "--log-format=json", "--v=4", *flags) as agent:
            write_manifests(agent.manifests, names, runtime.image)
            ours, floor = trio.run(_crash_all, runtime, bare, folder, crashes, progress)
            for name in names:
                (agent.manifests / f"{name}.json").unlink()
            trio.run(_until_gone, runtime)
        with agent.log.open() as log:
            planned = decisions(log)
    return Crashes(kind, [with_decision(crash, planned[pod]) for pod, crash in ours.items()], floor)


async def _crash_all(
    runtime: RuntimeProcess, bare: RuntimeProcess, folder: Path, crashes: int, progress: Callable[[int], object]
) -> tuple[dict[str, Crash], list[Crash]]:
    pauses = random.Random(1)
    ours, floor = {}, []
    async with runtime.client() as client, bare.client() as other:
        containers = await until_running(client, crashes)
        await trio.sleep(QUIET)
        for number, container in enumerate(containers):
            await trio.sleep(pauses.uniform(*PAUSES))
            ours[container.labels[POD_NAME]] = await crash_watched(client, runtime.kind, container)
            await trio.sleep(pauses.uniform(*PAUSES))
            floor.append(await crash_floor(other, bare, folder / "floor-logs", f"floor-{number}"))
            progress(number + 1)
    return ours, floor


async def _until_gone(runtime: RuntimeProcess) -> None:
    """Raises RuntimeError when the agent does not end its pods."""
    async with runtime.client() as client:
        with trio.move_on_after(LONGEST):
            while await client.list_pod_sandboxes():  # noqa: ASYNC110 - not every runtime tells
                await trio.sleep(0.1)
            return
        left = [f"{sandbox.metadata.name} ({sandbox.state.name})" for sandbox in await client.list_pod_sandboxes()]
        raise RuntimeError(f"{LONGEST:g} s after their manifests went these sandboxes are left: {', '.join(left)}")


async def crash_watched(client: RuntimeClient, kind: str, container: v1.Container) -> Crash:
    """Kill a container, and see how somebody else starts it again. The decision is not to be seen here."""
    killed, dead = await _kill(client, kind, container.id)
    with trio.fail_after(LONGEST):
        known = await _until_state(client, container.id, v1.ContainerState.CONTAINER_EXITED)
        of_pod = v1.ContainerFilter(label_selector={POD_UID: container.labels[POD_UID]})
        while not (new := [each.id for each in await client.list_containers(of_pod) if each.id != container.id]):  # noqa: ASYNC110
            await trio.sleep(POLL)
        created = time.time_ns()
        running = await _until_state(client, new[0], v1.ContainerState.CONTAINER_RUNNING)
    return Crash(killed=killed, dead=dead, known=known, decided=known, created=created, running=running)


async def crash_floor(client: RuntimeClient, runtime: RuntimeProcess, logs: Path, name: str) -> Crash:
    """Kill a container, and start it again as soon as the runtime says that it has ended."""
    sandbox = _sandbox(name, logs)
    sandbox_id = await client.run_pod_sandbox(sandbox)
    container_id = await client.create_container(sandbox_id, _container(runtime.image, 0), sandbox)
    await client.start_container(container_id)
    killed, dead = await _kill(client, runtime.kind, container_id)
    known = await _until_state(client, container_id, v1.ContainerState.CONTAINER_EXITED)
    new_id = await client.create_container(sandbox_id, _container(runtime.image, 1), sandbox)
    created = time.time_ns()
    await client.start_container(new_id)
    running = time.time_ns()
    await client.stop_pod_sandbox(sandbox_id)
    await client.remove_pod_sandbox(sandbox_id)
    return Crash(killed=killed, dead=dead, known=known, decided=known, created=created, running=running)


async def _kill(client: RuntimeClient, kind: str, container_id: str) -> tuple[int, int]:
    """When it was killed, and when its process was dead."""
    if kind == "sim":
        killed = time.time_ns()
        await client.exec_sync(container_id, [CRASH, container_id], LONGEST)
        return killed, time.time_ns()
    reply = await client.container_status(container_id, verbose=True)
    pidfd = os.pidfd_open(json.loads(reply.info["info"])["pid"])
    try:
        killed = time.time_ns()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await trio.lowlevel.wait_readable(pidfd)
        return killed, time.time_ns()
    finally:
        os.close(pidfd)


async def _until_state(client: RuntimeClient, container_id: str, state: v1.ContainerState) -> int:
    """When the runtime said so."""
    while (await client.container_status(container_id)).status.state is not state:  # noqa: ASYNC110
        await trio.sleep(POLL)
    return time.time_ns()


def _sandbox(name: str, logs: Path) -> v1.PodSandboxConfig:
    folder = logs / name
    (folder / "main").mkdir(parents=True)
    own_pids = v1.NamespaceOption(pid=v1.NamespaceMode.CONTAINER)
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=name, namespace="default", uid=name),
        hostname=name,
        log_directory=str(folder),
        labels={POD_NAME: name, POD_UID: name},
        linux=v1.LinuxPodSandboxConfig(
            security_context=v1.LinuxSandboxSecurityContext(namespace_options=own_pids),
        ),
    )


def _container(image: str, attempt: int) -> v1.ContainerConfig:
    own_pids = v1.NamespaceOption(pid=v1.NamespaceMode.CONTAINER)
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main", attempt=attempt),
        image=v1.ImageSpec(image=image),
        command=COMMAND,
        log_path=f"main/{attempt}.log",
        linux=v1.LinuxContainerConfig(
            security_context=v1.LinuxContainerSecurityContext(namespace_options=own_pids),
        ),
    )
