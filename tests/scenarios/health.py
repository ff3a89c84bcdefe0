"""What containers of scenarios say when they are probed, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from tests.probes.stage import LIVENESS, READINESS, STARTUP, probe_tasks
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeKind
from trikubelet.sim import Program
from trikubelet.sim.programs import ANSWERS_WELL, Late

if TYPE_CHECKING:
    from tests.apiserver.documents import Document
    from trikubelet.agent.agent import Agent
    from trikubelet.sim.probing import SimulatedTargets

ILL: Final = ProbeAnswer(Outcome.FAILURE, "HTTP probe failed with statuscode: 500")
_FIELDS: Final = {LIVENESS: "livenessProbe", READINESS: "readinessProbe", STARTUP: "startupProbe"}


def probed(name: str, *kinds: ProbeKind, how: Document | None = None, **fields: Any) -> Document:
    """A container of a manifest with probes of these kinds. `fields` are the probes', the `how` is TCP unless told."""
    probe = {**(how or {"tcpSocket": {"port": 80}}), "periodSeconds": 1, "failureThreshold": 3, **fields}
    return {"name": name, "image": "test:1", **{_FIELDS[kind]: dict(probe) for kind in kinds}}


def sidecar(container: Document) -> Document:
    return container | {"restartPolicy": "Always"}


@attrs.define
class Health:
    """The answers of a program, for the test to change while it runs. By default everything is well."""

    says: dict[ProbeKind, ProbeAnswer | Late] = attrs.field(factory=dict)

    def __call__(self, kind: ProbeKind, age: float) -> ProbeAnswer | Late:
        return self.says.get(kind, ANSWERS_WELL)

    def ill(self, *kinds: ProbeKind) -> None:
        """These probes fail from now on, the others succeed."""
        self.says = dict.fromkeys(kinds, ILL)

    def program(self, **life: Any) -> Program:
        """One that runs until it is stopped: see `Program.runs_forever`."""
        return attrs.evolve(Program.runs_forever(**life), answers=self)


def asked(targets: SimulatedTargets, kind: ProbeKind, container: str = "main", since: float = 0.0) -> list[float]:
    """When a container was asked."""
    return [one.time for one in targets.asked if (one.kind, one.container) == (kind, container) and one.time >= since]


def assert_nothing_left(agent: Agent) -> None:
    """No worker, task, result, count or update of any probe."""
    manager = agent.probes
    found = manager.statistics()
    assert (found.pods, found.workers, found.asking, found.results, found.updates_waiting) == (0, 0, 0, 0, 0)
    assert manager.metrics.samples().totals == ()
    assert manager.metrics.samples().durations == ()
    assert probe_tasks() == []
