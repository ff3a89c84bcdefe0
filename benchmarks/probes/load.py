"""Five hundred probes a second: what they cost an agent, whether they come in time, and whether pods still end at once.

The agent is a process of its own, on a simulated runtime in another, so that next to nothing but the agent is
measured; its probes go to real servers in a third. One in five of them meets a target that is dead in one way or
another. A probe of a target that hangs takes a little longer than its period, here as in the kubelet, so only those
that are answered are asked to be on time.

The same pods without probes are the other side of the comparison. The floor is a bare loop in this process, which
connects to the same servers at the same pace and does nothing else.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from benchmarks.detect.idle import cpu_seconds
from benchmarks.detect.processes import POD_NAME, agent_on, runtime_process, until_running
from benchmarks.probes.targets import address
from benchmarks.probes.timing import Timing, timing
from trikubelet.http.client.connect import close_quietly
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.agent_process import AgentProcess
    from benchmarks.detect.processes import RuntimeProcess
    from benchmarks.probes.targets import Targets
    from trikubelet.rpc.cri.client import RuntimeClient

PERIOD: Final = 1.0
CONTAINERS: Final = 10
"""In each pod, each with one probe."""
DEAD: Final = {0: ("httpGet", "closed"), 1: ("httpGet", "full"), 10: ("tcpSocket", "full"), 11: ("httpGet", "hangs")}
"""Which of twenty probes ask whom that does not answer; the others ask by HTTP and TCP in turns."""
OF: Final = 20
TIME_WAIT: Final = "06"
LONGEST: Final = 60.0
POLL: Final = 0.002
PAUSE: Final = 0.2
"""Seconds between two deletions."""


@attrs.frozen
class Load:
    """An agent with so many probes a second."""

    probes: int
    cpu: float
    """Percent of a core."""
    deletions: list[float]
    """Seconds from the removal of a pod's manifest until the runtime says that its sandbox is not ready."""
    timing: Timing | None = None
    time_wait: int = 0
    """Ports of clients that nobody can use for a while, after it all."""


@attrs.frozen
class BareLoop:
    """The floor: as many connections a second."""

    cpu: float
    timing: Timing


def measure_load(
    folder: Path,
    targets: Targets,
    probes: int,
    *,
    probed: bool,
    settle: float,
    window: float,
    deletions: int,
    told: Any,
) -> Load:
    """`probes` containers, each with its probe each second if `probed`. Seconds: `window`, after `settle`."""
    with runtime_process("sim", folder / "cri") as runtime, agent_on(folder / "agent", runtime.endpoint) as agent:
        _write(agent, runtime, targets, probes, deletions, probed=probed)
        return trio.run(
            _measure, agent, runtime, targets, probes if probed else 0, probes, settle, window, deletions, told
        )


async def _measure(
    agent: AgentProcess,
    runtime: RuntimeProcess,
    targets: Targets,
    probed: int,
    containers: int,
    settle: float,
    window: float,
    deletions: int,
    told: Callable[[str], object],
) -> Load:
    async with runtime.client() as client:
        told("starting")
        await until_running(client, containers + deletions)
        told("settling")
        await trio.sleep(settle)
        targets.forget()
        told("measuring")
        before, began = _cpu(agent), time.monotonic()
        await trio.sleep(window)
        cpu = 100 * (_cpu(agent) - before) / (time.monotonic() - began)
        seen = timing(targets.arrivals().values(), PERIOD) if probed else None
        told("deleting")
        sandboxes = {each.labels[POD_NAME].rpartition("-")[0]: each.id for each in await client.list_pod_sandboxes()}
        took = []
        for number in range(deletions):
            await trio.sleep(PAUSE)
            took.append(await _delete(agent, client, f"victim-{number}", sandboxes[f"victim-{number}"]))
        time_wait = _in_time_wait({*targets.ports.values()})
    return Load(probed, cpu, took, seen, time_wait)


def bare_loop(targets: Targets, probes: int, window: float) -> BareLoop:
    """As many tasks, each of which connects each second and closes, without anything around it."""
    return trio.run(_bare_loop, targets, probes, window)


async def _bare_loop(targets: Targets, probes: int, window: float) -> BareLoop:
    began = trio.current_time() + PERIOD

    async def connect(number: int) -> None:
        due = began + PERIOD * number / probes
        where = (address(number), targets.ports["good"])
        while True:
            await trio.sleep_until(due)
            due += PERIOD
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
                if sock.connect_ex(where):
                    await trio.lowlevel.wait_writable(sock)
                close_quietly(sock)

    async with trio.open_nursery() as nursery:
        for number in range(probes):
            nursery.start_soon(connect, number)
        await trio.sleep_until(began + PERIOD)
        targets.forget()
        cpu, since = time.process_time(), time.monotonic()
        await trio.sleep(window)
        percent = 100 * (time.process_time() - cpu) / (time.monotonic() - since)
        nursery.cancel_scope.cancel()
    return BareLoop(percent, timing(targets.arrivals().values(), PERIOD))


def _write(
    agent: AgentProcess, runtime: RuntimeProcess, targets: Targets, probes: int, deletions: int, *, probed: bool
) -> None:
    pods = {
        f"load-{first // CONTAINERS}": [
            _container(f"c{number - first}", runtime.image, _probe(number, targets) if probed else None)
            for number in range(first, min(first + CONTAINERS, probes))
        ]
        for first in range(0, probes, CONTAINERS)
    }
    pods |= {f"victim-{number}": [_container("main", runtime.image, None)] for number in range(deletions)}
    for name, containers in pods.items():
        spec = {"terminationGracePeriodSeconds": 5, "containers": containers}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        (agent.manifests / f".{name}").write_text(json.dumps(pod))
        (agent.manifests / f".{name}").rename(agent.manifests / f"{name}.json")


def _container(name: str, image: str, probe: dict[str, Any] | None) -> dict[str, Any]:
    return {"name": name, "image": image, **({} if probe is None else {"readinessProbe": probe})}


def _probe(number: int, targets: Targets) -> dict[str, Any]:
    kind, port = DEAD.get(number % OF, (("httpGet", "tcpSocket")[number % 2], "good"))
    action = {"host": address(number), "port": targets.ports[port], **({"path": "/"} if kind == "httpGet" else {})}
    return {kind: action, "periodSeconds": int(PERIOD), "timeoutSeconds": 1, "failureThreshold": 1}


async def _delete(agent: AgentProcess, client: RuntimeClient, name: str, sandbox: str) -> float:
    began = time.monotonic()
    (agent.manifests / f"{name}.json").unlink()
    with trio.fail_after(LONGEST):
        only = v1.PodSandboxFilter(id=sandbox, state=v1.PodSandboxStateValue(state=v1.PodSandboxState.SANDBOX_READY))
        while await client.list_pod_sandboxes(only):  # noqa: ASYNC110 - not every runtime tells
            await trio.sleep(POLL)
    return time.monotonic() - began


def _cpu(agent: AgentProcess) -> float:
    return cpu_seconds(Path(f"/proc/{agent.process.pid}/stat").read_text())


def _in_time_wait(ports: set[int]) -> int:
    found = 0
    with suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            found += fields[3] == TIME_WAIT and int(fields[2].partition(":")[2], 16) in ports
    return found
