"""What the parts of probing tell each other."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from trikubelet.api import Container, Pod
from trikubelet.container.model import ContainerID
from trikubelet.container.probe_results import ProbeResult
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Probe


class ProbeKind(enum.Enum):
    """By the names that events and metrics have for them."""

    LIVENESS = "Liveness"
    READINESS = "Readiness"
    STARTUP = "Startup"


class Outcome(enum.Enum):
    """Of asking once, by the names that the kubelet's `probe.Result` has."""

    SUCCESS = "success"
    WARNING = "warning"
    """Good enough, but somebody should know."""
    FAILURE = "failure"
    UNKNOWN = "unknown"


@frozen
class ProbeAnswer:
    """What asking once gave."""

    outcome: Outcome
    output: str = ""
    """What the container said, for the event."""
    error: str = ""
    """Not empty: asking itself failed, which says nothing about the container. It is tried again."""


@frozen
class ProbeKey:
    """One probe of one container."""

    pod_uid: str
    container: str
    kind: ProbeKind


@frozen
class ProbeTarget:
    """The container to ask."""

    pod: Pod
    container: Container
    container_id: ContainerID
    pod_ip: str
    kind: ProbeKind
    early: bool = False
    """Asked before its turn: only a success counts, so nothing else is told of."""

    @property
    def probe(self) -> Probe | None:
        """How to ask."""
        match self.kind:
            case ProbeKind.LIVENESS:
                return self.container.liveness_probe
            case ProbeKind.READINESS:
                return self.container.readiness_probe
            case ProbeKind.STARTUP:
                return self.container.startup_probe


@frozen
class ProbeUpdate:
    """A probe changed its mind."""

    key: ProbeKey
    container_id: ContainerID
    result: ProbeResult


class Asker(Protocol):
    """Asks a container once, by whichever way its probe says."""

    async def __call__(self, target: ProbeTarget, /) -> ProbeAnswer:
        """Never raises. Has the probe's timeout; a runtime that does not answer has its own on top.

        Cancelling it ends it at once.
        """
        ...
