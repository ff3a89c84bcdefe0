"""What the server remembers: the objects, one counter of changes, and for each resource its latest changes.

The counter is the resourceVersion, of everything. A watch begins either with the present or with a version whose
following changes are still remembered; `compact` forgets them, and a watch from before is told 410. Watchers are told
of changes synchronously; they keep them until their client takes them.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, Protocol

import attrs

from tests.apiserver.documents import Document, name_of, namespace_of
from tests.apiserver.errors import too_old

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apiserver.resources import ResourceInfo
    from tests.apiserver.selectors import Selector

FIRST_VERSION: Final = 1000
REMEMBERED: Final = 1000
"""Changes of one resource that a watch can be resumed over."""

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


@attrs.frozen(eq=False)
class Change:
    """One change of one object. Of a deletion `new` is the last state with the deletion's version."""

    version: int
    type: ChangeType
    old: Document | None
    new: Document


class Watcher(Protocol):
    """Whom the store tells."""

    def deliver(self, change: Change) -> None: ...


@attrs.define(eq=False)
class _Shelf:
    """The objects of one resource."""

    objects: dict[tuple[str, str], Document] = attrs.field(factory=dict)
    """By namespace (empty for what is in none) and name."""
    changes: deque[Change] = attrs.field(factory=deque)
    forgotten: int = 0
    """The version up to which changes are no longer in `changes`."""
    watchers: list[Watcher] = attrs.field(factory=list)


class Store:
    """The objects of a cluster. Documents that went in or come out are not to be changed."""

    def __init__(self, *, remembered: int = REMEMBERED) -> None:
        self._shelves: dict[ResourceInfo, _Shelf] = {}
        self._remembered = remembered
        self.version = FIRST_VERSION
        """Of the latest change."""
        self.compacted = 0
        """Lists that began before this version cannot be continued."""

    def get(self, info: ResourceInfo, namespace: str, name: str) -> Document | None:
        return self._shelf(info).objects.get((namespace, name))

    def values(self, info: ResourceInfo) -> Sequence[Document]:
        """All objects, by namespace and name."""
        objects = self._shelf(info).objects
        return [objects[key] for key in sorted(objects)]

    def select(self, selector: Selector) -> list[Document]:
        return [document for document in self.values(selector.info) if selector.matches(document)]

    def put(self, info: ResourceInfo, document: Document) -> Document:
        """Store a new object, or a new version of one; the document with its resourceVersion."""
        shelf = self._shelf(info)
        key = namespace_of(document), name_of(document)
        old = shelf.objects.get(key)
        stored = self._stamped(document)
        shelf.objects[key] = stored
        self._tell(shelf, Change(self.version, "ADDED" if old is None else "MODIFIED", old, stored))
        return stored

    def remove(self, info: ResourceInfo, namespace: str, name: str) -> Document:
        """Remove an object; its last state with the version of the deletion. Raises KeyError."""
        shelf = self._shelf(info)
        old = shelf.objects.pop((namespace, name))
        gone = self._stamped(old)
        self._tell(shelf, Change(self.version, "DELETED", old, gone))
        return gone

    def subscribe(self, info: ResourceInfo, watcher: Watcher, since: int | None) -> None:
        """Tell `watcher` of the changes after version `since` (None: from now on).

        Raises ApiFailure 410 when those are no longer known.
        """
        shelf = self._shelf(info)
        if since is not None:
            if since < shelf.forgotten:
                raise too_old(since, shelf.forgotten)
            for change in shelf.changes:
                if change.version > since:
                    watcher.deliver(change)
        shelf.watchers.append(watcher)

    def unsubscribe(self, info: ResourceInfo, watcher: Watcher) -> None:
        self._shelf(info).watchers.remove(watcher)

    def compact(self) -> None:
        """Forget every change up to now."""
        self.compacted = self.version
        for shelf in self._shelves.values():
            shelf.changes.clear()
            shelf.forgotten = self.version

    def skip_versions(self, count: int) -> None:
        """Raise the version as changes of resources that nobody watches do."""
        self.version += count

    def _shelf(self, info: ResourceInfo) -> _Shelf:
        if info not in self._shelves:
            self._shelves[info] = _Shelf(forgotten=self.compacted)
        return self._shelves[info]

    def _stamped(self, document: Document) -> Document:
        self.version += 1
        return {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.version)}}

    def _tell(self, shelf: _Shelf, change: Change) -> None:
        shelf.changes.append(change)
        if len(shelf.changes) > self._remembered:
            shelf.forgotten = shelf.changes.popleft().version
        for watcher in list(shelf.watchers):
            watcher.deliver(change)


def encode(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
