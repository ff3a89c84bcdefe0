"""An ApiClient without HTTP: objects in memory, watches, patches, deletions, and failures that a test scripts.

    client = ScriptedClient([node, pod], clock=TrioClock())
    client.put(pod)                                         # as if somebody else had written it
    client.fail("patch", PODS, status_error(500), times=3)  # the next three calls
    client.fail("create", PODS, lost(), after=True)         # the reply is lost, the change is made
    gate = client.hold("patch", PODS)                       # calls wait until gate.set()
    client.unreachable(); client.back()                     # connections are refused, watches break; and again
    client.compact()                                        # watches from before now get 410
    client.end_watches(); client.drop_connections()
    client.calls                                            # what was asked, in order: Call(verb, resource, ...)
    client.stored(PODS, "web", "default")                   # the server's copy, or None

It has rules of an API server where an agent meets them: UIDs and resource versions are the server's, `status` is
written by itself, preconditions conflict, a pod's deletion is graceful. Admission, defaults and authorization are not
here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, cast

import attrs
import trio

from tests.kube_client.scripted_patches import patched
from trikubelet.api import (
    KubernetesObject,
    ObjectMeta,
    Pod,
    ServiceAccount,
    TokenRequest,
    TokenRequestStatus,
    from_dict,
    to_dict,
)
from trikubelet.clock import TrioClock, WallClock
from trikubelet.kube_client import types
from trikubelet.kube_client.errors import ApiError, ApiStatusError, ApiUnreachable
from trikubelet.kube_client.health import ConnectionHealth
from trikubelet.kube_client.types import (
    INITIAL_EVENTS_END,
    Listing,
    PatchType,
    RateLimit,
    Resource,
    S,
    T,
    Undecodable,
    Urgency,
    WatchEvent,
    WatchEventType,
)

RESOURCES: Final[dict[type[KubernetesObject], Resource[Any]]] = {
    value.cls: value for value in vars(types).values() if isinstance(value, Resource)
}
FIELDS: Final[dict[str, Callable[[Any], str]]] = {
    "metadata.name": lambda obj: obj.metadata.name,
    "metadata.namespace": lambda obj: obj.metadata.namespace,
    "spec.nodeName": lambda obj: obj.spec.node_name,
    "spec.driver": lambda obj: obj.spec.driver,
    "spec.clusterIP": lambda obj: obj.spec.cluster_ip,
    "status.phase": lambda obj: obj.status.phase,
}
TERMINAL: Final = ("Succeeded", "Failed")


def status_error(
    code: int, reason: str = "", message: str = "", *, retry_after: float | None = None, request: str = "TEST /"
) -> ApiStatusError:
    """A refusal to script."""
    return ApiStatusError(request, code, reason, message, retry_after=retry_after)


def lost(*, sent: bool = True) -> ApiUnreachable:
    """A lost connection to script."""
    return ApiUnreachable("TEST /", "connection reset by peer", sent)


@attrs.frozen
class Call:
    """One call that was made, failed ones included."""

    verb: str
    """get, list, watch, create, update, patch, delete, deletecollection, text."""
    resource: Resource[Any] | None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    body: Any = None
    """The object of a create or update, the body of a patch, the UID precondition of a delete."""
    urgency: Urgency = Urgency.ORDINARY
    options: Mapping[str, Any] = attrs.field(factory=dict)
    at: float = 0.0

    def __str__(self) -> str:
        path = self.resource.path(self.namespace, self.name, self.subresource) if self.resource else self.name
        return f"{self.verb.upper()} {path}"


@attrs.define
class _Fault:
    verb: str
    resource: Resource[Any] | None
    error: ApiError | Callable[[Call], ApiError | None] | trio.Event
    times: float
    after: bool

    def concerns(self, call: Call, *, after: bool) -> bool:
        same = self.verb in ("", call.verb) and self.resource in (None, call.resource)
        return same and self.after == after and self.times > 0


@attrs.frozen
class _Change:
    version: int
    resource: Resource[Any]
    old: KubernetesObject | None
    new: KubernetesObject | Undecodable | None
    """With a deletion None; `gone` is then the last version."""
    gone: KubernetesObject | None = None


@attrs.define(eq=False)
class _Watch:
    resource: Resource[Any]
    matches: Callable[[KubernetesObject], bool]
    send: trio.MemorySendChannel[WatchEvent[Any] | ApiError | None]

    def offer(self, change: _Change) -> None:
        if change.resource == self.resource and (event := _event_of(change, self.matches)) is not None:
            self.send.send_nowait(event)


class ScriptedHealth(ConnectionHealth):
    """Logs nothing: tests count the lines of what they test."""

    def answered(self) -> None:
        if not self._reachable:
            self._reachable = True
            self._wake()
            self.changes.send(True)

    def lost(self, cause: str) -> None:
        if self._reachable:
            self._reachable = False
            self.changes.send(False)


@attrs.define(eq=False)
class _Server:
    clock: WallClock
    objects: dict[tuple[str, str, str], KubernetesObject] = attrs.field(factory=dict)
    version: int = 1000
    compacted: int = 1000
    uids: int = 0
    history: list[_Change] = attrs.field(factory=list)
    watches: list[_Watch] = attrs.field(factory=list)
    faults: list[_Fault] = attrs.field(factory=list)
    calls: list[Call] = attrs.field(factory=list)
    tokens: int = 0
    away: bool = False
    watch_lists: bool = True
    latency: float = 0.0

    def store(self, resource: Resource[Any], obj: KubernetesObject | None, key: tuple[str, str, str]) -> Any:
        self.version += 1
        old = self.objects.pop(key, None)
        if obj is not None:
            obj = _with_metadata(obj, resource_version=str(self.version))
            self.objects[key] = obj
        gone = None if old is None else _with_metadata(old, resource_version=str(self.version))
        self.tell(_Change(self.version, resource, old, obj, gone))
        return obj

    def tell(self, change: _Change) -> None:
        self.history.append(change)
        for watch in tuple(self.watches):
            watch.offer(change)

    def new_uid(self) -> str:
        self.uids += 1
        return f"00000000-0000-4000-8000-{self.uids:012d}"


class ScriptedClient:
    """See the module's text. `timeout` and `limit` are those of a `view`."""

    def __init__(self, objects: Iterable[KubernetesObject] = (), *, clock: WallClock | None = None) -> None:
        self._server = _Server(clock or TrioClock())
        self.health = ScriptedHealth("scripted")
        self.timeout = 10.0
        self.limit: RateLimit | None = None
        for obj in objects:
            self.put(obj)

    # What a test does.

    @property
    def calls(self) -> list[Call]:
        return self._server.calls

    def called(self, verb: str, resource: Resource[Any] | None = None) -> list[Call]:
        """The calls of one verb, to one resource."""
        return [call for call in self.calls if call.verb == verb and resource in (None, call.resource)]

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._server.watches)

    def put(self, obj: Any) -> Any:
        """Create or replace an object as it is (status and UID too) and return the server's version of it."""
        resource = RESOURCES[type(obj)]
        old = self._server.objects.get(_key(resource, obj.metadata.namespace, obj.metadata.name))
        uid = obj.metadata.uid or (old.metadata.uid if old is not None else self._server.new_uid())
        created = obj.metadata.creation_timestamp or (old.metadata.creation_timestamp if old is not None else None)
        obj = _with_metadata(obj, uid=uid, creation_timestamp=created)
        return self._server.store(resource, obj, _key(resource, obj.metadata.namespace, obj.metadata.name))

    def remove(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """Take an object away at once."""
        self._server.store(resource, None, _key(resource, namespace, name))

    def stored(self, resource: Resource[T], name: str, namespace: str = "") -> T | None:
        return cast("T | None", self._server.objects.get(_key(resource, namespace, name)))

    def all_of(self, resource: Resource[T]) -> Sequence[T]:
        """The server's copies of all objects of a resource."""
        return cast("Sequence[T]", self._matching(resource, lambda _: True))

    def send_undecodable(self, resource: Resource[Any], undecodable: Undecodable) -> None:
        """Watches tell of an object that nobody can read. Lists do not."""
        self._server.version += 1
        metadata = attrs.evolve(undecodable.metadata, resource_version=str(self._server.version))
        change = _Change(self._server.version, resource, None, attrs.evolve(undecodable, metadata=metadata))
        self._server.tell(change)

    def bookmark(self) -> None:
        """Tell all watches the newest version."""
        self._server.version += 1
        for watch in self._server.watches:
            watch.send.send_nowait(_bookmark(watch.resource, self._server.version))

    def fail(
        self,
        verb: str,
        resource: Resource[Any] | None,
        error: ApiError | Callable[[Call], ApiError | None],
        *,
        times: float = 1,
        after: bool = False,
    ) -> None:
        """Fail the next `times` calls (math.inf: all) of a verb ("": any). A function may let a call pass with None."""
        self._server.faults.append(_Fault(verb, resource, error, times, after))

    def hold(self, verb: str, resource: Resource[Any] | None, *, after: bool = False) -> trio.Event:
        """Calls wait until the event is set: before they have an effect, or after."""
        gate = trio.Event()
        self._server.faults.append(_Fault(verb, resource, gate, math.inf, after))
        return gate

    def unreachable(self) -> None:
        """Break everything that is open and refuse connections until `back`."""
        self._server.away = True
        self.end_watches(lost())

    def back(self) -> None:
        self._server.away = False

    def heal(self) -> None:
        """Forget scripted failures."""
        self._server.faults.clear()

    def compact(self) -> None:
        """Forget history: watches that are asked for from before now are refused with 410."""
        self._server.version += 1
        self._server.compacted = self._server.version
        self._server.history.clear()

    def end_watches(self, error: ApiError | None = None) -> None:
        """End open watches, as the server does after their time, or with an error."""
        for watch in tuple(self._server.watches):
            watch.send.send_nowait(error)

    def set_latency(self, seconds: float) -> None:
        """How long each call takes."""
        self._server.latency = seconds

    def refuse_watch_lists(self) -> None:
        """Behave as a server that does not know `sendInitialEvents`: it is ignored."""
        self._server.watch_lists = False

    # The ApiClient.

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = "") -> T:
        call = Call("get", resource, namespace, name, options={"resource_version": resource_version})
        return cast("T", await self._carry_out(call, lambda: self._existing(call)))

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listing[T]:
        options = {
            "field_selector": field_selector,
            "resource_version": resource_version,
            "limit": limit,
            "continue_": continue_,
        }

        def page() -> Listing[T]:
            begin = int(continue_ or 0)
            found = self._matching(resource, _selector(namespace, field_selector))
            end = begin + limit if limit and begin + limit < len(found) else len(found)
            more = str(end) if end < len(found) else ""
            return Listing(tuple(cast("Sequence[T]", found[begin:end])), str(self._server.version), more)

        return cast("Listing[T]", await self._carry_out(Call("list", resource, namespace, options=options), page))

    @asynccontextmanager
    async def _watch(self, call: Call, version: str, initial: bool, selector: str) -> AsyncIterator[Any]:
        resource = cast("Resource[Any]", call.resource)
        send, receive = trio.open_memory_channel[WatchEvent[Any] | ApiError | None](math.inf)
        watch = _Watch(resource, _selector(call.namespace, selector), send)
        await self._carry_out(call, lambda: self._begin_watch(call, watch, version, initial))
        try:
            yield _events(receive, call)
        finally:
            if watch in self._server.watches:
                self._server.watches.remove(watch)

    def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        send_initial_events: bool = False,
        timeout: float,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        options = {
            "field_selector": field_selector,
            "resource_version": resource_version,
            "send_initial_events": send_initial_events,
            "timeout": timeout,
        }
        call = Call("watch", resource, namespace, options=options)
        return self._watch(call, resource_version, send_initial_events, field_selector)

    async def create(self, resource: Resource[T], obj: T, *, urgency: Urgency = Urgency.ORDINARY) -> T:
        metadata = obj.metadata
        call = Call("create", resource, metadata.namespace, metadata.name, body=obj, urgency=urgency)

        def creation() -> T:
            uid = self._server.new_uid()
            name = metadata.name or f"{metadata.generate_name}{uid[-5:]}"
            key = _key(resource, metadata.namespace, name)
            if key in self._server.objects:
                raise _refused(call, 409, "AlreadyExists", f'{resource} "{name}" already exists')
            new = _with_metadata(obj, name=name, uid=uid, creation_timestamp=self._server.clock.now(), generation=1)
            return cast("T", self._server.store(resource, new, key))

        return cast("T", await self._carry_out(call, creation))

    async def update(
        self, resource: Resource[T], obj: T, *, subresource: str = "", urgency: Urgency = Urgency.ORDINARY
    ) -> T:
        metadata = obj.metadata
        call = Call("update", resource, metadata.namespace, metadata.name, subresource, obj, urgency)
        return cast("T", await self._carry_out(call, lambda: self._replaced(call, to_dict(obj))))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str,
        patch_type: PatchType,
        body: Mapping[str, Any] | Sequence[Any],
        *,
        subresource: str = "",
        urgency: Urgency = Urgency.ORDINARY,
    ) -> T:
        options = {"patch_type": patch_type}
        call = Call("patch", resource, namespace, name, subresource, copy.deepcopy(body), urgency, options)

        def patching() -> T:
            wanted = patched(to_dict(self._existing(call)), patch_type, body)
            # Only a patch that names a version asks for it: without one the newest is patched.
            return cast("T", self._replaced(call, wanted))

        return cast("T", await self._carry_out(call, patching))

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        grace_period: int | None = None,
        uid: str | None = None,
        urgency: Urgency = Urgency.ORDINARY,
    ) -> None:
        call = Call("delete", resource, namespace, name, "", uid, urgency, {"grace_period": grace_period})
        await self._carry_out(call, lambda: self._deleted(call, grace_period, uid))

    async def delete_collection(self, resource: Resource[T], namespace: str = "", *, field_selector: str) -> None:
        call = Call("deletecollection", resource, namespace, options={"field_selector": field_selector})

        def deletion() -> None:
            for obj in self._matching(resource, _selector(namespace, field_selector)):
                self.remove(resource, obj.metadata.name, obj.metadata.namespace)

        await self._carry_out(call, deletion)

    async def create_subresource(
        self,
        resource: Resource[T],
        name: str,
        namespace: str,
        subresource: str,
        body: S,
        *,
        urgency: Urgency = Urgency.ORDINARY,
    ) -> S:
        call = Call("create", resource, namespace, name, subresource, body, urgency)

        def token() -> S:
            if not isinstance(body, TokenRequest) or resource.cls is not ServiceAccount:
                raise _refused(call, 404, "NotFound", "the server could not find the requested resource")
            self._existing(call)
            self._server.tokens += 1
            seconds = body.spec.expiration_seconds or 3600
            status = TokenRequestStatus(
                token=f"token-{self._server.tokens}",
                expiration_timestamp=self._server.clock.now() + timedelta(seconds=seconds),
            )
            spec = attrs.evolve(body.spec, expiration_seconds=seconds)
            return cast("S", attrs.evolve(body, spec=spec, status=status))

        return cast("S", await self._carry_out(call, token))

    async def get_text(self, path: str) -> str:
        return cast("str", await self._carry_out(Call("text", None, name=path), lambda: "ok"))

    def view(self, *, limit: RateLimit | None, timeout: float) -> ScriptedClient:
        other = copy.copy(self)
        other.limit, other.timeout = limit, timeout
        return other

    def drop_connections(self) -> None:
        self._server.calls.append(Call("drop", None, at=trio.current_time()))
        self.end_watches(lost())

    # How the server does it.

    async def _carry_out(self, call: Call, act: Callable[[], Any]) -> Any:
        server = self._server
        server.calls.append(attrs.evolve(call, at=trio.current_time()))
        with trio.move_on_after(self.timeout):
            await trio.sleep(server.latency)
            try:
                await self._scripted(call, after=False)
                if server.away:
                    raise ApiUnreachable(str(call), "connection refused", sent=False)
                result = act()
                await self._scripted(call, after=True)
            except ApiError as error:
                if isinstance(error, ApiStatusError):
                    self.health.answered()
                else:
                    self.health.lost(str(error))
                raise
            self.health.answered()
            return result
        self.health.lost("no answer in time")
        raise ApiUnreachable(str(call), f"no answer within {self.timeout:g} s", sent=True)

    async def _scripted(self, call: Call, *, after: bool) -> None:
        for fault in self._server.faults:
            if not fault.concerns(call, after=after):
                continue
            if isinstance(fault.error, trio.Event):
                await fault.error.wait()
                continue
            error = fault.error if isinstance(fault.error, ApiError) else fault.error(call)
            if error is not None:
                fault.times -= 1
                raise attrs.evolve(error, request=str(call))

    def _existing(self, call: Call) -> KubernetesObject:
        resource = cast("Resource[Any]", call.resource)
        found = self._server.objects.get(_key(resource, call.namespace, call.name))
        if found is None:
            raise _refused(call, 404, "NotFound", f'{resource} "{call.name}" not found')
        return found

    def _replaced(self, call: Call, document: dict[str, Any]) -> KubernetesObject:
        """Store the document in place of the object, if its preconditions hold; only what `subresource` allows."""
        old = self._existing(call)
        resource = cast("Resource[Any]", call.resource)
        metadata = document.get("metadata", {})
        self._check(call, old, metadata.get("uid"), metadata.get("resourceVersion"))
        before = to_dict(old)
        if call.subresource == "status":
            kept = metadata if resource.plural == "nodes" else before["metadata"]
            document = before | {"metadata": kept, "status": document.get("status", {})}
        elif "status" in before and resource.plural in ("pods", "nodes"):
            document = document | {"status": before["status"]}
        if document | {"metadata": before["metadata"]} == before and metadata == before["metadata"]:
            return old  # nothing changes, no new version
        new = from_dict(resource.cls, document)
        return cast("KubernetesObject", self._server.store(resource, new, _key(resource, call.namespace, call.name)))

    def _check(self, call: Call, old: KubernetesObject, uid: str | None, version: str | None) -> None:
        refusal = f'Operation cannot be fulfilled on {call.resource} "{call.name}": '
        if uid and uid != old.metadata.uid:
            text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.metadata.uid}"
            raise _refused(call, 409, "Conflict", refusal + text)
        if version and version != old.metadata.resource_version:
            text = "the object has been modified; please apply your changes to the latest version and try again"
            raise _refused(call, 409, "Conflict", refusal + text)

    def _deleted(self, call: Call, grace: int | None, uid: str | None) -> None:
        old = self._existing(call)
        resource = cast("Resource[Any]", call.resource)
        self._check(call, old, uid, None)
        key = _key(resource, call.namespace, call.name)
        if isinstance(old, Pod):
            if grace is None:
                grace = old.spec.termination_grace_period_seconds
                grace = 30 if grace is None else grace
            if old.status.phase in TERMINAL or not old.spec.node_name:
                grace = 0
            if grace > 0:
                when = self._server.clock.now() + timedelta(seconds=grace)
                generation = old.metadata.generation + 1
                new = _with_metadata(
                    old, deletion_timestamp=when, deletion_grace_period_seconds=grace, generation=generation
                )
                self._server.store(resource, new, key)
                return
        self._server.store(resource, None, key)

    def _matching(
        self, resource: Resource[Any], matches: Callable[[KubernetesObject], bool]
    ) -> Sequence[KubernetesObject]:
        found = (obj for key, obj in sorted(self._server.objects.items()) if key[0] == str(resource))
        return [obj for obj in found if matches(obj)]

    def _begin_watch(self, call: Call, watch: _Watch, version: str, initial: bool) -> None:
        server = self._server
        if initial and server.watch_lists:
            for obj in self._matching(watch.resource, watch.matches):
                watch.send.send_nowait(WatchEvent("ADDED", obj))
            watch.send.send_nowait(_bookmark(watch.resource, server.version, {INITIAL_EVENTS_END: "true"}))
        elif version and int(version) < server.compacted:
            message = f"too old resource version: {version} ({server.compacted})"
            raise _refused(call, 410, "Expired", message)
        else:
            for change in server.history:
                if change.version > int(version or server.version):
                    watch.offer(change)
        server.watches.append(watch)


