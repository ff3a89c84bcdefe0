"""Keeps a store current with what an API server has, for ever.

What to ask for is decided in `reflector_state`; here the requests are made. While the server cannot be reached the
store keeps its last state, and the reflector tries again after a while, or at once when some other call of this client
was answered: what a node missed it should learn with the first sign of life. All nodes of a cluster do so within the
seconds in which their leases are renewed, so they do not come all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError, ApiUnreachable, CredentialsError
from trikubelet.kube_client.recovery import until_recovery
from trikubelet.kube_client.reflector_state import (
    INITIAL_EVENTS_SILENCE,
    WATCH_SECONDS,
    Ended,
    Outcome,
    Pauses,
    Position,
    Request,
    Silent,
    Step,
    after,
    listed,
    next_request,
    seen,
)
from trikubelet.kube_client.types import T, Undecodable
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.types import ApiClient, Listing, Resource, WatchEvent

PAGE: Final = 500
EVENTS_AT_ONCE: Final = 10
"""Events of a watch that are handled before other tasks get their turn."""

E = TypeVar("E")

log = get_logger("cluster")


@frozen
class ReflectorStatistics:
    """What a reflector has done."""

    lists: int
    """Whole states that were read, by a list or by a watch."""
    watches: int
    events: int
    failures: int
    position: Position
    problem: str
    """Why the store is not current; empty when it is."""


class Reflector(Generic[T]):
    """Follows the objects of a resource that a namespace and a field selector pick."""

    __slots__ = (
        "_client",
        "_events",
        "_failures",
        "_lists",
        "_name",
        "_namespace",
        "_one_of_many",
        "_page",
        "_pauses",
        "_position",
        "_problem",
        "_resource",
        "_rng",
        "_selector",
        "_store",
        "_watch_seconds",
        "_watches",
    )

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[T],
        store: Store[T],
        *,
        rng: random.Random,
        namespace: str = "",
        field_selector: str = "",
        page: int = PAGE,
        watch_seconds: tuple[float, float] = WATCH_SECONDS,
        one_of_many: str = "",
    ) -> None:
        """Without a namespace all are followed. A watch is asked to last between `watch_seconds`.

        Most have defaults, so nine arguments are no burden: a caller gives four or five.

        `one_of_many` names a reflector of which a node has hundreds: one more or less is not logged.
        """
        self._client = client
        self._resource = resource
        self._store = store
        self._rng = rng
        self._namespace = namespace
        self._selector = field_selector
        self._page = page
        self._watch_seconds = watch_seconds
        self._one_of_many = bool(one_of_many)
        self._name = one_of_many or str(resource)
        self._position = Position()
        self._pauses = Pauses()
        self._lists = self._watches = self._events = self._failures = 0
        self._problem = ""

    def statistics(self) -> ReflectorStatistics:
        return ReflectorStatistics(
            self._lists, self._watches, self._events, self._failures, self._position, self._problem
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled; never fails. `started` is called at once, before anything was read."""
        task_status.started()
        self._position = Position()  # begun again, it reads everything anew
        while True:
            recoveries = self._client.health.recoveries
            request = next_request(self._position)
            outcome = await self._attempt(request)
            if outcome is None:
                continue
            step = Step.WATCH if self._position.current else request.step
            reaction = after(self._position, step, outcome)
            self._position = reaction.position
            if isinstance(outcome, ApiError):
                self._record(outcome, asks_otherwise=reaction.position.list_next and not reaction.wait)
            if reaction.wait:
                lost = isinstance(outcome, ApiUnreachable | CredentialsError)
                await self._pause(reaction.at_least, recoveries, unreachable=lost)
            else:
                await trio.lowlevel.checkpoint()

    async def _attempt(self, request: Request) -> Outcome | None:
        """Make one request and follow it to its end; None when it did all it was made for."""
        try:
            if request.step is Step.LIST:
                await self._list(request)
                return None
            return await self._watch(request)
        except ApiError as error:
            return error

    async def _list(self, request: Request) -> None:
        items: list[T] = []
        undecodable: list[Undecodable] = []
        continue_ = ""
        version = request.resource_version
        while True:
            page: Listing[T] = await self._client.list(
                self._resource,
                self._namespace,
                field_selector=self._selector,
                # A page that continues has the version of the first one in its token.
                resource_version="" if continue_ else version,
                limit=self._page if request.paged else 0,
                continue_=continue_,
            )
            items += page.items
            undecodable += page.undecodable
            if not page.continue_:
                break
            continue_ = page.continue_
        self._take_all(items, undecodable, page.resource_version)

    def _take_all(self, items: list[T], undecodable: list[Undecodable], version: str) -> None:
        if not self._lists and not self._one_of_many:
            log.info("objects read", objects=self._name, count=len(items))
        self._lists += 1
        self._position = listed(self._position, version)
        self._store.replace(items, undecodable, version)
        self._record(None)

    async def _watch(self, request: Request) -> Outcome:
        begin = trio.current_time()
        events_before = self._events
        async with self._client.watch(
            self._resource,
            self._namespace,
            field_selector=self._selector,
            resource_version=request.resource_version,
            send_initial_events=request.step is Step.WATCH_LIST,
            timeout=self._rng.uniform(*self._watch_seconds),
        ) as events:
            self._watches += 1
            if request.step is Step.WATCH_LIST:
                outcome = await self._initial_events(events)
                if outcome is not None:
                    return outcome
            else:
                self._record(None)
            try:
                await self._follow(events)
            except ApiUnreachable as error:
                # Connections end for many reasons that a new one is not affected by.
                log.debug("a watch was lost", objects=self._name, problem=str(error))
        return Ended(trio.current_time() - begin, self._events - events_before)

    async def _initial_events(self, events: AsyncIterator[WatchEvent[T]]) -> Outcome | None:
        """Collect the events of what is there; None once the store shows it."""
        begin = trio.current_time()
        found: dict[tuple[str, str], T | Undecodable] = {}
        with trio.move_on_after(INITIAL_EVENTS_SILENCE) as silence:
            async for event in events:
                silence.deadline = trio.current_time() + INITIAL_EVENTS_SILENCE
                self._events += 1
                metadata = event.object.metadata
                if event.initial_events_end:
                    items = [item for item in found.values() if not isinstance(item, Undecodable)]
                    undecodable = [item for item in found.values() if isinstance(item, Undecodable)]
                    self._take_all(items, undecodable, metadata.resource_version)
                    return None
                if event.type == "DELETED":
                    found.pop((metadata.namespace, metadata.name), None)
                elif event.type != "BOOKMARK":
                    found[metadata.namespace, metadata.name] = event.object
                await self._give_way()
            return Ended(trio.current_time() - begin, len(found))
        log.info("the API server does not begin watches with what is there; objects are listed", objects=self._name)
        return Silent()

    async def _follow(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            self._events += 1
            self._position = seen(self._position, event.object.metadata.resource_version)
            self._store.apply(event)
            await self._give_way()

    async def _give_way(self) -> None:
        if self._events % EVENTS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()

    async def _pause(self, at_least: float, recoveries: int, *, unreachable: bool) -> None:
        self._pauses, seconds = self._pauses.failed(trio.current_time(), self._rng.random())
        if unreachable:
            await until_recovery(self._client.health, recoveries, seconds)
        else:
            await trio.sleep(max(seconds, at_least))

    def _record(self, error: ApiError | None, *, asks_otherwise: bool = False) -> None:
        """Tell of the first failure in a row, and of the end of the row. `asks_otherwise`: a list may succeed."""
        if error is None:
            if self._problem and not self._one_of_many:
                log.info("objects are followed again", objects=self._name)
            self._problem = ""
            return
        if isinstance(error, ApiStatusError) and error.expired:
            log.info("too much has happened; reading everything anew", objects=self._name, problem=str(error))
            return
        if asks_otherwise:
            log.debug("a watch list was refused; objects are listed", objects=self._name, problem=str(error))
            return
        self._failures += 1
        # That the server is away, those reflectors say of which there is one.
        quiet = self._problem or (self._one_of_many and not isinstance(error, ApiStatusError))
        emit = log.debug if quiet else log.warning
        self._problem = str(error)
        emit("objects cannot be followed; keeping the last state", objects=self._name, problem=self._problem)
