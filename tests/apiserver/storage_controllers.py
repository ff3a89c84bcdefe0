"""What a cluster's storage controllers do: make claims for ephemeral volumes, bind claims, attach and detach volumes.

They look at everything whenever something changed, and write what is missing:

    storage = StorageControllers(server)
    await nursery.start(storage.run)
    storage.problems["data"] = ("no such disk", 5)  # attaching the persistent volume `data` fails from now on

Facts from the controllers of kube-controller-manager (`volume/{persistentvolume,ephemeral,attachdetach}`) and from
external-attacher; a volume that cannot be bound at once waits until a matching one is created.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.apiserver.documents import Document, dig, items, name_of, namespace_of, uid_of
from tests.apiserver.references import claim_names
from tests.apiserver.resources import CSI_DRIVERS, NODES, PODS, VOLUME_ATTACHMENTS, VOLUME_CLAIMS, VOLUMES
from trikubelet.api import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.apiserver.server import ApiServer
    from tests.apiserver.store import Change

_WATCHED: Final = (PODS, VOLUME_CLAIMS, VOLUMES, NODES, VOLUME_ATTACHMENTS, CSI_DRIVERS)


class StorageControllers:
    """`provision` makes a persistent volume (a document) for a claim that none fits, or returns None."""

    def __init__(
        self,
        server: ApiServer,
        *,
        provision: Callable[[Document], Document | None] = lambda _: None,
        delay: float = 0.0,
    ) -> None:
        """`delay`: seconds until a change is noticed."""
        self._admin = server.admin
        self._store = server.store
        self._provision = provision
        self._delay = delay
        self._changed = trio.Event()
        self.problems: dict[str, tuple[str, int | None]] = {}
        """By persistent volume, why it cannot be attached: message and gRPC status. Call `deliver` after changes."""
        self.publish_context: dict[str, str] = {}
        """What the driver tells to hand to the node (`attachmentMetadata`)."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        for info in _WATCHED:
            self._store.subscribe(info, self, None)
        try:
            task_status.started()
            while True:
                self._changed = trio.Event()
                self.reconcile()
                await self._changed.wait()
                await trio.sleep(self._delay)
        finally:
            for info in _WATCHED:
                self._store.unsubscribe(info, self)

    def deliver(self, change: Change | None = None) -> None:
        """Something changed."""
        self._changed.set()

    def reconcile(self) -> None:
        """Do what is to be done now."""
        self._make_ephemeral_claims()
        self._bind_claims()
        wanted = dict(self._wanted_attachments())
        for key, volume in wanted.items():
            self._attach(key, volume)
        for attachment in self._admin.list("volumeattachments"):
            key = dig(attachment, "spec", "source", "persistentVolumeName"), dig(attachment, "spec", "nodeName")
            if key not in wanted:
                self._detach(attachment)

    # Claims.

    def _make_ephemeral_claims(self) -> None:
        pods = {uid_of(pod): pod for pod in self._admin.list("pods")}
        for pod in pods.values():
            for volume in items(pod, "spec", "volumes"):
                template = dig(volume, "ephemeral", "volumeClaimTemplate")
                name = f"{name_of(pod)}-{volume['name']}"
                if template and self._admin.find("persistentvolumeclaims", name, namespace_of(pod)) is None:
                    self._admin.create(_claim_of(pod, name, template))
        for claim in self._admin.list("persistentvolumeclaims"):
            owners = [owner for owner in items(claim, "metadata", "ownerReferences") if owner["kind"] == "Pod"]
            if owners and not any(owner["uid"] in pods for owner in owners):
                self._admin.delete("persistentvolumeclaims", name_of(claim), namespace_of(claim))

    def _bind_claims(self) -> None:
        for claim in self._admin.list("persistentvolumeclaims"):
            if dig(claim, "status", "phase") == "Bound":
                continue
            volumes = self._admin.list("persistentvolumes")
            found = next((volume for volume in volumes if _fits(volume, claim)), None)
            if found is None and (made := self._provision(claim)) is not None:
                found = self._admin.create(made)
            if found is not None:
                self._bind(claim, found)

    def _bind(self, claim: Document, volume: Document) -> None:
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": uid_of(claim)}
        reference |= {"name": name_of(claim), "namespace": namespace_of(claim)}
        name, where = name_of(volume), (name_of(claim), namespace_of(claim))
        self._admin.patch("persistentvolumes", name, body={"spec": {"claimRef": reference}})
        self._admin.patch("persistentvolumes", name, body={"status": {"phase": "Bound"}}, subresource="status")
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        body: dict[str, Any] = {"metadata": {"annotations": annotations}, "spec": {"volumeName": name}}
        self._admin.patch("persistentvolumeclaims", *where, body=body)
        status = {
            "phase": "Bound",
            "capacity": dig(volume, "spec", "capacity"),
            "accessModes": dig(volume, "spec", "accessModes"),
        }
        self._admin.patch("persistentvolumeclaims", *where, body={"status": status}, subresource="status")

    # Attachments.

    def _wanted_attachments(self) -> Iterator[tuple[tuple[str, str], Document]]:
        """By the names of volume and node."""
        for pod in self._admin.list("pods"):
            node = dig(pod, "spec", "nodeName")
            if not node or dig(pod, "status", "phase") in ("Succeeded", "Failed"):
                continue
            for name in claim_names(pod):
                claim = self._admin.find("persistentvolumeclaims", name, namespace_of(pod))
                volume = self._admin.find("persistentvolumes", str(dig(claim, "spec", "volumeName") or ""))
                if volume is not None and self._is_attachable(volume):
                    yield (name_of(volume), node), volume

    def _is_attachable(self, volume: Document) -> bool:
        driver = dig(volume, "spec", "csi", "driver")
        found = self._admin.find("csidrivers", driver) if driver else None
        return bool(driver) and dig(found, "spec", "attachRequired") is not False

    def _attach(self, key: tuple[str, str], volume: Document) -> None:
        name, node = key
        attachment = attachment_name(volume, node)
        driver = volume["spec"]["csi"]["driver"]
        if self._admin.find("volumeattachments", attachment) is None:
            spec = {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": name}}
            self._admin.create({"kind": "VolumeAttachment", "metadata": {"name": attachment}, "spec": spec})
        problem = self.problems.get(name)
        status: Document = {"attached": problem is None}
        if problem is None:
            status |= {"attachmentMetadata": self.publish_context, "attachError": None}
        else:
            status["attachError"] = {"message": problem[0], **({"errorCode": problem[1]} if problem[1] else {})}
        self._admin.patch("volumeattachments", attachment, body={"status": status}, subresource="status")
        if problem is None:
            self._set_attached(node, unique_name(volume), attached=True)

    def _detach(self, attachment: Document) -> None:
        """Not while the node says that it uses the volume."""
        node = str(dig(attachment, "spec", "nodeName"))
        volume = self._admin.find("persistentvolumes", str(dig(attachment, "spec", "source", "persistentVolumeName")))
        if volume is not None:
            used = items(self._admin.find("nodes", node), "status", "volumesInUse")
            if unique_name(volume) in used:
                return
            self._set_attached(node, unique_name(volume), attached=False)
        self._admin.delete("volumeattachments", name_of(attachment))

    def _set_attached(self, node: str, volume: str, *, attached: bool) -> None:
        found = self._admin.find("nodes", node)
        if found is None:
            return
        before = items(found, "status", "volumesAttached")
        others = [one for one in before if one["name"] != volume]
        after = [*others, {"name": volume, "devicePath": ""}] if attached else others
        if len(after) != len(before):
            self._admin.patch("nodes", node, body={"status": {"volumesAttached": after}}, subresource="status")


def unique_name(volume: Document) -> str:
    """As nodes call a volume in `volumesInUse`."""
    csi = volume["spec"]["csi"]
    return f"kubernetes.io/csi/{csi['driver']}^{csi['volumeHandle']}"


def attachment_name(volume: Document, node: str) -> str:
    """What nodes expect an attachment to be called."""
    csi = volume["spec"]["csi"]
    return "csi-" + hashlib.sha256(f"{csi['volumeHandle']}{csi['driver']}{node}".encode()).hexdigest()


def _claim_of(pod: Document, name: str, template: Document) -> Document:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod), "uid": uid_of(pod)}
    metadata = {
        **(template.get("metadata") or {}),
        "name": name,
        "namespace": namespace_of(pod),
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template.get("spec") or {}}


def _fits(volume: Document, claim: Document) -> bool:
    """Whether a volume can be bound to a claim."""
    bound = dig(volume, "spec", "claimRef")
    if bound is not None:
        named = (bound.get("namespace"), bound.get("name")) == (namespace_of(claim), name_of(claim))
        return named and bound.get("uid") in (None, "", uid_of(claim))
    wanted, offered = claim["spec"], volume["spec"]
    if wanted.get("volumeName"):
        return bool(wanted["volumeName"] == name_of(volume))
    if any(
        (wanted.get(field) or default) != (offered.get(field) or default)
        for field, default in (("storageClassName", ""), ("volumeMode", "Filesystem"))
    ):
        return False
    size = dig(wanted, "resources", "requests", "storage") or "0"
    modes = set(wanted.get("accessModes") or ())
    enough = Quantity(str(dig(offered, "capacity", "storage") or "0")) >= Quantity(str(size))
    return enough and modes <= set(offered.get("accessModes") or ())
