"""The client of an API server: calls that are made, answered and decoded; watches; one set of connections for all.

The story of a call: it waits for the client's own rate limit, unless it is urgent. It is made, perhaps more than once
(`calls.py`), over one of the connections that all share (`transport.py`, `http2.py`, `http1.py`). Its answer is decoded
(`decoding.py`), or read line by line when it is a watch (`watching.py`).

Requests and answers are JSON. (The kubelet's default is protobuf, which is smaller and would need the schema of every
class and a decoder that keeps unknown fields.)
"""

from __future__ import annotations

import json
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from trikubelet.api import DeleteOptions, KubernetesObject, Preconditions, to_dict
from trikubelet.kube_client.calls import Answer, Call, Core
from trikubelet.kube_client.decoding import decode_answer, decode_item, parse_object
from trikubelet.kube_client.errors import ApiAnswerError, ApiStatusError
from trikubelet.kube_client.rate_limit import RateLimiter
from trikubelet.kube_client.types import (
    Listing,
    PatchType,
    RateLimit,
    Resource,
    Undecodable,
    Urgency,
    WatchEvent,
)
from trikubelet.kube_client.watching import OpenWatch
from trikubelet.scopes import off_loop, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from trikubelet.kube_client.access import Access
    from trikubelet.kube_client.calls import WrapTransport
    from trikubelet.kube_client.health import ConnectionHealth
    from trikubelet.kube_client.metrics import RequestMetrics
    from trikubelet.kube_client.transport import TransportStatistics

T = TypeVar("T", bound=KubernetesObject)
S = TypeVar("S", bound=KubernetesObject)

DEFAULT_TIMEOUT: Final = 30.0
_BATCH: Final = 10
_LIST_PARSING: Final = 16
"""By what parsing a list, whose objects are decoded later, is quicker than decoding an object of its size."""
"""Objects of a list that are decoded before other tasks have their turn."""


