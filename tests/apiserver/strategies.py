"""What is particular to a resource when objects of it are written: what a client may not set, and what must be true.

The registry does what all resources have in common and asks the resource's strategy for the rest. Strategies change
the new document that they are given (it is nobody else's yet) and report what is wrong as causes of a 422.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from tests.apiserver.documents import Document, clone, dig, items
from tests.apiserver.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apiserver.users import User


class Strategy:
    """Of resources about which there is nothing particular."""

    any_name = False
    """Names need not be DNS subdomains, as long as they fit in a path."""
    deletes_gracefully = False
    returns_deleted = False
    """Whether a DELETE that has taken place at once answers with the object instead of a Status."""

    def prepare_create(self, new: Document, user: User) -> None:
        """What a client may not set goes, and defaults come."""

    def prepare_update(self, new: Document, old: Document) -> None:
        """A write to the object itself."""
        _keep(new, old, "status")

    def prepare_status(self, new: Document, old: Document) -> None:
        """A write to the subresource `status`."""
        _keep(new, old, "spec")

    def prepare_approval(self, new: Document, old: Document) -> None:
        """A write to the subresource `approval`, which only signing requests have."""
        _keep(new, old, "spec", "status")

    def prepare_ephemeral_containers(self, new: Document, old: Document) -> None:
        """A write to the subresource `ephemeralcontainers`, which only pods have."""
        _keep(new, old, "spec", "status")

    def prepare_resize(self, new: Document, old: Document) -> None:
        """A write to the subresource `resize`, which only pods have."""
        _keep(new, old, "spec", "status")

    def prepare_deletion(self, new: Document) -> bool:
        """A deletion that something else has to complete changes the object, and is true."""
        return False

    def validate_create(self, new: Document) -> Sequence[Cause]:
        return ()

    def validate_update(self, new: Document, old: Document) -> Sequence[Cause]:
        return ()

    def validate_status(self, new: Document, old: Document) -> Sequence[Cause]:
        return ()

    def validate_ephemeral_containers(self, new: Document, old: Document) -> Sequence[Cause]:
        return ()

    def validate_resize(self, new: Document, old: Document) -> Sequence[Cause]:
        return ()

    def grace_period(self, document: Document, requested: int | None) -> int:
        """Seconds until a deletion takes place; asked only if `deletes_gracefully`."""
        return 0


def _keep(new: Document, old: Document, *fields: str) -> None:
    """Undo what a write did to `fields`."""
    for field in fields:
        if field in old:
            new[field] = clone(old[field])
        else:
            new.pop(field, None)


class StatusCleared(Strategy):
    """The status of a new object is empty whatever the client says."""

    def prepare_create(self, new: Document, user: User) -> None:
        new["status"] = {}


class PodCertificateRequestStrategy(StatusCleared):
    """What is asked for does not change; the answer comes through `status`, once."""

    def prepare_update(self, new: Document, old: Document) -> None:
        _keep(new, old, "spec", "status")

    def validate_create(self, new: Document) -> Sequence[Cause]:
        return [
            Cause(f"spec.{field}", "Required value", "FieldValueRequired")
            for field in ("signerName", "podName", "podUID", "serviceAccountName", "nodeName", "stubPKCS10Request")
            if not dig(new, "spec", field)
        ]

    def validate_status(self, new: Document, old: Document) -> Sequence[Cause]:
        if items(old, "status", "conditions") and new.get("status") != old.get("status"):
            return [
                Cause("status", "Invalid value: immutable after PodCertificateRequest is issued, denied, or failed")
            ]
        return ()


class TrustBundleStrategy(Strategy):
    """The bundles of a signer begin with its name, and a colon instead of the slash."""

    any_name = True

    def validate_create(self, new: Document) -> Sequence[Cause]:
        name, signer = str(new["metadata"].get("name")), str(dig(new, "spec", "signerName") or "")
        prefix = signer.replace("/", ":") + ":"
        if signer and not name.startswith(prefix):
            why = f"ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
            return [Cause("metadata.name", f"Invalid value: {name!r}: {why}")]
        return ()


class NamespaceStrategy(Strategy):
    def prepare_create(self, new: Document, user: User) -> None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"].get("name", "")

    def prepare_deletion(self, new: Document) -> bool:
        """A controller empties the namespace, and then takes its own finalizer out of the spec."""
        if not items(new, "spec", "finalizers"):
            return False
        new["status"] = {**(new.get("status") or {}), "phase": "Terminating"}
        return True


class NodeStrategy(Strategy):
    """A node is created with its status; afterwards the status has its subresource, which takes labels too."""

    def validate_create(self, new: Document) -> Sequence[Cause]:
        return _duplicate_addresses(new)

    def validate_update(self, new: Document, old: Document) -> Sequence[Cause]:
        causes = list(_duplicate_addresses(new))
        for field, name in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
            before = dig(old, "spec", field)
            if before and before != dig(new, "spec", field):
                why = f'Forbidden: node updates may not change {name} except from "" to valid'
                causes.append(Cause(f"spec.{field}", why, "FieldValueForbidden"))
        return causes

    def validate_status(self, new: Document, old: Document) -> Sequence[Cause]:
        return self.validate_update(new, old)


def _duplicate_addresses(node: Document) -> Sequence[Cause]:
    addresses = items(node, "status", "addresses")
    return [
        Cause(
            f"status.addresses[{place}]",
            f'Duplicate value: {{"Type":"{address.get("type")}","Address":"{address.get("address")}"}}',
            "FieldValueDuplicate",
        )
        for place, address in enumerate(addresses)
        if address in addresses[:place]
    ]


class EventStrategy(Strategy):
    def validate_create(self, new: Document) -> Sequence[Cause]:
        about = dig(new, "involvedObject", "namespace") or "default"
        if about != new["metadata"]["namespace"]:
            return [Cause("involvedObject.namespace", f'Invalid value: "{about}": does not match event.namespace')]
        return ()


class ServiceStrategy(Strategy):
    def prepare_create(self, new: Document, user: User) -> None:
        spec = new.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        for port in spec.get("ports", ()):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))
        if spec.get("clusterIP") and "clusterIPs" not in spec:
            spec["clusterIPs"] = [spec["clusterIP"]]
        new["status"] = {"loadBalancer": {}}


class LeaseStrategy(Strategy):
    def validate_create(self, new: Document) -> Sequence[Cause]:
        seconds = dig(new, "spec", "leaseDurationSeconds")
        if seconds is not None and seconds <= 0:
            return [Cause("spec.leaseDurationSeconds", f"Invalid value: {seconds}: must be greater than 0")]
        return ()

    def validate_update(self, new: Document, old: Document) -> Sequence[Cause]:
        return self.validate_create(new)


class CSINodeStrategy(Strategy):
    def validate_create(self, new: Document) -> Sequence[Cause]:
        if dig(new, "spec", "drivers") is None:
            new.setdefault("spec", {})["drivers"] = None
        return ()


class RuntimeClassStrategy(Strategy):
    def validate_create(self, new: Document) -> Sequence[Cause]:
        if not new.get("handler"):
            return [Cause("handler", "Required value", "FieldValueRequired")]
        return ()

    def validate_update(self, new: Document, old: Document) -> Sequence[Cause]:
        if new.get("handler") != old.get("handler"):
            return [Cause("handler", f'Invalid value: "{new.get("handler")}": field is immutable')]
        return ()


class SigningRequestStrategy(Strategy):
    """The server itself writes who asks. Decisions come through `approval`, the certificate through `status`."""

    any_name = True

    def prepare_create(self, new: Document, user: User) -> None:
        spec = new.setdefault("spec", {})
        spec["username"] = user.name
        spec["groups"] = list(user.groups)
        new["status"] = {}

    def prepare_update(self, new: Document, old: Document) -> None:
        _keep(new, old, "spec", "status")

    def prepare_status(self, new: Document, old: Document) -> None:
        _keep(new, old, "spec")
        kept = [c for c in items(old, "status", "conditions") if c.get("type") in ("Approved", "Denied")]
        fresh = [c for c in items(new, "status", "conditions") if c.get("type") not in ("Approved", "Denied")]
        if kept or fresh:
            new.setdefault("status", {})["conditions"] = clone(kept) + fresh

    def prepare_approval(self, new: Document, old: Document) -> None:
        """A write to the subresource `approval`: only conditions."""
        conditions = items(new, "status", "conditions")
        _keep(new, old, "spec", "status")
        new["status"] = {**(new.get("status") or {}), "conditions": conditions}

    def validate_create(self, new: Document) -> Sequence[Cause]:
        spec = new["spec"]
        causes = [
            Cause(f"spec.{field}", "Required value", "FieldValueRequired")
            for field in ("request", "signerName", "usages")
            if not spec.get(field)
        ]
        seconds = spec.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            causes.append(
                Cause(
                    "spec.expirationSeconds",
                    f"Invalid value: {seconds}: may not specify a duration less than 600 seconds (10 minutes)",
                )
            )
        return causes


def is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
