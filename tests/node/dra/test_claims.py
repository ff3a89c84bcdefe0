"""Which claims a pod uses, and whether it may (`resourceclaim_test.go`)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.node.dra.situations import NAMESPACE, TOY, extended_pod, make_claim, make_pod
from trikubelet.api import PodResourceClaimStatus, PodSchedulingGroup, PodStatus
from trikubelet.node.dra.claims import ClaimGates, ClaimUse, claims_of, claims_shown, container_requests, usable_claim
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError

GATES = ClaimGates()
GROUPS = ClaimGates(workload_resource_claims=True)
TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "t"}
OF_POD = {"apiVersion": "v1", "kind": "Pod", "name": "pod-p", "uid": "p"}
OF_GROUP = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "name": "g", "uid": "x"}
RESERVED_FOR_GROUP = [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "x"}]
MADE = ClaimUse("c", made_for_pod=True)


def templated(*statuses: PodResourceClaimStatus) -> Any:
    pod = make_pod("p", resourceClaims=[TEMPLATE])
    return attrs.evolve(pod, status=PodStatus(resource_claim_statuses=statuses))


def test_a_claim_is_named_or_made_from_a_template() -> None:
    assert claims_of(make_pod("p", "a", "b")) == [ClaimUse("a"), ClaimUse("b")]
    assert claims_of(templated(PodResourceClaimStatus("gpu", "pod-gpu-x"))) == [
        ClaimUse("pod-gpu-x", made_for_pod=True)
    ]
    assert claims_of(templated(PodResourceClaimStatus("gpu", None))) == [], "none was needed"


def test_a_claim_that_is_not_there_yet_is_waited_for() -> None:
    for pod in (templated(), templated(PodResourceClaimStatus("other", "x"))):
        with pytest.raises(ResourceClaimError, match=r'^pod "ns/pod-p": ResourceClaim not created yet$'):
            claims_of(pod)
    pod = make_pod("p", resourceClaims=[{"name": "gpu"}])
    with pytest.raises(ResourceClaimError, match=r'spec\.resourceClaim "gpu": none of the supported fields are set'):
        claims_of(pod)


def test_the_claim_for_extended_resources_is_one_more() -> None:
    assert claims_of(extended_pod("p", "e")) == [ClaimUse("e")]


@pytest.mark.parametrize(
    ("amount", "container", "wanted"),
    [("1", "main", {"e": ["container-0-request-0"]}), ("0", "main", {}), ("1", "b", {})],
)
def test_a_container_gets_of_it_what_it_asks_for(amount: str, container: str, wanted: dict[str, list[str]]) -> None:
    pod = extended_pod("p", "e", amount=amount, container=container)
    assert container_requests(pod, pod.spec.containers[0]) == wanted


def test_what_a_container_shows_is_what_it_names() -> None:
    pod = make_pod("p", "a", containers=[{"name": "m", "image": "x", "resources": {"claims": [{"name": "a"}] * 2}}])
    assert claims_shown(pod, pod.spec.containers[0]) == ["a"]
    unused = make_pod("p", "a", containers=[{"name": "m", "image": "x"}])
    assert claims_shown(unused, unused.spec.containers[0]) == []
    assert container_requests(unused, unused.spec.containers[0]) == {}


def test_an_allocated_claim_that_is_reserved_for_the_pod_may_be_used() -> None:
    claim = usable_claim(make_pod("p", "c"), ClaimUse("c"), make_claim("c", "q", "p", drivers=("x", TOY, "x")), GATES)
    assert (claim.key, claim.uid, claim.pods) == ((NAMESPACE, "c"), "c-uid", frozenset())
    assert claim.drivers == {"x": (), TOY: ()}
    made = usable_claim(make_pod("p"), MADE, make_claim("c", "p", owner=OF_POD), GATES)
    assert made.name == "c"


@pytest.mark.parametrize(
    ("use", "claim", "gates", "problem"),
    [
        (ClaimUse("c"), make_claim("c"), GATES, "pod pod-p (p) is not allowed to use ResourceClaim c (c-uid)"),
        (ClaimUse("c"), make_claim("c", "p", allocation=None), GATES, "ResourceClaim c: not allocated"),
        (ClaimUse("c"), make_claim("c", "p", drivers=("",)), GATES, "DRA driver name is empty"),
        (MADE, make_claim("c", "p"), GATES, "ResourceClaim ns/c was not created for Pod ns/pod-p (Pod is not owner)"),
        (
            MADE,
            make_claim("c", "p", owner={**OF_POD, "uid": "older"}),
            GATES,
            "ResourceClaim ns/c was not created for Pod ns/pod-p (Pod is not owner)",
        ),
        (
            MADE,
            make_claim("c", "p", owner={**OF_POD, "controller": False}),
            GATES,
            "ResourceClaim ns/c was not created for Pod ns/pod-p (Pod is not owner)",
        ),
        (
            MADE,
            make_claim("c", reservedFor=RESERVED_FOR_GROUP, owner=OF_GROUP),
            GATES,
            "ResourceClaim ns/c was not created for Pod ns/pod-p (Pod is not owner)",
        ),
        (
            MADE,
            make_claim("c", reservedFor=RESERVED_FOR_GROUP, owner={**OF_GROUP, "name": "other"}),
            GROUPS,
            "ResourceClaim ns/c was not created for Pod ns/pod-p (neither Pod nor PodGroup g is the owner)",
        ),
        (
            MADE,
            make_claim("c", reservedFor=RESERVED_FOR_GROUP, owner={**OF_GROUP, "apiVersion": "other/v1"}),
            GROUPS,
            "ResourceClaim ns/c was not created for Pod ns/pod-p (neither Pod nor PodGroup g is the owner)",
        ),
        (
            ClaimUse("c"),
            make_claim("c", reservedFor=RESERVED_FOR_GROUP),
            GATES,
            "pod pod-p (p) is not allowed to use ResourceClaim c (c-uid)",
        ),
    ],
)
def test_others_may_not(use: ClaimUse, claim: Any, gates: ClaimGates, problem: str) -> None:
    pod = make_pod("p", "c")
    pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, scheduling_group=PodSchedulingGroup("g")))
    with pytest.raises(ResourceClaimError) as error:
        usable_claim(pod, use, claim, gates)
    assert str(error.value) == problem


def test_a_claim_of_the_pods_group_may_be_used_where_there_are_groups() -> None:
    pod = make_pod("p", "c")
    grouped = attrs.evolve(pod, spec=attrs.evolve(pod.spec, scheduling_group=PodSchedulingGroup("g")))
    claim = make_claim("c", reservedFor=RESERVED_FOR_GROUP, owner=OF_GROUP)
    assert usable_claim(grouped, MADE, claim, GROUPS).name == "c"
    with pytest.raises(ResourceClaimError):
        usable_claim(pod, MADE, claim, GROUPS)
