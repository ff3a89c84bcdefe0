"""Which strategy a resource has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.apiserver import resources
from tests.apiserver.pods import PodStrategy
from tests.apiserver.strategies import (
    CSINodeStrategy,
    EventStrategy,
    LeaseStrategy,
    NamespaceStrategy,
    NodeStrategy,
    PodCertificateRequestStrategy,
    RuntimeClassStrategy,
    ServiceStrategy,
    SigningRequestStrategy,
    StatusCleared,
    Strategy,
    TrustBundleStrategy,
)

if TYPE_CHECKING:
    from tests.apiserver.resources import ResourceInfo

_PARTICULAR: Final[dict[ResourceInfo, Strategy]] = {
    resources.NAMESPACES: NamespaceStrategy(),
    resources.NODES: NodeStrategy(),
    resources.PODS: PodStrategy(),
    resources.EVENTS: EventStrategy(),
    resources.SERVICES: ServiceStrategy(),
    resources.LEASES: LeaseStrategy(),
    resources.CSI_NODES: CSINodeStrategy(),
    resources.RUNTIME_CLASSES: RuntimeClassStrategy(),
    resources.SIGNING_REQUESTS: SigningRequestStrategy(),
    resources.VOLUME_CLAIMS: StatusCleared(),
    resources.VOLUMES: StatusCleared(),
    resources.VOLUME_ATTACHMENTS: StatusCleared(),
    resources.RESOURCE_CLAIMS: StatusCleared(),
    resources.POD_CERTIFICATE_REQUESTS: PodCertificateRequestStrategy(),
    resources.TRUST_BUNDLES: TrustBundleStrategy(),
}
_ORDINARY: Final = Strategy()


def strategy_for(info: ResourceInfo) -> Strategy:
    return _PARTICULAR.get(info, _ORDINARY)
