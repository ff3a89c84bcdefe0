"""The NodeRestriction admission plugin: what an agent may not do even with objects that it may write.

Facts from `plugin/pkg/admission/noderestriction/admission.go`, whose texts these are.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.apiserver.documents import Document, dig, items, name_of, namespace_of, uid_of, without_bookkeeping
from tests.apiserver.errors import ApiFailure, forbidden, not_found
from tests.apiserver.pods import MIRROR
from tests.apiserver.references import audiences, claim_names, csi_drivers, first_reference
from tests.apiserver.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    LEASES,
    NODES,
    POD_CERTIFICATE_REQUESTS,
    PODS,
    SERVICE_ACCOUNTS,
    SIGNING_REQUESTS,
    VOLUME_CLAIMS,
    VOLUMES,
)

if TYPE_CHECKING:
    from tests.apiserver.registry import Attempt
    from tests.apiserver.resources import ResourceInfo
    from tests.apiserver.store import Store

_LEASE_NAMESPACE: Final = "kube-node-lease"
_NODE_SIGNERS: Final = ("kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet")
_AGENT_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
    }
)
_AGENT_LABEL_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_RESTRICTED: Final = "node-restriction.kubernetes.io"


class NodeRestriction:
    """Looks at each write of an agent."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(self, attempt: Attempt) -> None:
        """Raises ApiFailure, mostly 403."""
        node = attempt.user.node
        if node is None:
            return
        if attempt.info is PODS:
            self._pod(node, attempt)
        elif attempt.info is NODES:
            _node(node, attempt)
        elif attempt.info is SERVICE_ACCOUNTS:
            self._token(node, attempt)
        elif attempt.info is LEASES:
            if attempt.namespace != _LEASE_NAMESPACE:
                raise _refused(attempt, f'can only access leases in the "{_LEASE_NAMESPACE}" system namespace')
            if _target(attempt) != node:
                raise _refused(attempt, "can only access node lease with the same name as the requesting node")
        elif attempt.info is CSI_NODES and _target(attempt) != node:
            raise _refused(attempt, "can only access CSINode with the same name as the requesting node")
        elif attempt.info is SIGNING_REQUESTS:
            _signing_request(node, attempt)
        elif attempt.info is VOLUME_CLAIMS:
            _claim(node, attempt)
        elif attempt.info is POD_CERTIFICATE_REQUESTS:
            self._pod_certificate_request(node, attempt)

    # Pods.

    def _pod(self, node: str, attempt: Attempt) -> None:
        match attempt.subresource, attempt.operation:
            case "", "CREATE":
                self._mirror(node, attempt)
            case "", "DELETE":
                if dig(attempt.old, "spec", "nodeName") != node:
                    raise _refused(attempt, f'node "{node}" can only delete pods with spec.nodeName set to itself')
            case "", _:
                why = (
                    f'unexpected operation "{attempt.operation}", node "{node}" can only create and delete mirror pods'
                )
                raise _refused(attempt, why)
            case "status", _:
                _pod_status(node, attempt)
            case "eviction", _:
                pod = self._store.get(PODS, attempt.namespace, attempt.name)
                if pod is None:
                    raise not_found(PODS, attempt.name)
                if dig(pod, "spec", "nodeName") != node:
                    raise _refused(attempt, f"node {node} can only evict pods with spec.nodeName set to itself")
            case subresource, _:
                why = f"unexpected pod subresource \"{subresource}\", only 'status' and 'eviction' are allowed"
                raise _refused(attempt, why)

    def _mirror(self, node: str, attempt: Attempt) -> None:
        pod = attempt.new or {}
        if MIRROR not in (dig(pod, "metadata", "annotations") or {}):
            raise _refused(
                attempt, f'pod does not have "{MIRROR}" annotation, node "{node}" can only create mirror pods'
            )
        if dig(pod, "spec", "nodeName") != node:
            raise _refused(attempt, f'node "{node}" can only create pods with spec.nodeName set to itself')
        self._owner(node, attempt, items(pod, "metadata", "ownerReferences"))
        reference = first_reference(pod)
        if reference:
            raise _refused(attempt, f'node "{node}" can not create pods that reference {reference}')

    def _owner(self, node: str, attempt: Attempt, owners: list[Document]) -> None:
        can = f'node "{node}" can only create pods with'
        if len(owners) > 1:
            raise _refused(attempt, f"{can} a single owner reference set to itself")
        owner = owners[0] if owners else {}
        if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
            raise _refused(attempt, f"{can} an owner reference set to itself")
        if not owner.get("controller"):
            raise _refused(attempt, f"{can} a controller owner reference set to itself")
        if owner.get("blockOwnerDeletion"):
            raise _refused(attempt, f'node "{node}" must not set blockOwnerDeletion on an owner reference')
        known = self._store.get(NODES, "", node)
        if known is None:
            raise not_found(NODES, node)
        if owner.get("uid") != uid_of(known):
            raise _refused(attempt, f"node {node} UID mismatch: expected {owner.get('uid')} got {uid_of(known)}")

    # Tokens.

    def _token(self, node: str, attempt: Attempt) -> None:
        if attempt.operation != "CREATE" or attempt.subresource != "token":
            return
        reference = dig(attempt.new, "spec", "boundObjectRef") or {}
        name = str(reference.get("name") or "")
        if (reference.get("apiVersion"), reference.get("kind")) != ("v1", "Pod") or not name:
            raise _refused(attempt, "node requested token not bound to a pod")
        uid = reference.get("uid")
        if not uid:
            raise _refused(attempt, "node requested token with a pod binding without a uid")
        pod = self._store.get(PODS, attempt.namespace, name)
        if pod is None:
            raise not_found(PODS, name)
        if uid != uid_of(pod):
            why = f"the UID in the bound object reference ({uid}) does not match the UID in record. "
            raise _refused(attempt, why + "The object might have been deleted and then recreated")
        if dig(pod, "spec", "nodeName") != node:
            raise _refused(attempt, "node requested token bound to a pod scheduled on a different node")
        wanted = items(attempt.new, "spec", "audiences")
        if len(wanted) > 1:
            raise _refused(attempt, "node may only request 0 or 1 audiences")
        audience = wanted[0] if wanted else ""
        if audience not in audiences(pod) | self._audiences_of_drivers(pod):
            why = f'audience "{audience}" not found in pod spec volume, {attempt.user.name} is not authorized to '
            raise _refused(attempt, why + "request tokens for this audience")

    def _audiences_of_drivers(self, pod: Document) -> set[str]:
        """For which the CSI drivers of the pod's volumes want tokens."""
        drivers = csi_drivers(pod)
        for name in claim_names(pod):
            claim = self._store.get(VOLUME_CLAIMS, namespace_of(pod), name)
            volume = self._store.get(VOLUMES, "", str(dig(claim, "spec", "volumeName") or ""))
            drivers.add(str(dig(volume, "spec", "csi", "driver") or ""))
        return {
            str(request.get("audience") or "")
            for name in drivers
            for request in items(self._store.get(CSI_DRIVERS, "", name), "spec", "tokenRequests")
        }

    # Certificates of pods.

    def _pod_certificate_request(self, node: str, attempt: Attempt) -> None:
        if attempt.operation != "CREATE":
            raise _refused(attempt, f"unexpected operation {attempt.operation}")
        spec = dig(attempt.new, "spec") or {}
        named = spec.get("nodeName")
        if named != node:
            why = f'PodCertificateRequest.Spec.NodeName="{named}", which is not the requesting node "{node}"'
            raise _refused(attempt, why)
        where = f"{attempt.namespace}/{spec.get('podName')}"
        self._is_the_one(attempt, NODES, "", node, spec.get("nodeUID"))
        pod = self._is_the_one(attempt, PODS, attempt.namespace, str(spec.get("podName")), spec.get("podUID"))
        if dig(pod, "spec", "nodeName") != node:
            why = f'pod "{where}" is not running on node "{node}" named in the PodCertificateRequest'
            raise _refused(attempt, why)
        if MIRROR in (dig(pod, "metadata", "annotations") or {}):
            raise _refused(attempt, f'pod "{where}" is a mirror pod')
        account, running = str(spec.get("serviceAccountName")), dig(pod, "spec", "serviceAccountName")
        if account != running:
            why = f'PodCertificateRequest for pod "{where}" contains serviceAccountName ("{account}") that differs '
            raise _refused(attempt, why + f'from running pod ("{running}")')
        uid = spec.get("serviceAccountUID")
        self._is_the_one(attempt, SERVICE_ACCOUNTS, attempt.namespace, account, uid)

    def _is_the_one(self, attempt: Attempt, info: ResourceInfo, namespace: str, name: str, uid: Any) -> Document:
        """No refusal for good: what the server's own copies lack may come."""
        found = self._store.get(info, namespace, name)
        if found is None:
            raise not_found(info, name)
        if uid_of(found) != uid:
            why = f'PodCertificateRequest names {info.singular} UID "{uid}", inconsistent with "{uid_of(found)}"'
            raise ApiFailure(500, "InternalError", why, {})
        return found


