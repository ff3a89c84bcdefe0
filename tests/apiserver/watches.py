"""Watches: what a selector shows, change after change, as lines of JSON.

A change may make an object enter or leave a selector: then the watch tells of an addition or a deletion, whatever it
was to the store. What is told waits in the watch until the client takes it. `WatchHub` knows all watches, so that a
test can end them, let them fail, or hold back what they would tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import trio

from tests.apiserver.errors import ApiFailure, Cause, invalid, too_old
from tests.apiserver.requests import Call, flag, number, resource_version
from tests.apiserver.resources import ResourceInfo
from tests.apiserver.selectors import Selector
from tests.apiserver.store import Change, Store, encode
from trikubelet.http.messages import JSON, StreamResponse, Writer

if TYPE_CHECKING:
    import random

    from tests.apiserver.documents import Document
    from tests.apiserver.reading import Reader
    from trikubelet.http.messages import Request

BOOKMARK_PERIOD: Final = 60.0
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
InitialEvents = Literal["served", "ignored", "refused"]
"""What becomes of sendInitialEvents: servers before 1.27 do not know it, later ones may have it switched off."""
_SHORTEST, _LONGEST = 1800.0, 3600.0
_LIST_OPTIONS: Final = ResourceInfo("meta.k8s.io", "v1", "listoptions", "ListOptions", False)
_NOT_ENABLED: Final = Cause(
    "sendInitialEvents",
    "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
    "FieldValueForbidden",
)
_EMPTY: Final[dict[str, Document]] = {
    "Pod": {"spec": {"containers": None}, "status": {}},
    "Node": {"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}}},
    "Service": {"spec": {}, "status": {"loadBalancer": {}}},
    "Lease": {"spec": {}},
    "CSINode": {"spec": {"drivers": None}},
    "RuntimeClass": {"handler": ""},
}
"""What a bookmark's object has besides metadata: fields that are always written."""


@attrs.define(eq=False)
class Watch:
    """One watch in progress."""

    selector: Selector
    deadline: float
    """In trio time."""
    bookmarks: bool
    next_bookmark: float
    version: int
    """Of the latest change of the resource that was looked at, told or not."""
    _lines: list[bytes] = attrs.field(factory=list)
    _news: trio.Event = attrs.field(factory=trio.Event)
    ended: bool = False

    def deliver(self, change: Change) -> None:
        self.version = max(self.version, change.version)
        was = change.old is not None and self.selector.matches(change.old)
        shown = change.type != "DELETED" and self.selector.matches(change.new)
        if shown:
            self.say("MODIFIED" if was else "ADDED", change.new)
        elif was:
            assert change.old is not None
            last = {**change.old, "metadata": {**change.old["metadata"], "resourceVersion": str(change.version)}}
            self.say("DELETED", last)

    def say(self, kind: str, document: Document) -> None:
        self._lines.append(encode({"type": kind, "object": document}) + b"\n")
        self._news.set()

    def bookmark(self, *, initial_end: bool = False) -> None:
        metadata: dict[str, Any] = {"resourceVersion": str(self.version), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        info = self.selector.info
        empty = _EMPTY.get(info.kind, {})
        self.say("BOOKMARK", {"kind": info.kind, "apiVersion": info.api_version, "metadata": metadata, **empty})

    def fail(self, failure: ApiFailure) -> None:
        """Tell of an error and end."""
        self.say("ERROR", failure.status())
        self.end()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    def take(self) -> bytes:
        """Everything that is to be told."""
        told = b"".join(self._lines)
        self._lines.clear()
        self._news = trio.Event()
        if self.ended:
            self._news.set()
        return told

    async def wait(self) -> None:
        await self._news.wait()


class WatchHub:
    """All watches of a server."""

    def __init__(self, store: Store, reader: Reader, rng: random.Random) -> None:
        self._store = store
        self._reader = reader
        self._rng = rng
        self.bookmark_period = BOOKMARK_PERIOD
        self.initial_events: InitialEvents = "served"
        self.watches: set[Watch] = set()
        self._open = trio.Event()
        self._open.set()

    def hold(self) -> None:
        """Let no watch tell anything until `release`: what a slow server or network does."""
        self._open = trio.Event()

    def release(self) -> None:
        self._open.set()

    def expire(self) -> None:
        """End every watch with 410 and forget the past, so that its version cannot be watched from either."""
        self._store.compact()
        for watch in list(self.watches):
            watch.fail(too_old(watch.version, self._store.version))

    def end(self) -> None:
        """End every watch, as the server does when its time is over."""
        for watch in list(self.watches):
            watch.end()

    async def open(self, request: Request, call: Call) -> StreamResponse:
        """The answer to a watch request. Raises ApiFailure."""
        selector = call.selector()
        version = resource_version(request)
        send_initial = None if self.initial_events == "ignored" else _wants_initial_events(request)
        if send_initial is not None and self.initial_events == "refused":
            raise invalid(_LIST_OPTIONS, "", [_NOT_ENABLED])
        if send_initial:
            await self._reader.wait_fresh(version)
        now = trio.current_time()
        watch = Watch(
            selector,
            deadline=now + (number(request, "timeoutSeconds") or self._rng.uniform(_SHORTEST, _LONGEST)),
            bookmarks=flag(request, "allowWatchBookmarks"),
            next_bookmark=now + self.bookmark_period,
            version=self._store.version,
        )
        if send_initial or (send_initial is None and not version):
            for document in self._store.select(selector):
                watch.say("ADDED", document)
            if send_initial and watch.bookmarks:
                watch.bookmark(initial_end=True)
            self._store.subscribe(selector.info, watch, None)
        else:
            self._store.subscribe(selector.info, watch, version or None)
        self.watches.add(watch)

        async def produce(writer: Writer) -> None:
            try:
                await self._serve(watch, writer)
            finally:
                self._forget(watch)

        return StreamResponse(produce, content_type=JSON)

    def _forget(self, watch: Watch) -> None:
        if watch in self.watches:
            self.watches.discard(watch)
            self._store.unsubscribe(watch.selector.info, watch)

    async def _serve(self, watch: Watch, writer: Writer) -> None:
        await writer.write(b"")
        while True:
            await self._open.wait()
            told = watch.take()
            if told:
                await writer.write(told)
                continue
            if watch.ended:
                return
            now = trio.current_time()
            if now >= watch.deadline:
                return
            until = min(watch.deadline, watch.next_bookmark) if watch.bookmarks else watch.deadline
            with trio.move_on_at(until) as scope:
                await watch.wait()
            if scope.cancelled_caught and watch.bookmarks and trio.current_time() < watch.deadline:
                watch.version = max(watch.version, self._store.version)
                watch.next_bookmark = trio.current_time() + self.bookmark_period
                watch.bookmark()


def _wants_initial_events(request: Request) -> bool | None:
    """sendInitialEvents, which is only allowed together with a match. Raises ApiFailure 422."""
    match = request.text("resourceVersionMatch") or ""
    causes = []
    if request.text("sendInitialEvents") is None:
        if match:
            why = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(Cause("resourceVersionMatch", why, "FieldValueForbidden"))
    elif match != "NotOlderThan":
        why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(Cause("resourceVersionMatch", why, "FieldValueForbidden"))
    if causes:
        raise invalid(_LIST_OPTIONS, "", causes)
    return flag(request, "sendInitialEvents") if request.text("sendInitialEvents") is not None else None
