"""Checks of requests, limits and claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.field_errors import Place
from trikubelet.api.name_formats import dns_label, qualified_name
from trikubelet.api.pod_resources import (
    aggregate_container_limits,
    aggregate_container_requests,
    is_huge_page_resource,
    is_pod_level_resource,
)
from trikubelet.api.problems import Problem
from trikubelet.api.quantity import Quantity, QuantityError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from trikubelet.api.container import Container
    from trikubelet.api.objects import Pod
    from trikubelet.api.resources import ContainerResizePolicy, ResourceClaim, ResourceRequirements

_CONTAINER_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_STANDARD_RESOURCES: Final = _CONTAINER_RESOURCES | {
    "storage",
    "pods",
    "services",
    "secrets",
    "configmaps",
    "resourcequotas",
    "replicationcontrollers",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
}
_COUNTED_IN_BYTES: Final = frozenset({"memory", "ephemeral-storage"})
_NATIVE_DOMAIN: Final = "kubernetes.io/"


def is_native_resource(name: str) -> bool:
    return "/" not in name or _NATIVE_DOMAIN in name


def is_extended_resource(name: str) -> bool:
    """A resource of a device plugin, such as `example.com/gpu`."""
    return not is_native_resource(name) and not name.startswith("requests.") and not qualified_name("requests." + name)


def fractional_bytes(pod: Pod) -> list[Problem]:
    """Return amounts of bytes that are no whole number, of which kubectl warns (API server: `warningsForPod`).

    `128m` is 0.128 bytes, and was meant as `128M` or `128Mi`. Not for requests that are only the limit's default.
    """
    root = Place([])
    spec = root.at("spec")
    asked = [(pod.spec.resources, spec.at("resources"))]
    for field, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            asked.append((container.resources, spec.at(field).index(index).at("resources")))
    for resources, place in asked:
        if resources is not None:
            _report_fractions(resources.limits, place.at("limits"))
            own = {name: amount for name, amount in resources.requests.items() if resources.limits.get(name) != amount}
            _report_fractions(own, place.at("requests"))
    _report_fractions(pod.spec.overhead, spec.at("overhead"))
    return root.problems


def _report_fractions(amounts: Mapping[str, Quantity], place: Place) -> None:
    for name, amount in amounts.items():
        if name in _COUNTED_IN_BYTES and amount != Quantity(amount.value()):
            told = f'"{amount}" is a fraction of a byte (m is a thousandth) and counts as {amount.value()}'
            place.problems.append(Problem(place.key(name).path, f"{told}: expected whole bytes, such as 128Mi or 128M"))


def validate_container_resources(resources: ResourceRequirements, claim_names: Set[str], place: Place) -> None:
    _validate_requirements(resources, _check_container_resource_name, claim_names, place)


def validate_overhead(amounts: dict[str, Quantity], place: Place) -> None:
    for name, amount in amounts.items():
        _check_container_resource_name(name, place.key(name))
        _check_amount(name, amount, place.key(name))


def validate_pod_level_resources(pod: Pod, claim_names: Set[str], place: Place) -> None:
    """KEP-2837: what the pod as a whole asks for covers what its containers ask for."""
    resources = pod.spec.resources
    if resources is None:
        return
    if resources.claims:
        place.at("claims").forbidden("claims may not be set for Resources at pod-level")
    _validate_requirements(resources, _check_pod_resource_name, claim_names, place)
    for name, amount in aggregate_container_requests(pod).items():
        if name in resources.requests and amount > resources.requests[name]:
            place.at("requests").key(name).invalid(
                resources.requests[name], f"must be greater than or equal to aggregate container requests of {amount}"
            )
    for name, amount in aggregate_container_limits(pod).items():
        if is_huge_page_resource(name) and name in resources.limits and amount > resources.limits[name]:
            place.at("limits").key(name).invalid(
                resources.limits[name], f"must be greater than or equal to aggregate container limits of {amount}"
            )
    for index, container in enumerate(pod.spec.containers):
        for name, limit in container.resources.limits.items():
            if name in resources.limits and limit > resources.limits[name]:
                where = place.at("containers").index(index).key(name).at("limits")
                where.invalid(limit, f"must be less than or equal to pod limits of {resources.limits[name]}")


def validate_resize_policies(container: Container, pod_restart_policy: str, place: Place) -> None:
    seen: set[str] = set()
    for index, policy in enumerate(container.resize_policy):
        if policy.resource_name in seen:
            place.index(index).duplicate(policy.resource_name)
        seen.add(policy.resource_name)
        _validate_resize_policy(policy, pod_restart_policy, place)


def _validate_resize_policy(policy: ContainerResizePolicy, pod_restart_policy: str, place: Place) -> None:
    place.one_of(policy.resource_name, ("cpu", "memory"))
    place.one_of(policy.restart_policy, ("NotRequired", "RestartContainer"))
    if pod_restart_policy == "Never" and policy.restart_policy != "NotRequired":
        place.invalid(policy.restart_policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")


def _validate_requirements(
    resources: ResourceRequirements, check_name: Callable[[str, Place], None], claim_names: Set[str], place: Place
) -> None:
    for name, limit in resources.limits.items():
        where = place.at("limits").key(name)
        check_name(name, where)
        _check_amount(name, limit, where)
    for name, request in resources.requests.items():
        where = place.at("requests").key(name)
        check_name(name, where)
        _check_amount(name, request, where)
        _check_against_limit(name, request, resources.limits.get(name), place)
    names = resources.limits.keys() | resources.requests.keys()
    if any(map(is_huge_page_resource, names)) and not names & {"cpu", "memory"}:
        place.forbidden("HugePages require cpu or memory")
    _validate_claims(resources.claims, claim_names, place.at("claims"))


def _check_against_limit(name: str, request: Quantity, limit: Quantity | None, place: Place) -> None:
    overcommit = is_native_resource(name) and not is_huge_page_resource(name)
    if limit is None:
        if not overcommit:
            place.at("limits").required("Limit must be set for non overcommitable resources")
    elif request != limit and not overcommit:
        place.at("requests").invalid(request, f"must be equal to {name} limit of {limit}")
    elif request > limit:
        place.at("requests").invalid(request, f"must be less than or equal to {name} limit of {limit}")


def _check_amount(name: str, amount: Quantity, place: Place) -> None:
    if amount.nanos < 0:
        place.invalid(amount, "must be greater than or equal to 0")
    if is_extended_resource(name) and amount.milli_value() % 1000:
        place.invalid(amount, "must be an integer")
    if is_huge_page_resource(name):
        try:
            page = Quantity(name.removeprefix("hugepages-"))
        except QuantityError:
            page = Quantity()
        if not page or amount.nanos % page.nanos:
            place.invalid(amount, f"{amount} is not positive integer multiple of {name}")


def _check_resource_name(name: str, place: Place) -> bool:
    wrong = qualified_name(name)
    if not wrong and "/" not in name and name not in _STANDARD_RESOURCES and not is_huge_page_resource(name):
        wrong = ["must be a standard resource type or fully qualified"]
    place.invalid(name, *wrong)
    return not wrong


def _check_container_resource_name(name: str, place: Place) -> None:
    _check_resource_name(name, place)
    if "/" not in name:
        if name not in _CONTAINER_RESOURCES and not is_huge_page_resource(name):
            place.invalid(name, "must be a standard resource for containers")
    elif not is_native_resource(name) and not is_extended_resource(name):
        place.invalid(name, "doesn't follow extended resource name standard")


def _check_pod_resource_name(name: str, place: Place) -> None:
    if _check_resource_name(name, place) and not is_pod_level_resource(name):
        place.unsupported(name, ("cpu", "hugepages-", "memory"))


def _validate_claims(claims: tuple[ResourceClaim, ...], claim_names: Set[str], place: Place) -> None:
    seen: set[tuple[str, str]] = set()
    for index, claim in enumerate(claims):
        where = place.index(index)
        if not claim.name:
            where.required()
            continue
        if claim.request:
            where.at("request").invalid(claim.request, *dns_label(claim.request))
        overlapping = {("", claim.request), ("", "")} if claim.request else {("", request) for _, request in seen}
        if any((claim.name, request) in seen for _, request in overlapping):
            where.duplicate(f"{claim.name}/{claim.request}" if claim.request else claim.name)
        seen.add((claim.name, claim.request))
        if claim.name not in claim_names:
            known = ": " + ", ".join(sorted(claim_names)) if claim_names else " which is empty"
            where.not_found(claim.name, "must be one of the names in pod.spec.resourceClaims" + known)
