"""What probes said of containers, as the status needs it, and how it becomes `started` and `ready`.

A container without a startup probe has started when it runs; one without a readiness probe is ready when it has
started. A probe that has said nothing yet leaves what was reported before of the same container, so that a restart of
the agent takes no pod out of service, and else says no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from trikubelet.api import Container, ContainerStatus


@attrs.frozen
class ProbeOutcomes:
    """The newest results by container id (`containerd://…`); a container that is not in a mapping has none yet."""

    startup: Mapping[str, bool] = attrs.field(factory=dict)
    readiness: Mapping[str, bool] = attrs.field(factory=dict)


NO_OUTCOMES: Final = ProbeOutcomes()


def with_probe_outcomes(
    container: Container,
    status: ContainerStatus,
    previous: ContainerStatus | None,
    outcomes: ProbeOutcomes,
    *,
    runs_to_completion: bool,
) -> ContainerStatus:
    """The status with `started` and `ready` (kubelet: `prober.UpdatePodStatus`).

    `previous` is what was reported of the container before. An init container that `runs_to_completion` is ready when
    it ended well.
    """
    same = previous if previous is not None and previous.container_id == status.container_id else None
    started = _started(container, status, same, outcomes)
    if runs_to_completion:
        ended = status.state.terminated
        ready = status.ready if ended is None else status.ready or ended.exit_code == 0
    else:
        ready = started and _ready(container, status, same, outcomes)
    return attrs.evolve(status, started=started, ready=ready)


def _started(
    container: Container, status: ContainerStatus, same: ContainerStatus | None, outcomes: ProbeOutcomes
) -> bool:
    if status.state.running is None:
        return False
    if container.startup_probe is None:
        return True
    return outcomes.startup.get(status.container_id, same is not None and bool(same.started))


def _ready(
    container: Container, status: ContainerStatus, same: ContainerStatus | None, outcomes: ProbeOutcomes
) -> bool:
    if container.readiness_probe is None:
        return True
    return outcomes.readiness.get(status.container_id, same is not None and same.ready)
