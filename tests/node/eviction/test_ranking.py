"""In which order pods are ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.eviction.situations import (
    DEFAULT,
    HIGH,
    LOCAL_VOLUME,
    LOW,
    amounts,
    container,
    disk,
    make_pod,
    memory,
    processes,
)
from trikubelet.api import (
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ResourceRequirements,
    SecretVolumeSource,
    Volume,
)
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.node.eviction.model import ContainerUsage, FsUsage, PodUsage
from trikubelet.node.eviction.ranking import Part, disk_usage, measured_parts, rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod

S = Signal
ONE, DEDICATED, SPLIT = Layout.SINGLE, Layout.DEDICATED, Layout.SPLIT


def ranked(
    signal: Signal, pods: Iterable[Pod], usage: dict[str, PodUsage], layout: Layout = Layout.SINGLE
) -> list[str]:
    return [pod.metadata.name for pod in rank(signal, pods, usage, layout)]


def with_volume(name: str, priority: int = DEFAULT, disk_request: str = "") -> Pod:
    return make_pod(name, priority, amounts(disk=disk_request), volumes=(LOCAL_VOLUME,))


def test_who_exceeds_the_request_of_memory_goes_first() -> None:
    pods = [make_pod("below", LOW, amounts(memory="200Mi")), make_pod("exceeds", HIGH, amounts(memory="100Mi"))]
    usage = {"below": memory("199Mi"), "exceeds": memory("101Mi")}
    assert ranked(S.MEMORY, pods, usage) == ["exceeds", "below"]


def test_who_uses_just_what_was_requested_does_not_exceed_it() -> None:
    pods = [make_pod("just", LOW, amounts(memory="100Mi")), make_pod("exceeds", HIGH)]
    assert ranked(S.MEMORY, pods, {"just": memory("100Mi"), "exceeds": memory("1")}) == ["exceeds", "just"]


def test_who_exceeds_the_request_of_disk_goes_first() -> None:
    pods = [make_pod("below", LOW, amounts(disk="200Mi")), make_pod("exceeds", HIGH, amounts(disk="100Mi"))]
    usage = {"below": disk("below", "100Mi", "99Mi"), "exceeds": disk("exceeds", "90Mi", "11Mi")}
    assert ranked(S.NODE_FS, pods, usage) == ["exceeds", "below"]


def test_who_matters_less_goes_first() -> None:
    pods = [make_pod("high", 12534), make_pod("medium", 1), make_pod("none", None), make_pod("low", -134)]
    usage = {pod.metadata.uid: memory("1Mi") for pod in pods}
    assert ranked(S.MEMORY, pods, usage) == ["low", "none", "medium", "high"]


def test_who_has_more_of_the_disk_beyond_the_request_goes_first() -> None:
    given = {
        "best-effort-high": ("", ("50Mi", "100Mi", "150Mi")),
        "best-effort-low": ("", ("25Mi", "25Mi", "50Mi")),
        "burstable-high": ("100Mi", ("150Mi", "150Mi", "50Mi")),
        "burstable-low": ("100Mi", ("25Mi", "35Mi", "50Mi")),
        "guaranteed-high": ("400Mi", ("225Mi", "100Mi", "50Mi")),
        "guaranteed-low": ("400Mi", ("25Mi", "45Mi", "50Mi")),
    }
    pods = [with_volume(name, disk_request=request) for name, (request, _) in given.items()]
    usage = {name: disk(name, *parts) for name, (_, parts) in given.items()}
    assert ranked(S.NODE_FS, reversed(pods), usage) == [
        "best-effort-high",
        "burstable-high",
        "best-effort-low",
        "burstable-low",
        "guaranteed-high",
        "guaranteed-low",
    ]


def test_who_has_more_inodes_goes_first() -> None:
    pods = [with_volume(name) for name in ("low", "medium", "high")]
    usage = {
        "low": disk("low", "50k", "100k", "50k", of="inodes"),
        "medium": disk("medium", "100k", "150k", "50k", of="inodes"),
        "high": disk("high", "200k", "150k", "50k", of="inodes"),
    }
    assert ranked(S.NODE_FS_INODES, pods, usage) == ["high", "medium", "low"]


def test_the_request_of_storage_is_subtracted_from_inodes_as_if_they_were_bytes() -> None:
    pods = [with_volume("asked", disk_request="1Ki"), with_volume("did-not")]
    usage = {"asked": disk("asked", "1500", of="inodes"), "did-not": disk("did-not", "500", of="inodes")}
    assert ranked(S.NODE_FS_INODES, pods, usage) == ["did-not", "asked"]


EIGHT = (
    ("above-low-high", LOW, ""),
    ("above-low-low", LOW, ""),
    ("above-high-high", HIGH, "100Mi"),
    ("above-high-low", HIGH, "100Mi"),
    ("below-low-high", LOW, "1Gi"),
    ("below-low-low", LOW, "1Gi"),
    ("below-high-high", HIGH, "1Gi"),
    ("below-high-low", HIGH, "1Gi"),
)
"""In order of eviction: about the request, the priority, the usage; and what they request."""


def test_request_comes_before_priority_before_usage_of_memory() -> None:
    used = ("500Mi", "50Mi", "600Mi", "150Mi", "800Mi", "200Mi", "800Mi", "200Mi")
    pods = [make_pod(name, priority, amounts(memory=request)) for name, priority, request in EIGHT]
    usage = {name: memory(amount) for (name, *_), amount in zip(EIGHT, used, strict=True)}
    assert ranked(S.MEMORY, reversed(pods), usage) == [name for name, *_ in EIGHT]
    assert ranked(S.ALLOCATABLE_MEMORY, reversed(pods), usage) == [name for name, *_ in EIGHT]


def test_request_comes_before_priority_before_usage_of_disk() -> None:
    used = (
        ("200Mi", "100Mi", "200Mi"),
        ("10Mi", "10Mi", "30Mi"),
        ("200Mi", "150Mi", "250Mi"),
        ("90Mi", "50Mi", "10Mi"),
        ("500Mi", "200Mi", "100Mi"),
        ("50Mi", "100Mi", "50Mi"),
        ("250Mi", "500Mi", "50Mi"),
        ("100Mi", "60Mi", "40Mi"),
    )
    pods = [with_volume(*each) for each in EIGHT]
    usage = {name: disk(name, *parts) for (name, *_), parts in zip(EIGHT, used, strict=True)}
    assert ranked(S.NODE_FS, reversed(pods), usage) == [name for name, *_ in EIGHT]


def test_priority_comes_before_inodes() -> None:
    given = {
        "low-high": (LOW, ("50k", "100k", "250k")),
        "low-low": (LOW, ("60k", "30k", "10k")),
        "high-high": (HIGH, ("150k", "150k", "50k")),
        "high-low": (HIGH, ("10k", "40k", "100k")),
    }
    pods = [with_volume(name, priority) for name, (priority, _) in given.items()]
    usage = {name: disk(name, *parts, of="inodes") for name, (_, parts) in given.items()}
    assert ranked(S.NODE_FS_INODES, reversed(pods), usage) == list(given)


def test_usage_of_memory_counts_beyond_the_request() -> None:
    given = {
        "best-effort-high": ("", "500Mi"),
        "best-effort-low": ("", "300Mi"),
        "burstable-high": ("100Mi", "800Mi"),
        "burstable-low": ("100Mi", "300Mi"),
        "guaranteed-high": ("1Gi", "800Mi"),
        "guaranteed-low": ("1Gi", "200Mi"),
    }
    pods = [make_pod(name, requests=amounts(memory=request)) for name, (request, _) in given.items()]
    usage = {name: memory(used) for name, (_, used) in given.items()}
    assert ranked(S.MEMORY, pods, usage) == [
        "burstable-high",
        "best-effort-high",
        "best-effort-low",
        "burstable-low",
        "guaranteed-high",
        "guaranteed-low",
    ]


def test_requests_are_the_whole_pods() -> None:
    """With sidecars, overhead, and what is asked for the pod as a whole."""
    sidecar = container("sidecar", amounts(memory="50Mi"), restart_policy="Always")
    pods = [
        make_pod("plain", requests=amounts(memory="50Mi")),
        make_pod("with-sidecar", requests=amounts(memory="50Mi"), init_containers=(sidecar,)),
        make_pod("with-overhead", requests=amounts(memory="50Mi"), overhead=amounts(memory="60Mi")),
        make_pod("as-a-whole", resources=ResourceRequirements(requests=amounts(memory="120Mi"))),
    ]
    usage = {pod.metadata.uid: memory("200Mi") for pod in pods}
    assert ranked(S.MEMORY, reversed(pods), usage) == ["plain", "with-sidecar", "with-overhead", "as-a-whole"]


def test_priority_comes_before_the_number_of_processes() -> None:
    given = {"low-high": (LOW, 20), "low-low": (LOW, 6), "high-high": (HIGH, 20), "high-low": (HIGH, 5)}
    pods = [make_pod(name, priority) for name, (priority, _) in given.items()]
    usage = {name: processes(count) for name, (_, count) in given.items()}
    assert ranked(S.PIDS, reversed(pods), usage) == list(given)


@pytest.mark.parametrize("signal", [S.MEMORY, S.NODE_FS, S.NODE_FS_INODES])
def test_a_pod_of_which_nothing_is_known_goes_before_all_others(signal: Signal) -> None:
    pods = [make_pod("greedy", LOW), make_pod("unknown", HIGH), make_pod("unknown-low", LOW)]
    usage = {"greedy": PodUsage(memory_working_set=2**40)}
    assert ranked(signal, pods, usage) == ["unknown-low", "unknown", "greedy"]


def test_of_processes_it_goes_before_those_of_its_priority() -> None:
    pods = [make_pod("low", LOW), make_pod("greedy", HIGH), make_pod("unknown", HIGH)]
    usage = {"low": processes(1), "greedy": processes(1000)}
    assert ranked(S.PIDS, pods, usage) == ["low", "unknown", "greedy"]


@pytest.mark.parametrize("signal", list(Signal))
def test_equal_pods_keep_their_order(signal: Signal) -> None:
    pods = [make_pod(name) for name in "cabd"]
    assert ranked(signal, pods, {}) == list("cabd")
    assert ranked(signal, pods, dict.fromkeys("abcd", PodUsage())) == list("cabd")


LOGS_AND_VOLUMES = {Part.LOGS, Part.VOLUMES}


@pytest.mark.parametrize(
    ("layout", "node", "images", "layers"),
    [
        (ONE, set(Part), set(Part), set(Part)),
        (DEDICATED, LOGS_AND_VOLUMES, {Part.ROOT}, {Part.ROOT}),
        (SPLIT, set(Part), set(), set(Part)),
    ],
)
def test_what_counts_depends_on_what_lies_on_the_disk(
    layout: Layout, node: set[Part], images: set[Part], layers: set[Part]
) -> None:
    for signal, parts in (
        (S.NODE_FS, node),
        (S.NODE_FS_INODES, node),
        (S.IMAGE_FS, images),
        (S.IMAGE_FS_INODES, images),
        (S.CONTAINER_FS, layers),
        (S.CONTAINER_FS_INODES, layers),
    ):
        assert measured_parts(signal, layout) == parts, signal


def test_the_order_follows_the_disk() -> None:
    pods = [with_volume("writes"), with_volume("logs"), with_volume("stores")]
    usage = {
        "writes": disk("writes", root="3Mi"),
        "logs": disk("logs", logs="2Mi"),
        "stores": disk("stores", volume="1Mi"),
    }
    assert ranked(S.NODE_FS, pods, usage, ONE) == ["writes", "logs", "stores"]
    assert ranked(S.NODE_FS, pods, usage, DEDICATED) == ["logs", "stores", "writes"]
    assert ranked(S.IMAGE_FS, reversed(pods), usage, DEDICATED) == ["writes", "stores", "logs"]


def test_only_volumes_on_the_nodes_disk_count() -> None:
    pod = make_pod(
        "p",
        volumes=(
            Volume(name="disk", empty_dir=EmptyDirVolumeSource()),
            Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory")),
            Volume(name="config", config_map=ConfigMapVolumeSource(name="c")),
            Volume(name="secret", secret=SecretVolumeSource(secret_name="s")),
            Volume(name="host", host_path=HostPathVolumeSource(path="/")),
            Volume(name="unmeasured", empty_dir=EmptyDirVolumeSource()),
        ),
    )
    sizes = {"disk": 1, "memory": 10, "config": 100, "secret": 1000, "host": 10000}
    usage = PodUsage(
        containers={"p": ContainerUsage(rootfs=FsUsage(bytes=5_000_000))},
        volumes={name: FsUsage(bytes=used, inodes=1) for name, used in sizes.items()},
    )
    assert disk_usage(pod, usage, "ephemeral-storage", frozenset({Part.VOLUMES})) == 10101
    assert disk_usage(pod, usage, "inodes", frozenset({Part.VOLUMES})) == 3
