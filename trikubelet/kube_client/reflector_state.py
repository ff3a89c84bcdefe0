"""What a reflector asks an API server next, and when. Pure.

A copy of objects is made in one of two ways. The better one is a watch that begins with everything there is (a *watch
list*): one request, and the server sends from its memory. A server that refuses it, or does not understand it and stays
silent, is asked for a list. Either way a watch follows from the version that was reached, again and again, for as long
as the server can go on from there. Only when it cannot (410: too much has happened) everything is read anew.

Versions go only forward: a list may be served from a memory that lags behind, so every one but the first asks for a
state at least as new as what is known. The exception is a server that does not know that version, since it was restored
from a backup or has forgotten; it is asked for its newest state, whatever that is.

Facts from client-go's reflector. It reads everything anew after most failures of a watch; here only after those that
say that something may be missed.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError

SHORT_WATCH: Final = 1.0
"""Seconds. A watch that ends earlier, without an event, did not work."""
INITIAL_EVENTS_SILENCE: Final = 10.0
"""Seconds without an event, while the end of the initial ones is awaited, after which the server is thought not to
know of watch lists."""
WATCH_SECONDS: Final = (300.0, 600.0)
"""How long a watch is asked to last: between these, so that not all watches of a cluster begin anew at once."""


class Step(enum.Enum):
    """One request."""

    WATCH_LIST = "watch list"
    LIST = "list"
    WATCH = "watch"


@frozen
class Ended:
    """A watch ended: by the server, as it may at any time, or with its connection."""

    seconds: float
    events: int

    @property
    def short(self) -> bool:
        return self.seconds < SHORT_WATCH and self.events == 0


@frozen
class Silent:
    """A watch list did not say that it had told everything."""


Outcome = ApiError | Ended | Silent


@frozen
class Position:
    """Where the copy stands."""

    version: str = ""
    """The copy is as new as this; empty before the first list."""
    current: bool = False
    """A watch may go on from `version`."""
    version_lost: bool = False
    """The server has no state that is as new as `version` or as old: the newest is asked for."""
    understands_watch_lists: bool = True
    list_next: bool = False
    """The last watch list was refused."""


@frozen
class Request:
    """What to ask for."""

    step: Step
    resource_version: str
    paged: bool = False
    """A list may come in pages; one that is served from the server's memory cannot."""


@frozen
class Reaction:
    """What follows from a failure."""

    position: Position
    wait: bool
    """Whether to pause before the next request."""
    at_least: float = 0.0
    """Seconds that the server asked to wait."""


def next_request(position: Position) -> Request:
    """The request that brings the copy further."""
    if position.current:
        return Request(Step.WATCH, position.version)
    version = "" if position.version_lost else position.version
    if position.understands_watch_lists and not position.list_next:
        return Request(Step.WATCH_LIST, version)
    if position.version_lost:
        return Request(Step.LIST, "")
    # The first list may come from the server's memory, however old; it is much cheaper than one from the database.
    return Request(Step.LIST, position.version or "0", paged=not position.version)


def listed(position: Position, version: str) -> Position:
    """Everything was read, and is as new as `version`."""
    return attrs.evolve(position, version=version, current=True, version_lost=False, list_next=False)


def seen(position: Position, version: str) -> Position:
    """A watch has sent `version`."""
    return attrs.evolve(position, version=version or position.version)


def after(position: Position, step: Step, outcome: Outcome) -> Reaction:
    """What a failed or ended request means for the next one."""
    match outcome:
        case Silent():
            return Reaction(attrs.evolve(position, understands_watch_lists=False), wait=False)
        case Ended():
            # Proxies may end watches at once, over and over. Whether something was missed, only a list can tell.
            kept = attrs.evolve(position, current=position.current and not outcome.short)
            return Reaction(kept, wait=outcome.short or not kept.current)
        case ApiStatusError(expired=True) | ApiStatusError(version_too_large=True):
            return _start_again(position, step)
        case ApiStatusError():
            return _refused(position, step, outcome)
        case _:
            return Reaction(position, wait=True)


def _start_again(position: Position, step: Step) -> Reaction:
    if step is Step.WATCH:
        return Reaction(attrs.evolve(position, current=False), wait=False)
    # Asked for the newest state and refused all the same: not at once again.
    lost = attrs.evolve(position, current=False, version_lost=True)
    return Reaction(lost, wait=position.version_lost)


def _refused(position: Position, step: Step, error: ApiStatusError) -> Reaction:
    pause = error.retry_after or 0.0
    passing = error.too_many or error.unauthorized
    if step is Step.WATCH_LIST and not passing:
        # Even a fault: on a database that cannot do watch lists a server answers them with an internal error.
        return Reaction(attrs.evolve(position, list_next=True), wait=False)
    if step is Step.WATCH and not (passing or error.server_fault or error.forbidden):
        # The server does not like how the watch was asked for. All that can be in it is the version.
        return Reaction(attrs.evolve(position, current=False, version_lost=True), wait=True)
    # What was refused for now is asked again; a list after a watch list that was refused has its turn only once.
    return Reaction(attrs.evolve(position, list_next=False), wait=True, at_least=pause)


@frozen
class Pauses:
    """How long to wait after failures: exponentially longer, up to a limit, and short again after a time of peace."""

    failures: int = 0
    last: float = float("-inf")
    """Time of the last failure, in seconds of any clock."""

    BACKOFF = Backoff(first=0.8, longest=30.0)
    PEACE = 120.0

    def failed(self, now: float, chance: float) -> tuple[Pauses, float]:
        """After another failure: the next state, and how many seconds to wait. `chance` is uniform in [0, 1)."""
        failures = 1 if now - self.last > self.PEACE else self.failures + 1
        return Pauses(failures, now), self.BACKOFF.delay(failures) * (1 + chance)
