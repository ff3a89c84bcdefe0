"""Who may do what: administrators everything, agents what the Node authorizer grants them, others next to nothing.

Facts from `plugin/pkg/auth/authorizer/node` and the rules for `system:node` in `bootstrappolicy`. An agent may read
its own node, the pods bound to it, and the objects that those pods refer to. A consequence that surprises: the GET of
a pod that is gone is answered with 403, not with 404, since nothing binds it to the node any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.apiserver import discovery
from tests.apiserver.documents import Document, dig
from tests.apiserver.errors import ApiFailure, forbidden
from tests.apiserver.pods import MIRROR
from tests.apiserver.references import (
    claim_names,
    config_map_names,
    resource_claim_names,
    secret_names,
    secrets_of_volume,
    service_account_names,
)
from tests.apiserver.resources import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    CSI_DRIVERS,
    CSI_NODES,
    EVENTS,
    LEASES,
    NODES,
    POD_CERTIFICATE_REQUESTS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SIGNING_REQUESTS,
    TOKEN_REVIEWS,
    TRUST_BUNDLES,
    VOLUME_ATTACHMENTS,
    VOLUME_CLAIMS,
    VOLUMES,
    ResourceInfo,
)
from tests.apiserver.selectors import parse_fields
from tests.apiserver.users import AUTHENTICATED, BOOTSTRAPPERS, KUBEADM_BOOTSTRAPPERS, User

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apiserver.requests import Call
    from tests.apiserver.store import Store

LEASE_NAMESPACE: Final = "kube-node-lease"
_READ: Final = ("get", "list", "watch")
_OWN: Final = ("get", "create", "update", "patch", "delete")
_RULES: Final[dict[ResourceInfo, tuple[str, ...]]] = {
    SERVICES: _READ,
    EVENTS: ("create", "update", "patch"),
    SIGNING_REQUESTS: ("create", *_READ),
    CSI_DRIVERS: _READ,
    RUNTIME_CLASSES: _READ,
    TRUST_BUNDLES: _READ,
    TOKEN_REVIEWS: ("create",),
    ACCESS_REVIEWS: ("create",),
}
"""What the rules for agents grant without looking at the object."""

_REFERENCES: Final[dict[ResourceInfo, Callable[[Document], set[str]]]] = {
    SECRETS: secret_names,
    CONFIG_MAPS: config_map_names,
    SERVICE_ACCOUNTS: service_account_names,
    VOLUME_CLAIMS: claim_names,
    RESOURCE_CLAIMS: resource_claim_names,
}


class _Refused(Exception):  # noqa: N818 - an opinion
    """Not granted, with the reason that the user is told."""


class NodeAuthorizer:
    """Decides by user, call, and what the store says of pods and nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def authorize(self, user: User, call: Call) -> None:
        """Raises ApiFailure 403."""
        if user.is_master:
            return
        if call.info is None:
            self._authorize_path(user, call)
            return
        try:
            if user.node is not None:
                self._authorize_node(user.node, call, call.info)
            elif not _may_join(user, call):
                raise _Refused("")
        except _Refused as refused:
            raise _denied(user, call, call.info, str(refused)) from None

    def _authorize_path(self, user: User, call: Call) -> None:
        if discovery.is_public(call.path):
            return
        if AUTHENTICATED in user.groups and call.path.startswith(("/api", "/openapi", "/version")):
            return
        message = f'forbidden: User "{user.name}" cannot {call.verb} path "{call.path}"'
        raise ApiFailure(403, "Forbidden", message, {})

    def _authorize_node(self, node: str, call: Call, info: ResourceInfo) -> None:
        if info in (SECRETS, CONFIG_MAPS):
            self._reads_named(node, call, info)
        elif info is SERVICE_ACCOUNTS:
            self._service_account(node, call, info)
        elif info is VOLUME_CLAIMS:
            self._volume_claim(node, call, info)
        elif info in (VOLUMES, VOLUME_ATTACHMENTS, RESOURCE_CLAIMS):
            self._gets(node, call, info)
        elif info is POD_CERTIFICATE_REQUESTS:
            self._pod_certificate_request(node, call, info)
        elif info is RESOURCE_SLICES:
            _resource_slices(node, call)
        elif info is LEASES:
            _lease(node, call)
        elif info is CSI_NODES:
            _csi_node(node, call)
        elif info is NODES:
            _node(node, call)
        elif info is PODS:
            self._pod(node, call)
        elif call.subresource or call.verb not in _RULES.get(info, ()):
            raise _Refused("")

    def _reads_named(self, node: str, call: Call, info: ResourceInfo) -> None:
        if call.verb not in _READ:
            raise _Refused("can only read resources of this type")
        if call.subresource:
            raise _Refused("cannot read subresource")
        if not call.namespace:
            raise _Refused("can only read namespaced object of this type")
        self._related(node, call, info)

    def _related(self, node: str, call: Call, info: ResourceInfo) -> None:
        if not call.name:
            raise _Refused("No Object name found")
        if not self._is_related(node, info, call.namespace, call.name):
            raise _Refused(f"no relationship found between node '{node}' and this object")

    def _is_related(self, node: str, info: ResourceInfo, namespace: str, name: str) -> bool:
        if info is VOLUME_ATTACHMENTS or info is POD_CERTIFICATE_REQUESTS:
            return bool(dig(self._store.get(info, namespace, name), "spec", "nodeName") == node)
        if info is VOLUMES:
            return self._is_used(node, self._store.get(VOLUMES, "", name))
        if self._is_referred_to(node, info, namespace, name):
            return True
        return info is SECRETS and any(
            (namespace, name) in secrets_of_volume(volume) and self._is_used(node, volume)
            for volume in self._store.values(VOLUMES)
        )

    def _is_used(self, node: str, volume: Document | None) -> bool:
        """By a claim of a pod of the node. The volume says by which claim; what the claim says does not count."""
        claim = dig(volume, "spec", "claimRef") or {}
        return self._is_referred_to(node, VOLUME_CLAIMS, str(claim.get("namespace")), str(claim.get("name")))

    def _is_referred_to(self, node: str, info: ResourceInfo, namespace: str, name: str) -> bool:
        references = _REFERENCES[info]
        for pod in self._store.values(PODS):
            if dig(pod, "spec", "nodeName") != node or dig(pod, "metadata", "namespace") != namespace:
                continue
            is_mirror = MIRROR in (dig(pod, "metadata", "annotations") or {})
            if not is_mirror and name in references(pod):
                return True
        return False

    def _service_account(self, node: str, call: Call, info: ResourceInfo) -> None:
        if call.verb == "get" and not call.subresource:
            self._reads_named(node, call, info)
            return
        if call.verb != "create" or not call.name:
            raise _Refused("can only create tokens for individual service accounts")
        if call.subresource != "token":
            raise _Refused("can only create token subresource of serviceaccount")
        self._related(node, call, info)

    def _volume_claim(self, node: str, call: Call, info: ResourceInfo) -> None:
        if call.subresource == "status":
            if call.verb not in ("update", "patch"):
                raise _Refused("can only get/update/patch this type")
        else:
            self._gets(node, call, info)
            return
        self._related(node, call, info)

    def _gets(self, node: str, call: Call, info: ResourceInfo) -> None:
        if call.verb != "get":
            raise _Refused("can only get individual resources of this type")
        if call.subresource:
            raise _Refused("cannot get subresource")
        self._related(node, call, info)

    def _pod_certificate_request(self, node: str, call: Call, info: ResourceInfo) -> None:
        if call.subresource:
            raise _Refused("nodes may not access the status subresource of PodCertificateRequests")
        if call.verb == "get":
            self._related(node, call, info)
        elif call.verb in ("list", "watch"):
            if not _selects_node(node, call):
                raise _Refused("can only list/watch podcertificaterequests with nodeName field selector")
        elif call.verb != "create":
            raise _Refused(f"nodes may not {call.verb} podcertificaterequests")

    def _pod(self, node: str, call: Call) -> None:
        allowed = {"": ("create", "delete"), "status": ("update", "patch"), "eviction": ("create",)}
        if call.verb in allowed.get(call.subresource, ()):
            return
        if call.subresource:
            raise _Refused("")
        bound = False
        if call.name:
            pod = self._store.get(PODS, call.namespace, call.name)
            bound = pod is not None and dig(pod, "spec", "nodeName") == node
        if call.verb == "get":
            if not bound:
                raise _Refused(f"no relationship found between node '{node}' and this object")
            return
        if call.verb not in ("list", "watch"):
            raise _Refused("")
        if bound or _selects_node(node, call):
            return
        if call.name:
            raise _Refused(f"no relationship found between node '{node}' and this object")
        raise _Refused("can only list/watch pods with spec.nodeName field selector")


