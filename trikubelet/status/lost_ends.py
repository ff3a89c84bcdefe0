"""Ends of containers that the runtime does not show any more.

A container that ended may be removed, by somebody else, before anybody has looked at it. If its end was told by the
runtime's events, its exit code is known all the same. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import PodStatus
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus


def with_lost_ends(
    observed: PodRuntimeStatus, previous: PodStatus, seen_end: Callable[[str], ContainerStatus | None]
) -> PodRuntimeStatus:
    """What was observed, with the ends of those that were reported as running and are gone.

    `seen_end` tells the last status of a container by its id, if it is known.
    """
    shown = {status.id.id for status in observed.container_statuses}
    reported = (
        *previous.init_container_statuses,
        *previous.container_statuses,
        *previous.ephemeral_container_statuses,
    )
    running = (status.container_id.rpartition("/")[2] for status in reported if status.state.running is not None)
    ends = [end for container_id in running if container_id not in shown and (end := seen_end(container_id))]
    if not ends:
        return observed
    newest_first = sorted((*observed.container_statuses, *ends), key=_created_at, reverse=True)
    return attrs.evolve(observed, container_statuses=tuple(newest_first))


def _created_at(status: ContainerStatus) -> float:
    """In Unix seconds; one that nobody knows was long ago."""
    return 0.0 if status.created_at is None else status.created_at.timestamp()