def _refused(attempt: Attempt, why: str) -> ApiFailure:
    return forbidden(attempt.info, _target(attempt), why)


def _target(attempt: Attempt) -> str:
    if attempt.name:
        return attempt.name
    return name_of(attempt.new) if attempt.new else ""


def _claim(node: str, attempt: Attempt) -> None:
    if attempt.subresource != "status":
        raise _refused(attempt, "may only update PVC status")
    if attempt.operation != "UPDATE":
        raise _refused(attempt, f'unexpected operation "{attempt.operation}"')
    if _without_size(attempt.old or {}) != _without_size(attempt.new or {}):
        why = f'node "{node}" is not allowed to update fields other than status.quantity and status.conditions'
        raise _refused(attempt, why)


def _without_size(claim: Document) -> Document:
    sizes = ("capacity", "conditions", "allocatedResources", "allocatedResourceStatuses")
    status = {field: value for field, value in (claim.get("status") or {}).items() if field not in sizes}
    return {**without_bookkeeping(claim), "status": status}


def _pod_status(node: str, attempt: Attempt) -> None:
    old, new = attempt.old or {}, attempt.new or {}
    if dig(old, "spec", "nodeName") != node:
        raise _refused(attempt, f'node "{node}" can only update pod status for pods with spec.nodeName set to itself')
    if (dig(old, "metadata", "labels") or {}) != (dig(new, "metadata", "labels") or {}):
        raise _refused(attempt, f'node "{node}" cannot update labels through pod status')
    if items(old, "status", "resourceClaimStatuses") != items(new, "status", "resourceClaimStatuses"):
        raise _refused(attempt, f'node "{node}" cannot update resource claim statues')
    if dig(old, "status", "extendedResourceClaimStatus") != dig(new, "status", "extendedResourceClaimStatus"):
        raise _refused(attempt, f'node "{node}" cannot update extended resource claim status')


