"""Writes: what all resources have in common, from the document of a request to a change in the store.

A write goes through these steps: the object that it makes (sent whole, or the stored one with a patch), what admission
says of that, what the resource's strategy takes out of it and puts in, what is wrong with the result, and the store.
A write that changes nothing is answered, but is no change: no new resourceVersion, no event.

Facts from `apiserver/pkg/registry/generic/registry/store.go` and `registry/rest/{create,update,delete}.go`.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import attrs

from tests.apiserver.documents import (
    Document,
    clone,
    dig,
    items,
    name_of,
    namespace_of,
    prune,
    uid_of,
    version_of,
    without_bookkeeping,
)
from tests.apiserver.errors import (
    OBJECT_MODIFIED,
    Cause,
    already_exists,
    bad_request,
    conflict,
    invalid,
    namespace_terminating,
    not_found,
)
from tests.apiserver.names import is_name, is_path_segment, random_suffix
from tests.apiserver.resources import NAMESPACES, ResourceInfo
from tests.apiserver.strategy_table import strategy_for
from tests.apiserver.users import User

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.apiserver.store import Store
    from tests.apiserver.strategies import Strategy
    from trikubelet.clock import WallClock

Operation = Literal["CREATE", "UPDATE", "DELETE"]

_NEVER_BY_CLIENTS: Final = ("selfLink", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


@attrs.frozen
class Attempt:
    """A write as admission sees it."""

    user: User
    operation: Operation
    info: ResourceInfo
    namespace: str
    name: str
    """Of a creation: as in the path, so usually empty."""
    subresource: str = ""
    new: Document | None = None
    old: Document | None = None


@attrs.frozen
class Deletion:
    """What a DELETE asks for."""

    grace_period: int | None = None
    uid: str | None = None
    resource_version: str | None = None


class Registry:
    """The objects in the store and the rules for changing them. Every refusal is raised as ApiFailure."""

    def __init__(
        self, store: Store, *, clock: WallClock, rng: random.Random, admit: Callable[[Attempt], None] = lambda _: None
    ) -> None:
        self.store = store
        self.rng = rng
        self.unknown_fields: dict[str, tuple[str, ...]] = {}
        """By kind, paths of fields that this server silently drops, as an older one does with newer fields."""
        self._clock = clock
        self._admit = admit

    def now(self) -> str:
        """As objects carry it."""
        return format_time(self._clock.now())

    def find(self, info: ResourceInfo, namespace: str, name: str) -> Document:
        document = self.store.get(info, namespace, name)
        if document is None:
            raise not_found(info, name)
        return document

    # Creation.

    def create(self, info: ResourceInfo, namespace: str, document: Document, user: User) -> Document:
        new = self._received(info, namespace, document)
        metadata = new["metadata"]
        self._check_namespace(info, namespace, name_of(new))
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for field in (*_NEVER_BY_CLIENTS, "deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(field, None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + random_suffix(self.rng)
        self._admit(Attempt(user, "CREATE", info, namespace, "", new=new))
        strategy = strategy_for(info)
        metadata["uid"] = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.now()
        strategy.prepare_create(new, user)
        causes = [*_wrong_name(metadata, strategy), *strategy.validate_create(new)]
        if causes:
            raise invalid(info, name_of(new), causes)
        if self.store.get(info, namespace, name_of(new)) is not None:
            raise already_exists(info, name_of(new))
        self._manage(new, user)
        return self.store.put(info, new)

    def _received(self, info: ResourceInfo, namespace: str, document: Document) -> Document:
        """A copy of what a client sent, which nobody else has."""
        sent = document.get("apiVersion", info.api_version), document.get("kind", info.kind)
        if sent != (info.api_version, info.kind):
            raise bad_request(
                f'{sent[1]} in version "{sent[0]}" cannot be handled as a {info.kind}: expected {info.api_version}'
            )
        new: Document = clone({"kind": info.kind, "apiVersion": info.api_version, **document})
        for path in self.unknown_fields.get(info.kind, ()):
            prune(new, path)
        metadata = new.setdefault("metadata", {})
        if info.namespaced:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        elif metadata.pop("namespace", ""):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        return new

    def _check_namespace(self, info: ResourceInfo, namespace: str, name: str) -> None:
        if not info.namespaced:
            return
        found = self.store.get(NAMESPACES, "", namespace)
        if found is None:
            raise not_found(NAMESPACES, namespace)
        if dig(found, "metadata", "deletionTimestamp") is not None:
            raise namespace_terminating(info, name, namespace)

    # Updates.

    def replace(
        self, info: ResourceInfo, namespace: str, name: str, document: Document, user: User, *, subresource: str = ""
    ) -> Document:
        """PUT: the whole object as the client wants it."""
        new = self._received(info, namespace, document)
        if new["metadata"].setdefault("name", name) != name:
            raise bad_request(
                f"the name of the object ({new['metadata']['name']}) does not match the name on the URL ({name})"
            )
        old = self.find(info, namespace, name)
        wanted_uid = new["metadata"].get("uid")
        if wanted_uid and wanted_uid != uid_of(old):
            raise conflict(info, name, _storage_error(info, namespace, name, wanted_uid, uid_of(old)))
        return self._write(info, old, new, user, subresource)

    def modify(
        self,
        info: ResourceInfo,
        namespace: str,
        name: str,
        change: Callable[[Document], Document],
        user: User,
        *,
        subresource: str = "",
    ) -> Document:
        """PATCH: `change` makes the new object from the stored one, which it leaves as it is."""
        old = self.find(info, namespace, name)
        new = self._received(info, namespace, change(old))
        if name_of(new) != name:
            raise bad_request(f"the name of the object ({name_of(new)}) does not match the name on the URL ({name})")
        return self._write(info, old, new, user, subresource)

    def _write(self, info: ResourceInfo, old: Document, new: Document, user: User, subresource: str) -> Document:
        name = name_of(old)
        expected = new["metadata"].get("resourceVersion")
        if expected and expected != "0" and int(expected) != version_of(old):
            raise conflict(info, name, OBJECT_MODIFIED)
        strategy = strategy_for(info)
        _keep_identity(new, old)
        self._admit(Attempt(user, "UPDATE", info, namespace_of(old), name, subresource, new, old))
        if subresource == "status":
            strategy.prepare_status(new, old)
            causes = strategy.validate_status(new, old)
        elif subresource == "approval":
            strategy.prepare_approval(new, old)
            causes = []
        elif subresource == "ephemeralcontainers":
            strategy.prepare_ephemeral_containers(new, old)
            causes = strategy.validate_ephemeral_containers(new, old)
        elif subresource == "resize":
            strategy.prepare_resize(new, old)
            causes = strategy.validate_resize(new, old)
        else:
            strategy.prepare_update(new, old)
            causes = strategy.validate_update(new, old)
        causes = [*_changed_identity(new, old), *causes]
        if causes:
            raise invalid(info, name, causes)
        return self.commit(info, old, new, user)

    def commit(self, info: ResourceInfo, old: Document, new: Document, user: User) -> Document:
        """Store a new version without asking anybody; an object that was only kept by its finalizers goes."""
        if without_bookkeeping(new) == without_bookkeeping(old):
            return old
        self._manage(new, user)
        deleting = dig(old, "metadata", "deletionTimestamp") is not None
        finalizers = items(new, "metadata", "finalizers") or (info is NAMESPACES and items(new, "spec", "finalizers"))
        if deleting and not finalizers and not _grace(old):
            return self.store.remove(info, namespace_of(old), name_of(old))
        return self.store.put(info, new)

    def _manage(self, document: Document, user: User) -> None:
        """Field management as clients see it: bytes that are none of their business."""
        entry = {
            "manager": user.name.rpartition(":")[2],
            "operation": "Update",
            "apiVersion": document["apiVersion"],
            "time": self.now(),
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}},
        }
        document["metadata"]["managedFields"] = [entry]

    # Deletion.

    def delete(
        self, info: ResourceInfo, namespace: str, name: str, deletion: Deletion, user: User
    ) -> tuple[Document, bool]:
        """The object's last state, and whether it is gone."""
        old = self.find(info, namespace, name)
        self._admit(Attempt(user, "DELETE", info, namespace, name, old=old))
        self._check_preconditions(info, old, deletion)
        strategy = strategy_for(info)
        if strategy.deletes_gracefully:
            return self._delete_gracefully(info, old, deletion, strategy)
        waiting = clone(old)
        if strategy.prepare_deletion(waiting) or items(old, "metadata", "finalizers"):
            if dig(old, "metadata", "deletionTimestamp") is None:
                old = self._mark(info, waiting, self._clock.now(), 0)
            return old, False
        return self.store.remove(info, namespace, name), True

    def _check_preconditions(self, info: ResourceInfo, old: Document, deletion: Deletion) -> None:
        called = info.qualified_kind
        if deletion.uid is not None and deletion.uid != uid_of(old):
            why = (
                f"the UID in the precondition ({deletion.uid}) does not match the UID in record ({uid_of(old)}). "
                "The object might have been deleted and then recreated"
            )
            raise conflict(info, name_of(old), why, called=called)
        version = old["metadata"]["resourceVersion"]
        if deletion.resource_version is not None and deletion.resource_version != version:
            why = (
                f"the ResourceVersion in the precondition ({deletion.resource_version}) does not match the "
                f"ResourceVersion in record ({version}). The object might have been modified"
            )
            raise conflict(info, name_of(old), why, called=called)

    def _delete_gracefully(
        self, info: ResourceInfo, old: Document, deletion: Deletion, strategy: Strategy
    ) -> tuple[Document, bool]:
        requested = deletion.grace_period
        if requested is not None and requested < 0:
            requested = 1
        marked: Document | None
        if dig(old, "metadata", "deletionTimestamp") is None:
            period = strategy.grace_period(old, requested)
            deadline = self._clock.now() + timedelta(seconds=period)
            marked = self._mark(info, old, deadline, period)
        elif not _grace(old):
            marked, period = old, 0
        elif requested is None or requested >= _grace(old):
            return old, False
        else:
            period, deadline = self._shortened(old, requested)
            marked = self._mark(info, old, deadline, period)
        if period > 0 or items(marked, "metadata", "finalizers"):
            return marked, False
        return self.store.remove(info, namespace_of(marked), name_of(marked)), True

    def _shortened(self, old: Document, requested: int) -> tuple[int, datetime]:
        deadline = parse_time(old["metadata"]["deletionTimestamp"]) - timedelta(seconds=_grace(old) - requested)
        now = self._clock.now()
        if deadline >= now:
            return requested, deadline
        return (1 if requested else 0), now

    def _mark(self, info: ResourceInfo, old: Document, deadline: datetime, period: int) -> Document:
        """Say that the object is to go. The first time that is a change of what is wanted: a new generation."""
        metadata = dict(old["metadata"])
        if metadata.get("generation") and "deletionTimestamp" not in metadata:
            metadata["generation"] += 1
        metadata["deletionTimestamp"] = format_time(deadline)
        metadata["deletionGracePeriodSeconds"] = period
        return self.store.put(info, {**old, "metadata": metadata})


