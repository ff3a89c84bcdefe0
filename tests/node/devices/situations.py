"""Pods that ask for devices, and a book with some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api import (
    Container,
    ContainerExtendedResourceRequest,
    ObjectMeta,
    Pod,
    PodExtendedResourceClaimStatus,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trikubelet.node.devices.book import DeviceBook
from trikubelet.node.devices.model import PluginDevice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

R1: Final = "domain1.com/resource1"
R2: Final = "domain2.com/resource2"
BRICK: Final = "toy.example.com/brick"


def container(name: str = "main", *, sidecar: bool = False, **limits: int | str) -> Container:
    """`r1=2`: two of R1; `bricks`: of the toy plugin's. Other resources by their own names."""
    names = {"r1": R1, "r2": R2, "bricks": BRICK}
    amounts = {names.get(name, name): Quantity(amount) for name, amount in limits.items()}
    return Container(
        name=name,
        resources=ResourceRequirements(limits=amounts, requests=amounts),
        restart_policy="Always" if sidecar else None,
    )


def make_pod(uid: str, *containers: Container, init: Iterable[Container] = (), claimed: Iterable[str] = ()) -> Pod:
    """`claimed`: resources that the container `main` has from a ResourceClaim."""
    requests = tuple(
        ContainerExtendedResourceRequest(container_name="main", resource_name=resource, request_name="r")
        for resource in claimed
    )
    claims = PodExtendedResourceClaimStatus(request_mappings=requests, resource_claim_name="c") if requests else None
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(init_containers=tuple(init), containers=containers or (container(),)),
        status=PodStatus(extended_resource_claim_status=claims),
    )


def some(*ids: str, ill: Iterable[str] = ()) -> list[PluginDevice]:
    """Devices, those of `ill` being unhealthy."""
    return [*map(PluginDevice, ids), *(PluginDevice(one, healthy=False) for one in ill)]


def book_of(resources: Mapping[str, Iterable[PluginDevice]]) -> DeviceBook:
    book = DeviceBook()
    for resource, devices in resources.items():
        book.connected(resource)
        book.receive(resource, devices)
    return book