async def _events(
    receive: trio.MemoryReceiveChannel[WatchEvent[Any] | ApiError | None], call: Call
) -> AsyncIterator[WatchEvent[Any]]:
    async for event in receive:
        if event is None:
            return
        if isinstance(event, ApiError):
            raise attrs.evolve(event, request=str(call))
        yield event


def _event_of(change: _Change, matches: Callable[[KubernetesObject], bool]) -> WatchEvent[Any] | None:
    """What a watch with a selector sees of a change: an object that no longer matches is gone for it."""
    if isinstance(change.new, Undecodable):
        return WatchEvent("MODIFIED", change.new)
    was = change.old is not None and matches(change.old)
    if change.new is not None and matches(change.new):
        kind: WatchEventType = "MODIFIED" if was else "ADDED"
        return WatchEvent(kind, change.new)
    return WatchEvent("DELETED", change.gone) if was and change.gone is not None else None


def _bookmark(resource: Resource[Any], version: int, annotations: dict[str, str] | None = None) -> WatchEvent[Any]:
    metadata = ObjectMeta(resource_version=str(version), annotations=annotations or {})
    return WatchEvent("BOOKMARK", resource.cls(metadata=metadata))


def _selector(namespace: str, selector: str) -> Callable[[KubernetesObject], bool]:
    """The selectors that a node uses: `=`, `==` and `!=`, all of them true. Raises KeyError for unknown fields."""
    conditions = []
    for term in filter(None, selector.split(",")):
        name, _, value = term.partition("!=" if "!=" in term else "=")
        conditions.append((FIELDS[name], value.removeprefix("="), "!=" not in term))

    def matches(obj: KubernetesObject) -> bool:
        if namespace and obj.metadata.namespace != namespace:
            return False
        return all((field(obj) == value) is wanted for field, value, wanted in conditions)

    return matches


def _key(resource: Resource[Any], namespace: str, name: str) -> tuple[str, str, str]:
    resource.path(namespace, name)  # raises ValueError for what cannot be asked
    return (str(resource), namespace, name)


def _with_metadata(obj: Any, **changes: Any) -> Any:
    return attrs.evolve(obj, metadata=attrs.evolve(obj.metadata, **changes))


def _refused(call: Call, code: int, reason: str, message: str) -> ApiStatusError:
    return ApiStatusError(str(call), code, reason, message)
