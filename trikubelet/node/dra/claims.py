"""Which ResourceClaims a pod uses, whether it may, and what of them each container gets. Pure.

A pod names claims, or templates that a controller has made claims of, whose names are in the pod's status then. One
more claim may stand for extended resources that the scheduler took from drivers. (Kubelet and scheduler: `dynamic-
resource-allocation/resourceclaim`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.validate_resources import is_extended_resource
from trikubelet.formats.values import frozen
from trikubelet.node.dra.model import ClaimState
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod, PodResourceClaim, ResourceClaimObject

POD_GROUP_API: Final = "scheduling.k8s.io"
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Of extended resources that are named after a DeviceClass."""


@frozen
class ClaimGates:
    """Feature gates: `DRAWorkloadResourceClaims`, `ResourceHealthStatus` and `…Message`."""

    workload_resource_claims: bool = False
    resource_health: bool = True
    health_message: bool = True


@frozen
class ClaimUse:
    """A claim that a pod uses."""

    name: str
    made_for_pod: bool = False
    """It was made from a template, so it has to be the pod's own."""


def claims_of(pod: Pod) -> list[ClaimUse]:
    """Each once. Raises ResourceClaimError for one that has not been made yet."""
    found: dict[str, ClaimUse] = {}
    for claim in pod.spec.resource_claims:
        use = _use_of(pod, claim)
        if use is not None:
            found.setdefault(use.name, use)
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        found.setdefault(extended.resource_claim_name, ClaimUse(extended.resource_claim_name))
    return list(found.values())


def claim_name(pod: Pod, name: str) -> str | None:
    """The object behind what a container calls the claim; None where there is none, or none yet."""
    for claim in pod.spec.resource_claims:
        if claim.name == name:
            try:
                use = _use_of(pod, claim)
            except ResourceClaimError:
                return None
            return None if use is None else use.name
    return None


def _use_of(pod: Pod, claim: PodResourceClaim) -> ClaimUse | None:
    """None: the template gave no claim, and the pod does without. Raises ResourceClaimError."""
    where = f'pod "{pod.metadata.namespace}/{pod.metadata.name}"'
    if claim.resource_claim_name is not None:
        return ClaimUse(claim.resource_claim_name)
    if claim.resource_claim_template_name is None:
        raise ResourceClaimError(f'{where}, spec.resourceClaim "{claim.name}": none of the supported fields are set')
    for status in pod.status.resource_claim_statuses:
        if status.name == claim.name:
            name = status.resource_claim_name
            return None if name is None else ClaimUse(name, made_for_pod=True)
    raise ResourceClaimError(f"{where}: ResourceClaim not created yet")


def usable_claim(pod: Pod, use: ClaimUse, claim: ResourceClaimObject, gates: ClaimGates) -> ClaimState:
    """The claim as it enters the book, if the pod may use it. Raises ResourceClaimError."""
    if use.made_for_pod:
        _check_owner(pod, claim, gates)
    if not _is_reserved(pod, claim, gates):
        raise ResourceClaimError(
            f"pod {pod.metadata.name} ({pod.metadata.uid}) is not allowed to use ResourceClaim {use.name} "
            f"({claim.metadata.uid})"
        )
    if claim.status.allocation is None:
        raise ResourceClaimError(f"ResourceClaim {claim.metadata.name}: not allocated")
    results = claim.status.allocation.devices.results
    if not all(one.driver for one in results):
        raise ResourceClaimError("DRA driver name is empty")
    return ClaimState(
        uid=claim.metadata.uid,
        name=claim.metadata.name,
        namespace=claim.metadata.namespace,
        drivers={one.driver: () for one in results},
    )


def container_requests(pod: Pod, container: Container) -> dict[str, list[str]]:
    """Names of claims, and what the container wants of each: requests, an empty one for all of the claim.

    Raises ResourceClaimError for a claim that has not been made yet.
    """
    wanted: dict[str, list[str]] = {}
    for claim in pod.spec.resource_claims:
        requests = [one.request for one in container.resources.claims if one.name == claim.name]
        use = _use_of(pod, claim) if requests else None
        if use is not None:
            wanted.setdefault(use.name, []).extend(requests)
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        for mapping in extended.request_mappings:
            if mapping.container_name == container.name and _asks_for(container, mapping.resource_name):
                wanted.setdefault(extended.resource_claim_name, []).append(mapping.request_name)
    return wanted


def claims_shown(pod: Pod, container: Container) -> list[str]:
    """Names of the claims that a container uses, for those who ask what it has."""
    extended = pod.status.extended_resource_claim_status
    names = [name for claim in container.resources.claims if (name := claim_name(pod, claim.name)) is not None]
    if extended is not None:
        mapped = any(mapping.container_name == container.name for mapping in extended.request_mappings)
        names += [extended.resource_claim_name] if mapped else []
    return list(dict.fromkeys(names))


def base_request(request: str) -> str:
    """`gpu/large` is a choice among those of the request `gpu`."""
    return request.partition("/")[0]


def _asks_for(container: Container, resource: str) -> bool:
    amount = container.resources.requests.get(resource)
    is_one = is_extended_resource(resource) or resource.startswith(DEVICE_CLASS_PREFIX)
    return is_one and amount is not None and bool(amount)


def _check_owner(pod: Pod, claim: ResourceClaimObject, gates: ClaimGates) -> None:
    """Raises ResourceClaimError for a claim that was made for another pod."""
    called = f"{claim.metadata.namespace}/{claim.metadata.name}"
    of_pod = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if claim.metadata.namespace != pod.metadata.namespace:
        raise ResourceClaimError(f"ResourceClaim {called} is not in the same namespace as Pod {of_pod}")
    owner = next((one for one in claim.metadata.owner_references if one.controller), None)
    if owner is not None and owner.uid == pod.metadata.uid:
        return
    group = _pod_group(pod)
    if not gates.workload_resource_claims:
        raise ResourceClaimError(f"ResourceClaim {called} was not created for Pod {of_pod} (Pod is not owner)")
    if (
        owner is None
        or not group
        or (owner.kind, owner.name) != ("PodGroup", group)
        or not owner.api_version.startswith(f"{POD_GROUP_API}/")
    ):
        raise ResourceClaimError(
            f"ResourceClaim {called} was not created for Pod {of_pod} (neither Pod nor PodGroup {group} is the owner)"
        )


def _is_reserved(pod: Pod, claim: ResourceClaimObject, gates: ClaimGates) -> bool:
    """A pod does not know its group's UID, so a group is taken by its name."""
    group = _pod_group(pod) if gates.workload_resource_claims else ""
    return any(
        one.uid == pod.metadata.uid
        or (group and (one.api_group, one.resource, one.name) == (POD_GROUP_API, "podgroups", group))
        for one in claim.status.reserved_for
    )


def _pod_group(pod: Pod) -> str:
    group = pod.spec.scheduling_group
    return "" if group is None else group.pod_group_name or ""
