"""Ten pods of every class, priority and usage on a node that stays short: who goes, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.node.eviction.situations import Node, amounts, disk, left, make_pod, memory, size, threshold
from trikubelet.api import Pod, qos_class
from trikubelet.api.pod_kinds import FILE_SOURCE, SYSTEM_CRITICAL_PRIORITY
from trikubelet.config.eviction_values import Signal

if TYPE_CHECKING:
    from trikubelet.node.eviction.model import PodUsage

S = Signal

TEN = {
    # name: priority, requests, memory in use, layer, logs and volume
    "guaranteed-high": (1000, amounts("1", "1Gi", "1Gi"), "900Mi", ("100Mi", "", "")),
    "guaranteed-low": (-10, amounts("1", "1Gi", "1Gi"), "1000Mi", ("900Mi", "", "")),
    "burstable-high-over": (1000, amounts("", "100Mi", "100Mi"), "900Mi", ("2Gi", "", "")),
    "burstable-over": (0, amounts("", "100Mi", "100Mi"), "150Mi", ("", "150Mi", "")),
    "burstable-over-much": (0, amounts("", "100Mi", "100Mi"), "800Mi", ("", "700Mi", "200Mi")),
    "burstable-under": (0, amounts("", "500Mi", "500Mi"), "400Mi", ("", "", "400Mi")),
    "best-effort-high": (1000, {}, "2Gi", ("", "", "3Gi")),
    "best-effort": (0, {}, "300Mi", ("300Mi", "", "")),
    "best-effort-low": (-10, {}, "1Mi", ("1Mi", "", "")),
    "static": (SYSTEM_CRITICAL_PRIORITY, {}, "9Gi", ("9Gi", "", "")),
}
CLASSES = ("Guaranteed",) * 2 + ("Burstable",) * 4 + ("BestEffort",) * 4


def ten(*thresholds: Signal) -> Node:
    pods: list[Pod] = []
    usage: dict[str, PodUsage] = {}
    for name, (priority, requests, used, parts) in TEN.items():
        limits = requests if name.startswith("guaranteed") else {}
        source = FILE_SOURCE if name == "static" else "api"
        pod = make_pod(name, priority, requests, limits, source=source)
        pods.append(pod)
        on_disk = disk(name, *parts)
        own = attrs.evolve(on_disk.containers[name], memory_working_set=size(used))
        usage[name] = attrs.evolve(memory(used), containers={name: own}, processes=len(usage) + 1)
    return Node(tuple(threshold(signal, "1Gi") for signal in thresholds), pods, usage)


def one_after_the_other(node: Node, signal: Signal) -> list[str]:
    """Until nobody goes any more. Each time the pod is gone and the node as short as before."""
    gone: list[str] = []
    while (eviction := node.evicts({signal: left("100Mi")}, later=10)) is not None:
        assert eviction.grace == 1
        gone.append(eviction.pod.metadata.name)
        node.pods = [pod for pod in node.pods if pod is not eviction.pod]
    return gone


def test_there_is_one_of_each_kind() -> None:
    assert tuple(qos_class(pod) for pod in ten().pods) == CLASSES


@pytest.mark.parametrize("signal", [S.MEMORY, S.ALLOCATABLE_MEMORY])
def test_short_of_memory(signal: Signal) -> None:
    assert one_after_the_other(ten(signal), signal) == [
        # Beyond their requests: by priority, then by how much.
        "best-effort-low",
        "burstable-over-much",
        "best-effort",
        "burstable-over",
        "best-effort-high",
        "burstable-high-over",
        # Within their requests: the same, where all are below.
        "guaranteed-low",
        "burstable-under",
        "guaranteed-high",
        # The critical one stays.
    ]


def test_short_of_disk() -> None:
    assert one_after_the_other(ten(S.NODE_FS), S.NODE_FS) == [
        "best-effort-low",
        "burstable-over-much",
        "best-effort",
        "burstable-over",
        "burstable-high-over",
        "guaranteed-low",
        "burstable-under",
        # What it filled is no volume of its own, so it counts as nothing.
        "best-effort-high",
        "guaranteed-high",
    ]


def test_short_of_processes() -> None:
    assert one_after_the_other(ten(S.PIDS), S.PIDS) == [
        "best-effort-low",
        "guaranteed-low",
        "best-effort",
        "burstable-under",
        "burstable-over-much",
        "burstable-over",
        "best-effort-high",
        "burstable-high-over",
        "guaranteed-high",
    ]


def test_what_they_say() -> None:
    node = ten(S.MEMORY)
    messages = {}
    while (eviction := node.evicts({S.MEMORY: left("100Mi")}, later=10)) is not None:
        messages[eviction.pod.metadata.name] = eviction.message
        node.pods = [pod for pod in node.pods if pod is not eviction.pod]
    low = "The node was low on resource: memory. Threshold quantity: 1Gi, available: 100Mi. "
    assert messages["guaranteed-high"] == low
    assert messages["burstable-over-much"] == low + (
        "Container burstable-over-much was using 800Mi, request is 100Mi, has larger consumption of memory. "
    )
    assert messages["best-effort-low"] == low + (
        "Container best-effort-low was using 1Mi, request is 0, has larger consumption of memory. "
    )


def test_an_unmeasured_pod_goes_before_all() -> None:
    node = ten(S.MEMORY)
    node.usage = {uid: usage for uid, usage in node.usage.items() if uid != "guaranteed-high"}
    assert one_after_the_other(node, S.MEMORY)[0] == "guaranteed-high"
