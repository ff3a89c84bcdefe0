"""A copy of objects of an API server, kept by a reflector and read by everybody.

The reflector puts in whole states (`replace`) and single changes (`apply`); both tell the listeners what became
different, and nothing when nothing did: a list that follows a lost watch mostly shows what is known already.

An object that does not decode is no change. Its last version that did stays, for as long as the object is there:
whether a pod goes on running must not depend on how new this agent is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.kube_client.types import T, Undecodable
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trikubelet.api import ObjectMeta
    from trikubelet.kube_client.types import Resource, WatchEvent

Key = tuple[str, str]
"""Namespace and name."""

log = get_logger("cluster")


class Store(Generic[T]):
    """A copy of the objects of a watch, as new as the watch is. Reading it never waits.

    There may be thousands of stores, of one object each.
    """

    __slots__ = (
        "_listeners",
        "_objects",
        "_synced",
        "_undecodable",
        "_undecodable_listeners",
        "_values",
        "changes",
        "resource",
        "resource_version",
    )

    def __init__(self, resource: Resource[T]) -> None:
        self.resource = resource
        self.resource_version = ""
        """Up to where the server has told. Empty until `synced`."""
        self._objects: dict[Key, T] = {}
        self._undecodable: dict[Key, Undecodable] = {}
        self._values: tuple[T, ...] | None = None
        self._synced = trio.Event()
        self.changes: Broadcast[None] = Broadcast()
        """Sent at each change, and at the first sync."""
        self._listeners: list[Callable[[T | None, T | None], None]] = []
        self._undecodable_listeners: list[Callable[[Undecodable, T | None], None]] = []

    # For readers.

    @property
    def synced(self) -> bool:
        """The first complete list has arrived. Stays true when the connection is lost: the last state is kept."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return once `synced` is true; waits as long as that takes. Cancellable; nothing is left behind."""
        await self._synced.wait()

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def values(self) -> Sequence[T]:
        """All objects, in no particular order; the sequence does not change afterwards."""
        if self._values is None:
            self._values = tuple(self._objects.values())
        return self._values

    def undecodable(self) -> Sequence[Undecodable]:
        """The objects whose newest version could not be read; of some there is an older one among `values`."""
        return tuple(self._undecodable.values())

    def subscribe(self, listener: Callable[[T | None, T | None], None]) -> None:
        """`listener(old, new)` is called for each change, when the store already shows it. It must not block.

        None stands for no object: a creation has no old one, a deletion no new one. An object that was replaced by
        one of the same name and another UID is a deletion and a creation.

        The call is synchronous because both versions count, and none may be left out for a newer one: what was
        deleted must be seen to be gone before its successor is. A broadcast keeps only the newest.
        """
        self._listeners.append(listener)

    def subscribe_undecodable(self, listener: Callable[[Undecodable, T | None], None]) -> None:
        """`listener(undecodable, kept)` is called for each version that cannot be read, with what is kept instead.
        Synchronously, in the order of the other changes."""
        self._undecodable_listeners.append(listener)

    # For the reflector.

    def replace(self, objects: Iterable[T], undecodable: Iterable[Undecodable], resource_version: str) -> None:
        """Take the whole state of a list: what it does not name is gone."""
        before = self._objects
        after = {_key(obj.metadata): obj for obj in objects}
        unread = {_key(item.metadata): item for item in undecodable}
        for key, item in unread.items():
            kept = before.get(key)
            if kept is not None and _same(kept.metadata, item.metadata):
                after[key] = kept
        told = self._undecodable
        self._objects, self._undecodable, self.resource_version = after, unread, resource_version
        self._values = None
        # Deletions first: what replaces an object often waits for what the object had.
        for key, old in before.items():
            if key not in after:
                self._notify(old, None)
        for key, new in after.items():
            self._notify_difference(before.get(key), new)
        for key, item in unread.items():
            known = told.get(key)
            if known is None or known.metadata.resource_version != item.metadata.resource_version:
                self._notify_undecodable(item)
        first = not self.synced
        self._synced.set()
        if first:
            self.changes.send(None)

    def apply(self, event: WatchEvent[T]) -> None:
        """Take one change."""
        metadata = event.object.metadata
        key = _key(metadata)
        if metadata.resource_version:
            self.resource_version = metadata.resource_version
        if event.type == "BOOKMARK":
            return
        known = self._objects.get(key)
        if event.type == "DELETED":
            self._undecodable.pop(key, None)
            self._remove(key)
        elif isinstance(event.object, Undecodable):
            if known is not None and not _same(known.metadata, metadata):
                self._remove(key)
            self._undecodable[key] = event.object
            self._notify_undecodable(event.object)
        else:
            self._undecodable.pop(key, None)
            self._objects[key] = event.object
            self._values = None
            self._notify_difference(known, event.object)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        self._values = None
        if old is not None:
            self._notify(old, None)

    def _notify_difference(self, old: T | None, new: T) -> None:
        if old is None:
            self._notify(None, new)
        elif not _same(old.metadata, new.metadata):
            self._notify(old, None)
            self._notify(None, new)
        elif old.metadata.resource_version != new.metadata.resource_version or not new.metadata.resource_version:
            self._notify(old, new)

    def _notify(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            try:
                listener(old, new)
            except Exception as error:
                # One unexpected object must not end the agent.
                name = next((f"{one.metadata.namespace}/{one.metadata.name}" for one in (new, old) if one), "")
                log.error("a change was not taken in", objects=str(self.resource), name=name, exc_info=error)
        self.changes.send(None)

    def _notify_undecodable(self, item: Undecodable) -> None:
        kept = self._objects.get(_key(item.metadata))
        log.error(
            "object cannot be read",
            objects=str(self.resource),
            name=item.metadata.name,
            namespace=item.metadata.namespace,
            problems=[str(problem) for problem in item.problems],
            older_version_kept=kept is not None,
        )
        for listener in self._undecodable_listeners:
            listener(item, kept)


def _key(metadata: ObjectMeta) -> Key:
    return (metadata.namespace, metadata.name)


def _same(one: ObjectMeta, other: ObjectMeta) -> bool:
    """Whether two versions are of one object. Metadata that was read as far as possible may lack the UID."""
    return one.uid == other.uid or not one.uid or not other.uid
