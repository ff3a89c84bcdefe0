"""CPUs and memory that the resource managers have given, as monitoring agents see them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.allocation.managed import GIB, container, make_pod, managers, resources
from tests.node.podresources.stage import as_dict
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.topology.admit import POD_SCOPE, NothingToGive
from trikubelet.allocation.topology.policy import BEST_EFFORT
from trikubelet.node.podresources.answers import allocatable, list_v1, pod_resources
from trikubelet.node.podresources.providers import Providers


def on(*nodes: int) -> dict[str, Any]:
    return {"nodes": [{"id": str(node)} if node else {} for node in nodes]}


def test_containers_have_their_cpus_and_memory() -> None:
    given = managers()
    pod = make_pod(
        container("own", "2", "2Gi"),
        container("shares", "500m", "4Gi"),
        init=(container("init", "1", "1Gi"), container("side", "1", "1Gi", restartPolicy="Always")),
    )
    given.admit(pod, NothingToGive())
    answer = as_dict(list_v1([pod], Providers(cpus=given, memory=given)))
    assert [one["name"] for one in answer["pod_resources"][0]["containers"]] == ["side", "own", "shares"]
    side, own, shares = answer["pod_resources"][0]["containers"]
    assert (side["cpu_ids"], own["cpu_ids"]) == (["1"], ["2", "3"])
    assert "cpu_ids" not in shares
    assert side["memory"] == [{"memory_type": "memory", "size": str(GIB), "topology": on(0)}]
    assert own["memory"] == [{"memory_type": "memory", "size": str(2 * GIB), "topology": on(0)}]
    given.forget("1")
    assert as_dict(pod_resources(pod, Providers(cpus=given, memory=given)))["containers"] == [
        {"name": "side"},
        {"name": "own"},
        {"name": "shares"},
    ]


def test_memory_may_be_of_several_nodes() -> None:
    given = managers()
    pod = make_pod(container("main", "2", "6Gi"))
    given.admit(pod, NothingToGive())
    (main,) = as_dict(pod_resources(pod, Providers(cpus=given, memory=given)))["containers"]
    assert main["memory"] == [{"memory_type": "memory", "size": str(6 * GIB), "topology": on(0, 1)}]


def test_what_could_be_given_is_the_same_whoever_has_it() -> None:
    given = managers()
    expected = {
        "cpu_ids": [str(cpu) for cpu in range(1, 8)],
        "memory": [
            {"memory_type": "memory", "size": str(3 * GIB), "topology": on(0)},
            {"memory_type": "memory", "size": str(4 * GIB), "topology": on(1)},
        ],
    }
    assert as_dict(allocatable(Providers(cpus=given, memory=given))) == expected
    given.admit(make_pod(container("main", "2", "2Gi")), NothingToGive())
    assert as_dict(allocatable(Providers(cpus=given, memory=given))) == expected


def test_without_policies_nobody_has_anything_for_itself() -> None:
    given = ResourceManagers(ManagerSettings(), None, needed=lambda _: False, sources_ready=lambda: False)
    pod = make_pod(container("main", "2", "2Gi"))
    given.admit(pod, NothingToGive())
    providers = Providers(cpus=given, memory=given)
    assert as_dict(allocatable(providers)) == {}
    assert as_dict(pod_resources(pod, providers))["containers"] == [{"name": "main"}]


@pytest.mark.parametrize(
    ("pod_level", "expected"),
    [(False, [None, None]), (True, [["4", "5"], ["6", "7"]])],
)
def test_containers_that_share_the_cpus_of_their_pod_have_them_all_alike(
    pod_level: bool, expected: list[list[str] | None]
) -> None:
    """With the gate `PodLevelResourceManagers`, as from the kubelet."""
    given = managers(topology=BEST_EFFORT, scope=POD_SCOPE, pod_level=pod_level)
    pod = make_pod(container("own", "2", "1Gi"), {"name": "shares"}, resources=resources("4", "4Gi"))
    given.admit(pod, NothingToGive())
    found = as_dict(pod_resources(pod, Providers(cpus=given, memory=given)))["containers"]
    assert [one.get("cpu_ids") for one in found] == expected
    sizes = [[int(block["size"]) // GIB for block in one.get("memory", ())] for one in found]
    assert sizes == ([[1], [3]] if pod_level else [[], []])