def _node(node: str, attempt: Attempt) -> None:
    if _target(attempt) != node:
        raise _refused(attempt, f'node "{node}" is not allowed to modify node "{_target(attempt)}"')
    old, new = attempt.old or {}, attempt.new or {}
    if attempt.operation == "UPDATE":
        if items(old, "spec", "taints") != items(new, "spec", "taints"):
            raise _refused(attempt, f'node "{node}" is not allowed to modify taints')
        if items(old, "metadata", "ownerReferences") != items(new, "metadata", "ownerReferences"):
            raise _refused(attempt, f'node "{node}" is not allowed to modify ownerReferences')
    labels = _forbidden_labels(dig(new, "metadata", "labels") or {}, dig(old, "metadata", "labels") or {})
    if labels and attempt.operation == "CREATE":
        why = f'node "{node}" is not allowed to set the following labels: {", ".join(labels)}'
        raise _refused(attempt, why)
    if labels and attempt.operation == "UPDATE":
        raise _refused(attempt, f"is not allowed to modify labels: {', '.join(labels)}")


def _forbidden_labels(new: dict[str, str], old: dict[str, str]) -> list[str]:
    changed = {label for label in {*new, *old} if new.get(label) != old.get(label)}
    return sorted(label for label in changed if _is_forbidden(label))


def _is_forbidden(label: str) -> bool:
    domain = label.partition("/")[0] if "/" in label else ""
    if _is_within(domain, _RESTRICTED):
        return True
    if not (_is_within(domain, "kubernetes.io") or _is_within(domain, "k8s.io")):
        return False
    return label not in _AGENT_LABELS and not any(_is_within(domain, allowed) for allowed in _AGENT_LABEL_DOMAINS)


def _is_within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")


def _signing_request(node: str, attempt: Attempt) -> None:
    if attempt.operation != "CREATE" or dig(attempt.new, "spec", "signerName") not in _NODE_SIGNERS:
        return
    try:
        pem = base64.b64decode(str(dig(attempt.new, "spec", "request") or ""), validate=True)
        subject = x509.load_pem_x509_csr(pem).subject
    except (ValueError, binascii.Error) as error:
        raise _refused(attempt, f"unable to parse csr: {error}") from error
    names = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [f"system:node:{node}"]:
        raise _refused(attempt, f"can only create a node CSR with CN=system:node:{node}")
