"""What goes wrong with an API server and the way to it, on demand and the same every time.

Rules say which calls a fault meets: those that `on` or `when` select, of them every third, or some share by the seed,
or only the first few. Outages concern everybody: `unreachable` refuses connections and breaks those that are there.

    server.faults.fail(500, every=3)
    server.faults.on(verb="patch", resource="pods", subresource="status").lose_reply(times=1)
    server.faults.unreachable(); …; server.faults.back()
    server.faults.clear()
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Literal

import attrs
import trio

from tests.apiserver.errors import ApiFailure
from tests.apiserver.requests import Call
from tests.apiserver.watches import WatchHub

Loss = Literal["", "request", "reply"]


@attrs.define(eq=False)
class Rule:
    """One fault. `met` counts the calls that it has struck."""

    selects: Callable[[Call], bool]
    failure: ApiFailure | None = None
    delay: float = 0.0
    loss: Loss = ""
    every: int = 1
    share: float = 1.0
    times: float = math.inf
    seen: int = 0
    met: int = 0

    def strikes(self, call: Call, rng: random.Random) -> bool:
        if self.met >= self.times or not self.selects(call):
            return False
        self.seen += 1
        if self.seen % self.every != 0 or (self.share < 1.0 and rng.random() >= self.share):
            return False
        self.met += 1
        return True


class FaultRules:
    """Makes rules for the calls that `selects` selects."""

    def __init__(self, rules: list[Rule], selects: Callable[[Call], bool]) -> None:
        self._rules = rules
        self._selects = selects

    def when(self, selects: Callable[[Call], bool]) -> FaultRules:
        """Faults only for calls that this selects too."""
        return FaultRules(self._rules, lambda call: self._selects(call) and selects(call))

    def on(
        self,
        *,
        verb: str | tuple[str, ...] = "",
        resource: str = "",
        subresource: str | None = None,
        namespace: str = "",
        name: str = "",
        user: str = "",
    ) -> FaultRules:
        """Faults only for such calls; what is empty is not looked at. A `subresource` of "" is the object itself."""
        verbs = (verb,) if isinstance(verb, str) else verb

        def selects(call: Call) -> bool:
            return (
                (not verb or call.verb in verbs)
                and resource in ("", call.resource)
                and (subresource is None or subresource == call.subresource)
                and namespace in ("", call.namespace)
                and name in ("", call.name)
                and user in ("", call.user)
            )

        return self.when(selects)

    def fail(
        self,
        code: int,
        *,
        reason: str = "",
        message: str = "",
        retry_after: int | None = None,
        every: int = 1,
        share: float = 1.0,
        times: float = math.inf,
    ) -> Rule:
        """Refuse without doing anything."""
        reason = reason or _REASONS.get(code, "")
        failure = ApiFailure(code, reason, message or _MESSAGES.get(code, "injected"), retry_after=retry_after)
        return self._add(Rule(self._selects, failure=failure, every=every, share=share, times=times))

    def too_many(self, retry_after: int = 1, *, every: int = 1, share: float = 1.0, times: float = math.inf) -> Rule:
        """429, as priority and fairness answers."""
        return self.fail(429, retry_after=retry_after, every=every, share=share, times=times)

    def delay(self, seconds: float, *, every: int = 1, share: float = 1.0, times: float = math.inf) -> Rule:
        """Do it later. `math.inf`: never, and never answer."""
        return self._add(Rule(self._selects, delay=seconds, every=every, share=share, times=times))

    def lose_request(self, *, every: int = 1, share: float = 1.0, times: float = math.inf) -> Rule:
        """The connection breaks, and nothing is done."""
        return self._add(Rule(self._selects, loss="request", every=every, share=share, times=times))

    def lose_reply(self, *, every: int = 1, share: float = 1.0, times: float = math.inf) -> Rule:
        """It is done, and the connection breaks before the answer."""
        return self._add(Rule(self._selects, loss="reply", every=every, share=share, times=times))

    def _add(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule


_REASONS = {
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    401: "Unauthorized",
    403: "Forbidden",
}
_MESSAGES = {
    401: "Unauthorized",
    429: "too many requests, please try again later",
    500: "Internal error occurred: etcdserver: request timed out",
    503: "the server is currently unable to handle the request",
}


class Faults(FaultRules):
    """The faults of one server; see the module."""

    def __init__(self, *, rng: random.Random, hub: WatchHub, cut_all: Callable[[], None]) -> None:
        rules: list[Rule] = []
        super().__init__(rules, lambda _: True)
        self._state = _State(rules, rng, hub, cut_all)

    # What happens to everybody.

    def unreachable(self) -> None:
        """Refuse connections and break those that are there, until `back`."""
        self._state.reachable = False
        self._state.changed()
        self._state.cut_all()

    def back(self) -> None:
        self._state.reachable = True
        self._state.changed()

    def drop_connections(self) -> None:
        """Break every connection once."""
        self._state.cut_all()

    def expire_watches(self) -> None:
        """End every watch with 410, and answer 410 to those that want to go on from before."""
        self._state.hub.expire()

    def end_watches(self) -> None:
        """End every watch in good order."""
        self._state.hub.end()

    def hold_watches(self) -> None:
        """Let no watch tell anything until `release_watches`."""
        self._state.hub.hold()

    def release_watches(self) -> None:
        self._state.hub.release()

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self._state.rules.clear()
        self.release_watches()
        self.back()

    # What the server asks.

    @property
    def is_reachable(self) -> bool:
        return self._state.reachable

    def reachability_changed(self) -> trio.Event:
        """Set at the next `unreachable` or `back`."""
        return self._state.event

    async def strike(self, call: Call) -> Loss:
        """Delay and refuse as the rules say; what is to be lost, if anything. Raises ApiFailure."""
        struck = [rule for rule in self._state.rules if rule.strikes(call, self._state.rng)]
        for rule in struck:
            if rule.delay == math.inf:
                await trio.sleep_forever()
            await trio.sleep(rule.delay)
        for rule in struck:
            if rule.failure is not None:
                raise rule.failure
        return next((rule.loss for rule in struck if rule.loss), "")


@attrs.define(eq=False)
class _State:
    rules: list[Rule]
    rng: random.Random
    hub: WatchHub
    cut_all: Callable[[], None]
    reachable: bool = True
    event: trio.Event = attrs.field(factory=trio.Event)

    def changed(self) -> None:
        self.event.set()
        self.event = trio.Event()
