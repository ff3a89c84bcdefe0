"""One run of a probe: ask, ask again when the asking failed, record events (kubelet: prober.go)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from trikubelet.probes.types import Outcome
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.probes.types import Asker, ProbeTarget
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("probes")

TRIES: Final = 3
"""How often a container is asked in a row, while asking fails. Each try has the probe's whole timeout."""


class Prober:
    """Judges by the answers of `asker`; any number at a time."""

    def __init__(self, asker: Asker, recorder: EventRecorder) -> None:
        self._asker = asker
        self._recorder = recorder

    async def probe(self, target: ProbeTarget) -> bool | None:
        """Whether the container is well; None when asking failed in each try, which must not count as either.

        A container without this probe is well. Cancelling ends the question under way.
        """
        if target.probe is None:
            return True
        answer = await self._asker(target)
        for _ in range(TRIES - 1):
            if not answer.error:
                break
            answer = await self._asker(target)
        kind = target.kind.value
        if answer.error:
            outcome = answer.outcome.value
            self._event(target, "Unhealthy", f"{kind} probe errored and resulted in {outcome} state: {answer.error}")
            return None
        match answer.outcome:
            case Outcome.SUCCESS:
                return True
            case Outcome.WARNING:
                self._event(target, "ProbeWarning", f"{kind} probe warning: {answer.output}")
                return True
            case Outcome.FAILURE:
                self._event(target, "Unhealthy", f"{kind} probe failed: {answer.output}")
                return False
            case Outcome.UNKNOWN:
                pod, container = target.pod.full_name, target.container.name
                log.info("probe without a result counts as failed", probe=kind, pod=pod, container=container)
                return False
            case _:
                assert_never(answer.outcome)

    def _event(self, target: ProbeTarget, reason: str, message: str) -> None:
        if target.early:
            return
        self._recorder.pod_event(target.pod, EventType.WARNING, reason, message, container=target.container.name)
