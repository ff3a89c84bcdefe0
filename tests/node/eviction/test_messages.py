"""What evicted pods say of their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.node.eviction.situations import (
    DEFAULT,
    LOW,
    Node,
    amounts,
    container,
    disk,
    left,
    make_pod,
    memory,
    processes,
    size,
    threshold,
)
from trikubelet.api import (
    CONDITION_FALSE,
    DISRUPTION_TARGET,
    EphemeralContainer,
    PodCondition,
    PodStatus,
    ResourceRequirements,
)
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.node.eviction.messages import disrupted_status, evicted_status, eviction_message
from trikubelet.node.eviction.model import ContainerUsage, Observation, PodUsage

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod

S = Signal


def test_the_status_of_a_pod_that_was_evicted_for_memory() -> None:
    pods = [
        make_pod("below-requests", DEFAULT, amounts(memory="1Gi"), amounts(memory="1Gi")),
        make_pod("above-requests", DEFAULT, amounts(memory="100Mi"), amounts(memory="1Gi")),
    ]
    usage = {"below-requests": memory("900Mi"), "above-requests": memory("700Mi")}
    eviction = Node((threshold(S.MEMORY, "2Gi"),), pods, usage).evicts({S.MEMORY: left("1500Mi")})
    assert eviction is not None
    message = "The node was low on resource: memory. Threshold quantity: 2Gi, available: 1500Mi. "
    assert (eviction.pod.metadata.name, eviction.message) == ("above-requests", message)
    status = disrupted_status(PodStatus(phase="Running", pod_ip="10.0.0.1"), message, 7)
    assert status == PodStatus(
        phase="Failed",
        reason="Evicted",
        message=message,
        pod_ip="10.0.0.1",
        conditions=(
            PodCondition(
                type="DisruptionTarget",
                status="True",
                observed_generation=7,
                reason="TerminationByKubelet",
                message=message,
            ),
        ),
    )


def test_other_conditions_stay() -> None:
    ready = PodCondition(type="Ready", status="True")
    before = PodCondition(type=DISRUPTION_TARGET, status=CONDITION_FALSE)
    status = disrupted_status(PodStatus(conditions=(before, ready)), "m", 1)
    assert [(each.type, each.status) for each in status.conditions] == [("Ready", "True"), (DISRUPTION_TARGET, "True")]


def test_a_pod_beyond_its_own_limits_was_not_disrupted() -> None:
    status = evicted_status(PodStatus(phase="Running"), "m")
    assert status == PodStatus(phase="Failed", reason="Evicted", message="m")


def test_processes_are_told_as_plain_numbers() -> None:
    pods = [make_pod("low", LOW), make_pod("default", DEFAULT)]
    node = Node((threshold(S.PIDS, "1200"),), pods, {"low": processes(2), "default": processes(2)})
    eviction = node.evicts({S.PIDS: Observation(available=500, capacity=1500)})
    assert eviction is not None
    assert eviction.message == "The node was low on resource: pids. Threshold quantity: 1200, available: 500. "
    assert eviction.annotations == {
        "offending_containers": "",
        "offending_containers_usage": "",
        "starved_resource": "pids",
    }


BEYOND = "Container above-requests was using {}, request is {}, has larger consumption of ephemeral-storage. "


@pytest.mark.parametrize(
    ("layout", "signal", "wanted", "available", "request_", "used", "told"),
    [
        (Layout.SINGLE, S.NODE_FS, "2Gi", "1.5Gi", "100Mi", "700Mi", "1536Mi"),
        (Layout.DEDICATED, S.IMAGE_FS, "50Gi", "10Gi", "50Gi", "80Gi", "10Gi"),
        (Layout.SPLIT, S.NODE_FS, "50Gi", "10Gi", "50Gi", "80Gi", "10Gi"),
    ],
)
def test_disk(layout: Layout, signal: Signal, wanted: str, available: str, request_: str, used: str, told: str) -> None:
    pods = [
        make_pod("below-requests", DEFAULT, amounts(disk="1Gi")),
        make_pod("above-requests", DEFAULT, amounts(disk=request_)),
    ]
    usage = {"below-requests": disk("below-requests", "900Mi"), "above-requests": disk("above-requests", used)}
    node = Node((threshold(signal, wanted),), pods, usage, layout)
    eviction = node.evicts({signal: left(available)})
    assert eviction is not None
    assert eviction.message == (
        f"The node was low on resource: ephemeral-storage. Threshold quantity: {wanted}, available: {told}. "
        + BEYOND.format(used, request_)
    )
    assert eviction.annotations == {
        "offending_containers": "above-requests",
        "offending_containers_usage": used,
        "starved_resource": "ephemeral-storage",
    }


def test_inodes_have_a_threshold_and_no_offenders() -> None:
    usage = disk("p", "5M", of="inodes")
    observed = {S.NODE_FS_INODES: Observation(available=1000, capacity=100_000)}
    text, annotations = eviction_message("inodes", make_pod("p"), usage, [threshold(S.NODE_FS_INODES, 0.05)], observed)
    # The kubelet writes the threshold with binary suffixes, as far as there are any.
    assert text == "The node was low on resource: inodes. Threshold quantity: 5000, available: 1k. "
    assert annotations["offending_containers"] == ""


def test_only_a_threshold_of_the_resource_is_told() -> None:
    thresholds = [threshold(S.NODE_FS, "3Gi"), threshold(S.MEMORY, "1Gi"), threshold(S.ALLOCATABLE_MEMORY, "2Gi")]
    observed = {S.NODE_FS: left("5Mi"), S.ALLOCATABLE_MEMORY: left("6Mi")}
    text, _ = eviction_message("memory", make_pod("p"), None, thresholds, observed)
    assert text == "The node was low on resource: memory. Threshold quantity: 2Gi, available: 6Mi. "


def test_of_a_pod_of_which_nothing_is_known_there_is_little_to_tell() -> None:
    assert eviction_message("memory", make_pod("p"), None, [], {}) == ("The node was low on resource: memory. ", {})


def initial(name: str, request: str) -> Container:
    return container(name, amounts(memory=request))


def sidecar(name: str, request: str) -> Container:
    return container(name, amounts(memory=request), restart_policy="Always")


def several(init: tuple[Container, ...], *main: Container) -> Pod:
    return make_pod("pod-eviction-message", init_containers=init, containers=main)


@pytest.mark.parametrize(
    ("pod", "used", "offenders"),
    [
        pytest.param(
            several((initial("i1", "100Mi"), sidecar("s1", "200Mi")), initial("r1", "200Mi")),
            {"s1": "150Mi", "r1": "100Mi"},
            [],
            id="nobody",
        ),
        pytest.param(
            several((initial("i1", "100Mi"), sidecar("s1", "200Mi"), initial("i2", "150Mi")), initial("r1", "200Mi")),
            {"i1": "150Mi"},
            [("i1", "100Mi", "150Mi")],
            id="an init container",
        ),
        pytest.param(
            several((initial("i1", "100Mi"), sidecar("s1", "200Mi"), sidecar("s2", "200Mi")), initial("r1", "200Mi")),
            {"s1": "250Mi", "s2": "150Mi", "r1": "200Mi"},
            [("s1", "200Mi", "250Mi")],
            id="a sidecar",
        ),
        pytest.param(
            several((initial("i1", "100Mi"), sidecar("s1", "200Mi")), initial("r1", "200Mi"), initial("r2", "300Mi")),
            {"s1": "200Mi", "r1": "250Mi", "r2": "250Mi"},
            [("r1", "200Mi", "250Mi")],
            id="a container",
        ),
        pytest.param(
            attrs.evolve(
                ephemeral := several((sidecar("s1", "200Mi"),), initial("r1", "200Mi")),
                spec=attrs.evolve(ephemeral.spec, ephemeral_containers=(EphemeralContainer(name="e1"),)),
            ),
            {"s1": "200Mi", "r1": "150Mi", "e1": "250Mi"},
            [],
            id="an ephemeral container is not to blame",
        ),
        pytest.param(
            several((initial("i1", "100Mi"), sidecar("s1", ""), sidecar("s2", "300Mi")), initial("r1", "")),
            {"s1": "250Mi", "s2": "250Mi", "r1": "200Mi"},
            [("s1", "0", "250Mi"), ("r1", "0", "200Mi")],
            id="without requests",
        ),
        pytest.param(
            several(
                (
                    *(initial(name, "100Mi") for name in ("i1", "i2", "i3")),
                    *(sidecar(f"s{number}", f"{number}00Mi") for number in (1, 2, 3)),
                ),
                *(initial(f"r{number}", f"{4 - number}00Mi") for number in (1, 2, 3)),
            ),
            {"s1": "150Mi", "s2": "250Mi", "s3": "250Mi", "r1": "50Mi", "r2": "250Mi", "r3": "400Mi"},
            [
                ("s1", "100Mi", "150Mi"),
                ("s2", "200Mi", "250Mi"),
                ("r2", "200Mi", "250Mi"),
                ("r3", "100Mi", "400Mi"),
            ],
            id="several",
        ),
    ],
)
def test_containers_that_use_more_than_they_requested_are_named(
    pod: Pod, used: dict[str, str], offenders: list[tuple[str, str, str]]
) -> None:
    usage = PodUsage(
        memory_working_set=2**20,
        containers={name: ContainerUsage(memory_working_set=size(amount)) for name, amount in used.items()},
    )
    text, annotations = eviction_message("memory", pod, usage, [], {})
    assert text == "The node was low on resource: memory. " + "".join(
        f"Container {name} was using {amount}, request is {request}, has larger consumption of memory. "
        for name, request, amount in offenders
    )
    assert annotations == {
        "offending_containers": ",".join(name for name, *_ in offenders),
        "offending_containers_usage": ",".join(amount for *_, amount in offenders),
        "starved_resource": "memory",
    }


def test_a_pod_that_asks_as_a_whole_is_named_as_a_whole() -> None:
    pod = make_pod(
        "whole",
        containers=(container("r1"), container("r2")),
        resources=ResourceRequirements(requests=amounts(memory="250Mi"), limits=amounts(memory="1000Mi")),
    )
    usage = PodUsage(
        memory_working_set=size("600Mi"),
        containers={
            "r1": ContainerUsage(memory_working_set=size("250Mi")),
            "r2": ContainerUsage(memory_working_set=size("350Mi")),
        },
    )
    text, annotations = eviction_message("memory", pod, usage, [], {})
    assert text == (
        "The node was low on resource: memory. "
        "Pod whole was using 600Mi, request is 250Mi, has larger consumption of memory. "
        "Container r1 was using 250Mi, request is 0, has larger consumption of memory. "
        "Container r2 was using 350Mi, request is 0, has larger consumption of memory. "
    )
    assert annotations == {
        "offending_pod": "whole",
        "offending_pod_usage": "600Mi",
        "offending_containers": "r1,r2",
        "offending_containers_usage": "250Mi,350Mi",
        "starved_resource": "memory",
    }
    assert "Pod whole" not in eviction_message("ephemeral-storage", pod, usage, [], {})[0]
