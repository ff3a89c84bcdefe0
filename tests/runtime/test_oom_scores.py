"""Who dies first when memory runs out: the kubelet's cases (`qos/policy_test.go`), on a node with 8 GB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests.runtime.containers.test_resources import amounts, container, pod
from trikubelet.api import Container, Pod, ResourceRequirements
from trikubelet.runtime.containers.resources import oom_score_adjust

if TYPE_CHECKING:
    from collections.abc import Mapping

GB: Final = 10**9
MEMORY: Final = 8 * GB
GUARANTEED: Final = ResourceRequirements(requests=amounts(cpu="5m", memory="2G"), limits=amounts(cpu="5m", memory="2G"))
BURSTABLE: Final = ResourceRequirements(
    requests=amounts(cpu="5m", memory="2G"), limits=amounts(cpu="5m", memory="2000001k")
)


def main(name: str = "main", requests: str = "/1G") -> Container:
    return container(name, requests=requests, limits="/1000001k")


def sidecar(requests: str = "/1G") -> Container:
    return container("sidecar", sidecar=True, requests=requests, limits="/5G")


def of_class(name: str) -> Pod:
    return attrs.evolve(pod(container("c")), spec=attrs.evolve(pod(container("c")).spec, priority_class_name=name))


INIT: Final = container("init", requests="/1G", limits="/1000001k")

CASES: Final[Mapping[str, tuple[Pod, dict[str, int]]]] = {
    "a limit of cpu": (pod(container("c", limits="10/")), {"c": 999}),
    "a limit of memory, and no cpu requested": (pod(container("c", requests="0/", limits="/10G")), {"c": 999}),
    "a limit of nothing": (pod(container("c", limits="/0")), {"c": 1000}),
    "neither": (pod(container("c")), {"c": 1000}),
    "all that is requested": (pod(container("c", requests="5m/10G", limits="5m/10G")), {"c": -997}),
    "half of the node": (pod(container("c", requests="5m/4G", limits="/10G")), {"c": 500}),
    "nearly all of the node": (pod(container("c", requests="5m/7999999999")), {"c": 3}),
    "of importance to the cluster": (of_class("system-cluster-critical"), {"c": 1000}),
    "of importance to the node": (of_class("system-node-critical"), {"c": -997}),
    "one container": (pod(main()), {"main": 875}),
    "after an init container": (pod(main(), init=(INIT,)), {"init": 875, "main": 875}),
    "with a small sidecar": (pod(main(), init=(INIT, sidecar("/400M"))), {"init": 875, "sidecar": 875, "main": 875}),
    "with a like sidecar": (pod(main(), init=(INIT, sidecar())), {"init": 875, "sidecar": 875, "main": 875}),
    "with a big sidecar": (pod(main(), init=(INIT, sidecar("/4G"))), {"init": 875, "sidecar": 500, "main": 875}),
    "guaranteed as a whole": (pod(container("a"), container("b"), own=GUARANTEED), {"a": -997, "b": -997}),
    "guaranteed as a whole, burstable in parts": (
        pod(main(), container("b"), own=GUARANTEED),
        {"main": -997, "b": -997},
    ),
    # The kubelet tests those with 4 GB.
    "burstable as a whole": (pod(container("a"), container("b"), own=BURSTABLE), {"a": 875, "b": 875}),
    "burstable as a whole, shared out": (pod(main("a"), main("b"), own=BURSTABLE), {"a": 875, "b": 875}),
    "burstable as a whole, shared out in part": (pod(main("a"), container("b"), own=BURSTABLE), {"a": 813, "b": 938}),
    "burstable as a whole, with a sidecar": (
        pod(container("a"), init=(container("sidecar", sidecar=True),), own=BURSTABLE),
        {"a": 875, "sidecar": 875},
    ),
    "burstable as a whole, all shared out, with a sidecar": (
        pod(main("a"), init=(sidecar(),), own=BURSTABLE),
        {"a": 875, "sidecar": 875},
    ),
    "burstable as a whole, unequal, with a sidecar": (
        pod(main("a"), main("b", "/500M"), init=(sidecar("/200M"),), own=BURSTABLE),
        {"a": 863, "b": 925, "sidecar": 925},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_are_the_kubelets(case: str) -> None:
    situation, expected = CASES[case]
    containers = (*situation.spec.init_containers, *situation.spec.containers)
    assert {one.name: oom_score_adjust(situation, one, MEMORY) for one in containers} == expected


def test_pod_level_requests_are_shared_out_as_in_the_kubelets_table() -> None:
    situation = pod(
        container("a", requests="5m/1G", limits="5m/2000001k"),
        container("b", requests="5m/500M", limits="5m/2000001k"),
        init=(container("sidecar", sidecar=True, requests="5m/200M", limits="5m/2000001k"),),
        own=BURSTABLE,
    )
    containers = (*situation.spec.init_containers, *situation.spec.containers)
    scores = {one.name: oom_score_adjust(situation, one, 4 * GB) for one in containers}
    assert scores == {"a": 725, "b": 850, "sidecar": 850}
