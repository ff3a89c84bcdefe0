"""The network between an agent's probes and simulated containers, which have none of their own.

`SimulatedTargets` stands in for the handlers: it finds the container by its id, as a real one would by its address, and
has its program answer. Probes that run commands need no stand-in: ExecSync goes through the runtime, with all its
faults, so they are left to the runtime's own commands.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.probes.types import Asker, Outcome, ProbeAnswer, ProbeKind
from trikubelet.sim.machine import RUNNING
from trikubelet.sim.programs import Late

if TYPE_CHECKING:
    from trikubelet.probes.types import ProbeTarget
    from trikubelet.sim.machine import Container, Machine

REMEMBERED: Final = 100_000


@frozen
class Asked:
    """One question that was put to a container."""

    time: float
    """Trio time."""
    pod_uid: str
    container: str
    container_id: str
    kind: ProbeKind


class SimulatedTargets:
    """The `Asker` of a simulated node.

    `commands` asks by ExecSync; without it, commands are answered by the program like anything else.
    """

    def __init__(self, machine: Machine, commands: Asker | None = None) -> None:
        self._machine = machine
        self._commands = commands
        self.asked: deque[Asked] = deque(maxlen=REMEMBERED)
        """Every question so far, those by command included."""

    async def __call__(self, target: ProbeTarget, /) -> ProbeAnswer:
        """Ask the container's program. It has as long as the probe's timeout says."""
        identifier, pod = target.container_id.id, target.pod
        self.asked.append(Asked(trio.current_time(), pod.metadata.uid, target.container.name, identifier, target.kind))
        probe = target.probe
        if probe is not None and probe.exec is not None and self._commands is not None:
            return await self._commands(target)
        await trio.lowlevel.checkpoint()
        timeout = math.inf if probe is None else float(max(1, probe.timeout_seconds))
        self._machine.settle()
        container = self._machine.containers.get(identifier)
        if container is None or container.state is not RUNNING:
            return _refused(target)
        if target.pod_ip != container.sandbox.ip and container.sandbox.ip:
            await trio.sleep(timeout)
            return ProbeAnswer(Outcome.FAILURE, f"simulated: nobody answers at {target.pod_ip!r}")
        return await self._answer(target, container, timeout)

    async def _answer(self, target: ProbeTarget, container: Container, timeout: float) -> ProbeAnswer:
        age = 0.0 if container.run is None else trio.current_time() - container.run.started_at
        answer = container.program.answers(target.kind, age)
        if not isinstance(answer, Late):
            return answer
        if await self._machine.wait_ended(container, min(answer.seconds, timeout)):
            return _refused(target)
        if answer.seconds > timeout:
            return ProbeAnswer(Outcome.FAILURE, f"simulated: no answer within {timeout:g}s")
        return answer.answer


def _refused(target: ProbeTarget) -> ProbeAnswer:
    return ProbeAnswer(Outcome.FAILURE, f"simulated: {target.pod_ip} refused the connection")
