"""Families about pods: those that are wanted and those that there are, workers, statuses, and starts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.pods.manager import is_inactive
from trikubelet.pods.registry import WorkerLifecycle
from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.pods.housekeeping import Housekeeping
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.preempting import Preempting
    from trikubelet.pods.registry import WorkerSummary
    from trikubelet.pods.start_latency import PodStartLatency
    from trikubelet.pods.workers import PodWorkers
    from trikubelet.status.manager import StatusManager
    from trikubelet.status.writer import StatusWriter
    from trikubelet.telemetry.families import AnyFamily

STATIC: Final = "true"
NOT_STATIC: Final = ""
_CONFIGS: Final = (
    ("desired", STATIC),
    ("desired", NOT_STATIC),
    ("orphan", STATIC),
    ("orphan", NOT_STATIC),
    ("runtime_only", "unknown"),
)


def collect_pods(pods: PodManager, workers: PodWorkers, statuses: StatusManager) -> Iterator[AnyFamily]:
    """How many pods there are."""
    wanted = pods.pods_and_mirror_pods()
    summaries = workers.summaries(wanted.pods)
    desired, active = Counter({(STATIC,): 0, (NOT_STATIC,): 0}), Counter({(STATIC,): 0, (NOT_STATIC,): 0})
    ephemeral = 0
    for pod in wanted.pods:
        label = (STATIC if is_static_pod(pod) else NOT_STATIC,)
        status = statuses.get_pod_status(pod.metadata.uid)
        desired[label] += 1
        phase = None if status is None else status.phase
        active[label] += not is_inactive(pod, summaries.get(pod.metadata.uid), phase)
        ephemeral += len(pod.spec.ephemeral_containers)
    yield gauge("kubelet_desired_pods", "Pods that the sources want here.", desired, ("static",))
    text = "Wanted pods that have not ended: those that count when another one is admitted."
    yield gauge("kubelet_active_pods", text, active, ("static",))
    yield gauge("kubelet_mirror_pods", "Mirror pods that the API server has.", len(wanted.mirror_pods))
    yield gauge("kubelet_managed_ephemeral_containers", "Ephemeral containers of wanted pods.", ephemeral)
    working = Counter({(state.value, *config): 0 for state in WorkerLifecycle for config in _CONFIGS})
    working.update(_working_labels(one) for one in summaries.values())
    text = "Pods that have a worker: what it does, who wants the pod, and whether it is static."
    yield gauge("kubelet_working_pods", text, working, ("lifecycle", "config", "static"))


def _working_labels(worker: WorkerSummary) -> tuple[str, str, str]:
    if not worker.has_config:
        return worker.lifecycle.value, "runtime_only", "unknown"
    static = STATIC if worker.static else NOT_STATIC
    return worker.lifecycle.value, "orphan" if worker.orphan else "desired", static


def collect_workers(workers: PodWorkers) -> Iterator[AnyFamily]:
    counts, statistics = workers.counts, workers.statistics()
    text = "Time from learning of a change of a pod to the end of the work that it caused."
    yield histogram("kubelet_pod_worker_duration_seconds", text, counts.latencies, ("operation_type",))
    text = "Time from learning of a pod to the beginning of its worker's first sync."
    yield histogram("kubelet_pod_worker_start_duration_seconds", text, counts.start_latencies)
    text = "Containers of each pod that began, init containers aside."
    yield histogram("kubelet_containers_per_pod_count", text, counts.containers_per_pod)
    works = {(work,): number for work, number in statistics.works.items()}
    yield counter("trikubelet_pod_works_total", "What pod workers began to do.", works, ("work",))
    yield counter("trikubelet_pod_work_failures_total", "Works of pod workers that failed.", statistics.failures)
    text = "Works of pod workers that were called off, since something else was asked for."
    yield counter("trikubelet_pod_work_cancellations_total", text, statistics.cancellations)
    yield gauge("trikubelet_pod_works_in_flight", "What pod workers are doing now.", statistics.in_flight)


def collect_cleanup(housekeeping: Housekeeping, preempting: Preempting) -> Iterator[AnyFamily]:
    text = "Pods that the runtime was found to run and that no worker knew."
    yield counter("kubelet_orphaned_runtime_pods_total", text, housekeeping.orphans)
    restarted = {(STATIC,): 0, (NOT_STATIC,): 0} | housekeeping.restarted
    text = "Pods that began anew with the UID of one that had ended."
    yield counter("kubelet_restarted_pods_total", text, restarted, ("static",))
    text = "Pods that were ended to make room for a critical one, by what there was too little of."
    yield counter("kubelet_preemptions", text, preempting.ended, ("preemption_signal",))


def collect_folders(housekeeping: Housekeeping) -> Iterator[AnyFamily]:
    """Of pods that are gone; the names are older than what they count."""
    text = "Pods that are gone of which the last round of housekeeping found a folder."
    yield gauge("kubelet_orphan_pod_cleaned_volumes", text, len(housekeeping.orphaned_folders))
    text = "Those of them whose folder could not be removed."
    yield gauge("kubelet_orphan_pod_cleaned_volumes_errors", text, housekeeping.unremovable_folders)


def collect_statuses(statuses: StatusManager, writer: StatusWriter | None) -> Iterator[AnyFamily]:
    metrics, statistics = statuses.metrics, statuses.statistics()
    text = "Time from when the agent first saw a pod to when it ran."
    yield histogram("kubelet_pod_start_duration_seconds", text, metrics.starts)
    text = "Containers that ended."
    labels = ("container_type", "exit_code", "reason")
    yield counter("kubelet_terminated_containers_total", text, metrics.ends, labels)
    text = "Pods that this node refused to run."
    yield counter("kubelet_admission_rejections_total", text, metrics.rejections, ("reason",))
    updates = {
        ("kept",): statistics.updates,
        ("unchanged",): statistics.unchanged,
        ("refused",): statistics.refused,
    }
    text = "Statuses that were generated of pods, by what became of them."
    yield counter("trikubelet_pod_status_updates_total", text, updates, ("outcome",))
    if writer is None:
        return
    text = "Time from when a pod's status changed to when the API server had it."
    yield histogram("kubelet_pod_status_sync_duration_seconds", text, writer.durations)
    made = writer.statistics()
    requests = {
        ("write",): made.writes,
        ("delete",): made.deletions,
        ("fetch",): made.fetches,
        ("failure",): made.failures,
    }
    text = "What the writer of pods' statuses did at the API server, and how often that failed."
    yield counter("trikubelet_pod_status_requests_total", text, requests, ("kind",))


def collect_start_latency(starts: PodStartLatency) -> Iterator[AnyFamily]:
    """Of pods of the API server."""
    text = "Time from a pod's creation to when the API server told that all its containers ran."
    yield histogram("kubelet_pod_start_total_duration_seconds", text, starts.total)
    text += " Without the time of image pulls and init containers, and without pods with volumes that last."
    yield histogram("kubelet_pod_start_sli_duration_seconds", text, starts.promised)
    if starts.first_with_network is not None:
        text = "The same time, of the first pod with a network of its own since the agent began."
        yield gauge("kubelet_first_network_pod_start_sli_duration_seconds", text, starts.first_with_network)