class HttpApiClient:
    """An `ApiClient` on one API server. Use `open_client`, or `run` it."""

    def __init__(
        self,
        access: Access,
        *,
        limit: RateLimit | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        rng: random.Random | None = None,
        wrap: WrapTransport | None = None,
        watch_lists: bool = True,
    ) -> None:
        """See `open_client`."""
        self._watch_lists = watch_lists
        self._core = Core(access, random.Random() if rng is None else rng, wrap)
        self._limiter = RateLimiter(limit)
        self._timeout = timeout
        self._decoding = trio.CapacityLimiter(1)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled. Connects with the first call; calls fail while this does not run."""
        await self._core.transport.run(task_status=task_status)

    @property
    def health(self) -> ConnectionHealth:
        return self._core.health

    @property
    def metrics(self) -> RequestMetrics:
        """What was counted of the requests of all views."""
        return self._core.metrics

    def statistics(self) -> TransportStatistics:
        """What a debugger wants to see of the connections."""
        return self._core.transport.statistics()

    def view(self, *, limit: RateLimit | None, timeout: float) -> HttpApiClient:
        """A client on the same connections, with a limit and a deadline of its own."""
        other = HttpApiClient.__new__(HttpApiClient)
        other._core = self._core
        other._watch_lists = self._watch_lists
        other._limiter = RateLimiter(limit)
        other._timeout = timeout
        other._decoding = self._decoding
        return other

    def drop_connections(self) -> None:
        """Close every connection: calls and watches in flight end as ApiUnreachable, the next call connects anew."""
        self._core.transport.drop_connections()

    # Reading.

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = "") -> T:
        """The newest object, or one at least as new as `resource_version`."""
        query = _query(resourceVersion=resource_version)
        return await self._object(resource.cls, Call("GET", resource.path(namespace, _named(resource, name)), query))

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
        """One page of at most `limit` objects (0: all of them in one)."""
        query = _query(
            fieldSelector=field_selector,
            labelSelector=label_selector,
            resourceVersion=resource_version,
            limit=str(limit) if limit else "",
            **{"continue": continue_},
        )
        call = Call("GET", resource.path(namespace), query)
        body = await self._perform(call)
        data = await off_loop(self._decoding, len(body) // _LIST_PARSING, parse_object, body, str(call))
        items, metadata = data.get("items"), data.get("metadata")
        if not isinstance(items, list | None) or not isinstance(metadata, dict):
            raise ApiAnswerError(str(call), "expected a list of objects with metadata")
        readable: list[T] = []
        undecodable: list[Undecodable] = []
        for index, item in enumerate(items or ()):
            if index % _BATCH == _BATCH - 1:
                await trio.lowlevel.checkpoint()
            decoded = decode_item(resource.cls, item, self._core.known)
            if isinstance(decoded, Undecodable):
                undecodable.append(decoded)
            else:
                readable.append(decoded)
        version, rest = metadata.get("resourceVersion"), metadata.get("continue")
        return Listing(tuple(readable), str(version or ""), str(rest or ""), tuple(undecodable))

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
        """Changes since `resource_version`, with bookmarks; see `ApiClient.watch`."""
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            fieldSelector=field_selector,
            labelSelector=label_selector,
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, int(timeout))),
            sendInitialEvents="true" if send_initial_events else "",
            resourceVersionMatch="NotOlderThan" if send_initial_events else "",
        )
        call = Call("GET", resource.path(namespace), query)
        return self._watch(resource, call, timeout, refused=send_initial_events and not self._watch_lists)

    async def get_text(self, path: str) -> str:
        """What the server says at a path that is no resource."""
        body = await self._perform(Call("GET", path, {}, accept="*/*"))
        return body.decode("utf-8", "replace")

    # Writing.

    async def create(self, resource: Resource[T], obj: T, *, urgency: Urgency = Urgency.ORDINARY) -> T:
        """Create the object, in the namespace of its metadata; the server's version of it."""
        path = resource.path(_namespace(resource, obj))
        return await self._object(resource.cls, Call("POST", path, {}, _json(to_dict(obj)), urgency=urgency))

    async def update(
        self, resource: Resource[T], obj: T, *, subresource: str = "", urgency: Urgency = Urgency.ORDINARY
    ) -> T:
        """Replace the object; with a resourceVersion in its metadata only that version of it."""
        path = resource.path(_namespace(resource, obj), _named(resource, obj.metadata.name), subresource)
        return await self._object(resource.cls, Call("PUT", path, {}, _json(to_dict(obj)), urgency=urgency))

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
        """Change parts of the object."""
        path = resource.path(namespace, _named(resource, name), subresource)
        call = Call("PATCH", path, {}, _json(body), content_type=patch_type.value, urgency=urgency)
        return await self._object(resource.cls, call)

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
        """Ask for the object's deletion, if it is the one with `uid`."""
        options = DeleteOptions(
            grace_period_seconds=grace_period, preconditions=None if uid is None else Preconditions(uid=uid)
        )
        path = resource.path(namespace, _named(resource, name))
        await self._perform(Call("DELETE", path, {}, _json(to_dict(options)), urgency=urgency))

    async def delete_collection(self, resource: Resource[T], namespace: str = "", *, field_selector: str) -> None:
        """Ask for the deletion of all objects that the selector chooses. Raises ValueError without one."""
        if not field_selector:
            raise ValueError(f"expected a selector: without one, all of the {resource} would be deleted")
        query = _query(fieldSelector=field_selector)
        await self._perform(Call("DELETE", resource.path(namespace), query, _json(to_dict(DeleteOptions()))))

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
        """Ask something of an object and return the answer."""
        path = resource.path(namespace, _named(resource, name), subresource)
        return await self._object(type(body), Call("POST", path, {}, _json(to_dict(body)), urgency=urgency))

    # How a call is made.

    async def _answer(self, call: Call, *, lasting: bool) -> Answer:
        # The wait for the client's own rate limit is not part of the deadline: the server is not late then.
        began = trio.current_time()
        await self._limiter.admit(call.urgency, str(call))
        self._core.metrics.waits.observe((call.method,), trio.current_time() - began)
        return await self._core.answer(call, self._timeout, lasting=lasting)

    async def _object(self, cls: type[T], call: Call) -> T:
        body = await self._perform(call)
        return await off_loop(self._decoding, len(body), decode_answer, cls, body, str(call), self._core.known)

    async def _perform(self, call: Call) -> bytes:
        """Make the call; the body of its answer. Raises ApiError."""
        answer = await self._answer(call, lasting=False)
        return answer.content

    @asynccontextmanager
    async def _watch(
        self, resource: Resource[T], call: Call, timeout: float, *, refused: bool
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        if refused:
            raise ApiStatusError(str(call), 400, "BadRequest", "the feature gate WatchListClient is off")
        answer = await self._answer(call, lasting=True)
        try:
            yield OpenWatch(
                resource, str(call), answer.reply, answer.exchange, self._core.health, timeout, self._core.known
            )
        finally:
            await answer.reply.aclose()


@asynccontextmanager
async def open_client(
    access: Access,
    *,
    limit: RateLimit | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    rng: random.Random | None = None,
    wrap: WrapTransport | None = None,
    watch_lists: bool = True,
) -> AsyncIterator[HttpApiClient]:
    """A client that runs within the context. `timeout` in seconds for each call; no `limit`: no limit. `wrap` makes
    what calls go through on their way to the transport. Without `watch_lists`, watches that begin with all that is
    there are refused as servers do that do not know them."""
    client = HttpApiClient(access, limit=limit, timeout=timeout, rng=rng, wrap=wrap, watch_lists=watch_lists)
    async with running(client.run):
        yield client


def _json(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def _query(**fields: str) -> Mapping[str, str]:
    return {name: value for name, value in fields.items() if value}


def _named(resource: Resource[T], name: str) -> str:
    """A name, which must not be empty: the path without one means all objects, also to a DELETE."""
    if not name:
        raise ValueError(f"expected the name of one of the {resource}")
    return name


def _namespace(resource: Resource[T], obj: T) -> str:
    namespace = obj.metadata.namespace
    if resource.namespaced and not namespace:
        raise ValueError(f"expected a namespace in the metadata of {obj.metadata.name!r}, one of the {resource}")
    return namespace if resource.namespaced else ""
