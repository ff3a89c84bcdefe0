"""Families about PLEG: lists, inspections, the sources of news, and what was last seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from trikubelet.container.model import ContainerState
from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.clock import WallClock
    from trikubelet.pleg.cache import PodStatusCache
    from trikubelet.pleg.pleg import Pleg
    from trikubelet.pleg.sources import PlegSources
    from trikubelet.telemetry.families import AnyFamily


def collect_pleg(pleg: Pleg, sources: PlegSources, clock: WallClock) -> Iterator[AnyFamily]:
    relist, statistics = sources.relist, pleg.statistics()
    yield histogram("kubelet_pleg_relist_duration_seconds", "How long lists of all pods took.", relist.durations)
    yield histogram("kubelet_pleg_relist_interval_seconds", "Time from list to list of all pods.", relist.intervals)
    text = "How long it took to look at one pod."
    yield histogram("kubelet_pleg_pod_relist_duration_seconds", text, pleg.durations)
    yield counter("kubelet_pleg_discard_events", "Lifecycle events that were thrown away: none ever is.", 0)
    if relist.active_at is not None:
        seen = clock.now().timestamp() - (trio.current_time() - relist.active_at)
        text = "When the last successful list of all pods began, in seconds since 1970."
        yield gauge("kubelet_pleg_last_seen_seconds", text, seen)
    text = "Streams of the runtime's events that brought something."
    yield counter("kubelet_evented_pleg_connection_success_count", text, sources.events.streams)
    text = "Streams of the runtime's events that could not be had or broke off."
    yield counter("kubelet_evented_pleg_connection_error_count", text, sources.events.failures)
    text = "Time from when something happened, by the runtime's word, to when its event was here."
    yield histogram("kubelet_evented_pleg_connection_latency_seconds", text, sources.events.latencies)
    text = "Whether a source of news about containers works as it should."
    up = {(name,): int(problem is None) for name, problem in sources.health().items()}
    yield gauge("trikubelet_pleg_source_up", text, up, ("source",))
    yield gauge("trikubelet_watched_processes", "Processes whose end is awaited.", sources.pidfds.watched)
    yield counter("trikubelet_pleg_inspections_total", "Looks at one pod.", statistics.inspections)
    yield counter("trikubelet_pleg_inspection_failures_total", "Looks at one pod that failed.", statistics.failures)
    yield counter("trikubelet_pleg_events_total", "Lifecycle events that were sent.", statistics.events)


def collect_running(cache: PodStatusCache) -> Iterator[AnyFamily]:
    """By what was last seen of each pod."""
    pods, containers = 0, Counter({(state.value,): 0 for state in ContainerState})
    for uid in cache.uids():
        status = cache.last_seen(uid)
        if status is not None:
            pods += any(sandbox.ready for sandbox in status.sandbox_statuses)
            containers.update((one.state.value,) for one in status.container_statuses)
    yield gauge("kubelet_running_pods", "Pods with a sandbox that is ready.", pods)
    text = "Containers that the runtime holds, by state."
    yield gauge("kubelet_running_containers", text, containers, ("container_state",))