def _may_join(user: User, call: Call) -> bool:
    """What a bootstrap token is for, and what the roles that kubeadm makes grant newcomers."""
    if call.info is CONFIG_MAPS:
        named = (call.verb, call.namespace, call.name)
        if named == ("get", "kube-public", "cluster-info"):
            return True
        return KUBEADM_BOOTSTRAPPERS in user.groups and named == ("get", "kube-system", "kubelet-config")
    may = BOOTSTRAPPERS in user.groups and call.info is SIGNING_REQUESTS
    return may and not call.subresource and call.verb in ("create", *_READ)


def _selects_node(node: str, call: Call) -> bool:
    terms = [term for term in parse_fields(call.fields) if term.label == "spec.nodeName"]
    return any(term.operator == "=" and term.value == node for term in terms)


def _resource_slices(node: str, call: Call) -> None:
    """What the rules for agents grant of what the authorizer would allow: drivers have rights of their own."""
    if call.verb != "deletecollection":
        raise _Refused("")
    if not _selects_node(node, call):
        raise _Refused("can only list/watch/deletecollection resourceslices with nodeName field selector")


def _lease(node: str, call: Call) -> None:
    if call.verb not in _OWN:
        raise _Refused("can only get, create, update, patch, or delete a node lease")
    if call.namespace != LEASE_NAMESPACE:
        raise _Refused(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
    if call.verb != "create" and call.name != node:
        raise _Refused("can only access node lease with the same name as the requesting node")


def _csi_node(node: str, call: Call) -> None:
    if call.verb not in _OWN:
        raise _Refused("can only get, create, update, patch, or delete a CSINode")
    if call.subresource:
        raise _Refused("cannot authorize CSINode subresources")
    if call.verb != "create" and call.name != node:
        raise _Refused("can only access CSINode with the same name as the requesting node")


def _node(node: str, call: Call) -> None:
    if call.verb in ("update", "patch") and call.subresource in ("", "status"):
        return
    if call.subresource:
        raise _Refused("")
    if call.verb == "create":
        return
    if call.verb not in _READ:
        raise _Refused("")
    if not call.name:
        raise _Refused(f"node '{node}' cannot read all nodes, only its own Node object")
    if call.name != node:
        raise _Refused(f"node '{node}' cannot read '{call.name}', only its own Node object")


def _denied(user: User, call: Call, info: ResourceInfo, why: str) -> ApiFailure:
    resource = f"{info.plural}/{call.subresource}" if call.subresource else info.plural
    where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
    text = f'User "{user.name}" cannot {call.verb} resource "{resource}" in API group "{info.group}" {where}'
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, entity)
    return forbidden(info, call.name, f"{text}: {why}" if why else text)
