"""Copies of ConfigMaps and Secrets by a watch for each object: the strategy `Watch`.

An agent may not watch all Secrets of a namespace, only those that its pods refer to, so there is one watch for each,
and there may be thousands. One costs a task, a stream of a shared connection and a few kilobytes, and no work while
nothing happens. It begins with the first pod that refers to the object and ends with the last. It also ends when there
is nothing more to learn: when the object is immutable, and when no volume shows it and it was not read for minutes.
The next read then begins a new one.

The first read waits a moment for the first answer (kubelet: `watch_based_manager`). When none comes, the last known
version is used if there is one: a container that crashes starts again as it was. The server refuses a watch until it
has seen that the pod is this node's; the watch tries again by itself, and `changes` has the object then. What
a reader gets from its own read is not sent to `changes` too: a volume would be written, and at once checked again.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define
from trikubelet.kube_client.object_cache import RESOURCES, SINGULAR, fetch, not_found
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random

    from trikubelet.kube_client.pod_references import Key
    from trikubelet.kube_client.types import ApiClient

FIRST_ANSWER_SECONDS: Final = 1.0
"""How long a read waits for a watch that has not told anything yet."""
WATCH_SECONDS: Final = (1800.0, 3600.0)
"""How long a watch is asked to last: longer than others, since there are many."""
LEAST_IDLE_SECONDS: Final = 60.0
IDLE_SYNCS: Final = 5
"""A watch that was not read for this many periods of pod syncs is ended."""

log = get_logger("cluster")


@define(eq=False)
class _Watched:
    """One object that pods refer to."""

    store: Store[Any]
    """What the present watch told."""
    users: dict[str, bool] = attrs.field(factory=dict)
    """UIDs of pods, and whether a volume of theirs shows the object."""
    read_at: float = float("-inf")
    last: Any = attrs.field(default=None, repr=False)
    """What an earlier watch told last; None: there was no such object, or no watch."""
    reflector: Reflector[Any] | None = None
    scope: trio.CancelScope | None = None
    """Of the present watch, None when there is none."""
    final: bool = False
    """The object is immutable: it does not change any more."""
    outdated: bool = False
    """Somebody may have had an answer, or none, that is older than what the present watch tells first."""


class ObjectWatches:
    """`Copies` that are kept current while pods refer to them."""

    def __init__(self, client: ApiClient, *, rng: random.Random, sync_frequency: float) -> None:
        """`sync_frequency`: seconds between two syncs of a pod that does not change."""
        self._client = client
        self._rng = rng
        self._idle_seconds = max(LEAST_IDLE_SECONDS, IDLE_SYNCS * sync_frequency)
        self._watched: dict[Key, _Watched] = {}
        self.changes: Broadcast[Key] = Broadcast()
        self._start, self._begun = trio.open_memory_channel[tuple[Reflector[Any], trio.CancelScope]](math.inf)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; never fails. `started` is called at once."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._end_idle)
            task_status.started()
            await supervise(self._begin_to_follow, nursery)

    async def _begin_to_follow(self, nursery: trio.Nursery) -> None:
        async for reflector, scope in self._begun:
            nursery.start_soon(_follow, reflector, scope)
            del reflector, scope

    @property
    def kept(self) -> int:
        """How many objects are referred to."""
        return len(self._watched)

    @property
    def watching(self) -> int:
        """How many of them are watched at present."""
        return sum(watched.scope is not None for watched in self._watched.values())

    def refer(self, key: Key, uid: str, *, lasting: bool) -> None:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(self._new_store(key), read_at=trio.current_time())
            self._begin(key, watched)
        elif uid not in watched.users and not watched.store.synced and _problem(watched):
            # What the server refused may be allowed since this pod is here: not after a pause.
            self._end(watched)
            self._begin(key, watched)
        watched.users[uid] = lasting
        if lasting and watched.scope is None and not watched.final:
            self._begin(key, watched)

    def release(self, key: Key, uid: str) -> None:
        watched = self._watched.get(key)
        if watched is not None:
            watched.users.pop(uid, None)
            if not watched.users:
                self._end(watched)
                del self._watched[key]

    async def get(self, key: Key) -> Any:
        """Cancellable; nothing is left behind."""
        watched = self._watched.get(key)
        if watched is None:
            return await fetch(self._client, key)
        watched.read_at = trio.current_time()
        if watched.scope is None and not watched.final:
            self._begin(key, watched)
        if not watched.store.synced:
            with trio.move_on_after(FIRST_ANSWER_SECONDS):
                await watched.store.wait_synced()
            watched.outdated |= not watched.store.synced
        return _known(key, watched)

    def _begin(self, key: Key, watched: _Watched) -> None:
        plural, namespace, name = key
        if watched.store.synced:
            watched.outdated = True
            watched.last = watched.store.get(name, namespace)
            watched.store = self._new_store(key)
        watched.store.subscribe(partial(self._object_changed, key, watched))
        watched.reflector = Reflector(
            self._client,
            RESOURCES[plural],
            watched.store,
            rng=self._rng,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            watch_seconds=WATCH_SECONDS,
            one_of_many=f"{plural} {namespace}/{name}",
        )
        watched.scope = trio.CancelScope()
        self._start.send_nowait((watched.reflector, watched.scope))

    def _end(self, watched: _Watched) -> None:
        if watched.scope is not None:
            watched.scope.cancel()
        watched.scope = watched.reflector = None

    async def _end_idle(self) -> None:
        while True:
            await trio.sleep(LEAST_IDLE_SECONDS)
            read_before = trio.current_time() - self._idle_seconds
            for watched in self._watched.values():
                unused = watched.read_at < read_before and not any(watched.users.values())
                # One without any answer yet goes on: its request would have been for nothing.
                if unused and watched.store.synced:
                    self._end(watched)

    def _object_changed(self, key: Key, watched: _Watched, old: Any, new: Any) -> None:
        if new is not None and new.immutable:
            watched.final = True
            self._end(watched)
        if not (watched.store.synced or watched.outdated):
            return  # all readers so far wait for this answer
        self.changes.send(key)

    def _new_store(self, key: Key) -> Store[Any]:
        return Store(RESOURCES[key[0]])


def _problem(watched: _Watched) -> str:
    """Why the present watch has told nothing; empty when that is not known, or there is no watch."""
    return "" if watched.reflector is None else watched.reflector.statistics().problem


async def _follow(reflector: Reflector[Any], scope: trio.CancelScope) -> None:
    with scope:
        await supervise(reflector.run)


def _known(key: Key, watched: _Watched) -> Any:
    """What there is to answer with; raises ObjectError."""
    plural, namespace, name = key
    store = watched.store
    if store.synced:
        found = store.get(name, namespace)
        if found is None and store.undecodable():
            raise ObjectError(f'{SINGULAR[plural]} "{name}" cannot be read by this agent', "unavailable")
        if found is None:
            raise not_found(key)
        return found
    problem = _problem(watched)
    if watched.last is not None:
        log.warning("using an old object", objects=plural, name=name, namespace=namespace, problem=problem)
        return watched.last
    why = f" ({problem})" if problem else ""
    raise ObjectError(
        f"failed to sync {SINGULAR[plural]} cache: timed out waiting for the condition{why}", "unavailable"
    )
