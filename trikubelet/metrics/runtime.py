"""Families about the container runtime: calls to it, and what was made of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trikubelet.telemetry.families import counter, gauge, histogram
from trikubelet.telemetry.metrics import Counts, Histograms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
    from trikubelet.runtime.images.pull_records.records import PullRecords
    from trikubelet.runtime.metrics import RuntimeMetrics
    from trikubelet.telemetry.families import AnyFamily


def collect_calls(runtime: RuntimeClient, images: ImageClient) -> Iterator[AnyFamily]:
    """Of both clients, as if they were one."""
    durations, errors = Histograms(), Counts()
    for metrics in (runtime.metrics, images.metrics):
        durations.update({(operation_type(rpc),): one for (rpc,), one in metrics.durations.items()})
        errors.update({(operation_type(rpc),): number for (rpc,), number in metrics.errors.items()})
    label = ("operation_type",)
    totals = {labels: one.count for labels, one in durations.items()}
    yield counter("kubelet_runtime_operations_total", "Calls to the container runtime that ended.", totals, label)
    yield histogram(
        "kubelet_runtime_operations_duration_seconds", "How long calls to the runtime took.", durations, label
    )
    text = "Calls to the container runtime that failed or were given up."
    yield counter("kubelet_runtime_operations_errors_total", text, errors, label)
    label = ("runtime_handler",)
    text = "How long it took to make sandboxes, by the handler of the pod's RuntimeClass."
    yield histogram("kubelet_run_podsandbox_duration_seconds", text, runtime.sandbox_durations, label)
    text = "Sandboxes that could not be made, by the handler of the pod's RuntimeClass."
    yield counter("kubelet_run_podsandbox_errors_total", text, runtime.sandbox_errors, label)
    entries: dict[tuple[str, str], int] = {}
    for rpc, one in runtime.list_statistics().items():
        entries |= {(operation_type(rpc), "known"): one.hits, (operation_type(rpc), "parsed"): one.parses}
    text = "Entries in the runtime's lists, by whether they were the same as before or had to be parsed."
    yield counter("trikubelet_list_entries_total", text, entries, ("operation_type", "entry"))


def operation_type(rpc: str) -> str:
    """The kubelet's word for a call: `RunPodSandbox` is `run_podsandbox`."""
    if rpc == "UpdateContainerResources":
        return "update_container"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc.replace("PodSandbox", "Podsandbox"))
    return words.lower()


def collect_starts(metrics: RuntimeMetrics) -> Iterator[AnyFamily]:
    yield counter("kubelet_started_pods_total", "Pods for which a sandbox was to be made.", metrics.started_pods)
    yield counter("kubelet_started_pods_errors_total", "Pods whose sandbox was not made.", metrics.failed_pods)
    text = "Pods with a user namespace for which a sandbox was to be made."
    yield counter("kubelet_started_user_namespaced_pods_total", text, metrics.started_user_namespaced_pods)
    text = "Pods with a user namespace that could not be started as a whole when their sandbox was made."
    yield counter("kubelet_started_user_namespaced_pods_errors_total", text, metrics.failed_user_namespaced_pods)
    kind = "container_type"
    text = "Containers that were to be started."
    yield counter("kubelet_started_containers_total", text, metrics.started_containers, (kind,))
    text = "Containers that were not started, by the reason that their status shows."
    yield counter("kubelet_started_containers_errors_total", text, metrics.failed_containers, (kind, "code"))
    text = "Times that a hook asked for HTTPS, got plain HTTP, and then asked for that."
    yield counter("kubelet_lifecycle_handler_http_fallbacks_total", text, metrics.http_fallbacks)
    text = "Hooks that were to sleep longer than their container lived."
    yield counter("kubelet_sleep_action_terminated_early_total", text, metrics.sleeps_cut_short)


def collect_images(metrics: RuntimeMetrics) -> Iterator[AnyFamily]:
    text = "How long pulls that succeeded took, with the wait for their turn, by the size of the image."
    yield histogram("kubelet_image_pull_duration_seconds", text, metrics.image_pulls, ("image_size_in_bytes",))
    text = "Images that containers and volumes asked for."
    labels = ("pull_policy", "present_locally", "pull_required")
    yield counter("kubelet_image_manager_ensure_image_requests_total", text, metrics.image_requests, labels)
    text = "Images that were removed since they were not used for long, or since the disk was full."
    yield counter("kubelet_image_garbage_collected_total", text, metrics.images_removed, ("reason",))
    text = "Images that containers to be started had as volumes."
    yield counter("kubelet_image_volume_requested_total", text, metrics.image_volumes_requested)
    text = "Images that were mounted as volumes."
    yield counter("kubelet_image_volume_mounted_succeed_total", text, metrics.image_volumes_mounted)
    text = "Images that the runtime could not mount as volumes."
    yield counter("kubelet_image_volume_mounted_errors_total", text, metrics.image_volumes_failed)


def collect_pull_records(records: PullRecords) -> Iterator[AnyFamily]:
    text = "Checks whether a pod may use an image that is present, by what came of them."
    yield counter("kubelet_imagemanager_image_mustpull_checks_total", text, records.checks, ("result",))
    if (on_disk := records.on_disk()) is not None:
        intents, pulled = on_disk
        yield gauge("kubelet_imagemanager_ondisk_pullintents", "Pulls whose end is not recorded.", intents)
        text = "Images of which it is recorded who pulled them."
        yield gauge("kubelet_imagemanager_ondisk_pulledrecords", text, pulled)


def collect_cgroups(durations: Histograms, protected_memory: tuple[int, int] | None) -> Iterator[AnyFamily]:
    """Of pods' groups and their classes'; `protected_memory`: of Guaranteed and of Burstable pods, in bytes."""
    text = "How long it took to make, to change and to delete cgroups of pods and of their classes."
    yield histogram("kubelet_cgroup_manager_duration_seconds", text, durations, ("operation_type",))
    if protected_memory is not None:
        for file, quality, bytes_ in zip(("min", "low"), ("Guaranteed", "Burstable"), protected_memory, strict=True):
            text = f"Bytes of all {quality} pods that are protected by memory.{file}, with the gate MemoryQoS."
            yield gauge(f"kubelet_memory_qos_node_memory_{file}_bytes", text, bytes_)