def format_time(time: datetime) -> str:
    """Whole seconds, as the server keeps times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _wrong_name(metadata: Document, strategy: Strategy) -> list[Cause]:
    name = metadata.get("name", "")
    if not name:
        return [Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")]
    if is_name(name) or (strategy.any_name and is_path_segment(name)):
        return []
    why = (
        f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
        "characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
        "regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )
    return [Cause("metadata.name", why)]


def _grace(document: Document) -> int:
    return int(dig(document, "metadata", "deletionGracePeriodSeconds") or 0)


def _keep_identity(new: Document, old: Document) -> None:
    """What no update changes, whatever it says."""
    metadata, before = new["metadata"], old["metadata"]
    metadata.setdefault("uid", before.get("uid"))
    if not metadata["uid"]:
        metadata["uid"] = before.get("uid")
    for field in ("creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        if field in before:
            metadata[field] = before[field]
        else:
            metadata.pop(field, None)
    metadata["resourceVersion"] = before["resourceVersion"]
    metadata["managedFields"] = before.get("managedFields", [])


def _changed_identity(new: Document, old: Document) -> list[Cause]:
    """A UID in a patch is a precondition; of a PATCH the server says so with 422, of a PUT with 409."""
    causes = []
    if uid_of(new) != uid_of(old):
        causes.append(Cause("metadata.uid", f'Invalid value: "{uid_of(new)}": field is immutable'))
    if dig(old, "metadata", "deletionTimestamp") is not None:
        added = [f for f in items(new, "metadata", "finalizers") if f not in items(old, "metadata", "finalizers")]
        if added:
            why = "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
            why += str(added)
            causes.append(Cause("metadata.finalizers", why, "FieldValueForbidden"))
    return causes


def _storage_error(info: ResourceInfo, namespace: str, name: str, wanted: str, found: str) -> str:
    key = "/".join(part for part in ("/registry", info.plural, namespace, name) if part)
    return (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    )
