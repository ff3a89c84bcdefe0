"""How a simulated runtime fails: which call, in which way. Values and a seeded random source, no clock.

Four kinds cover what an agent can see of a real runtime's failures:

- ERROR: the call has no effect, and fails;
- LOST_REPLY: the call has its effect, and fails all the same, as when the connection breaks before the answer;
- HANG: the call waits, for some seconds or until the caller gives up, and then has its effect;
- RESTART: the runtime restarts at the call, which has its effect, a part of it, or none. All connections break.

Faults are asked for by name and number (`fail_next`, `restart_at`) or by chance (`fail_randomly`). Each call name draws
from a random source of its own, so that one more ListContainers does not change what happens to the next
StartContainer.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict, deque
from random import Random
from typing import Literal

from grpclib.const import Status

from trikubelet.formats.values import frozen

ANY_RPC = "*"


class FaultKind(enum.Enum):
    ERROR = "error"
    LOST_REPLY = "lost reply"
    HANG = "hang"
    RESTART = "restart"


When = Literal["before", "during", "after"]
"""At which moment of a call: nothing of it has happened, it was cut short, or only the reply is missing."""


@frozen
class Fault:
    kind: FaultKind
    status: Status = Status.UNAVAILABLE
    message: str = "simulated fault"
    seconds: float = math.inf
    """How long a HANG lasts, and how long the runtime is away at a RESTART."""
    when: When = "before"
    """At which moment of its call a RESTART comes."""


@frozen
class _Chance:
    rpc: str
    probability: float
    fault: Fault


class FaultPlan:
    """The faults to come."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._next: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._chances: list[_Chance] = []
        self._numbered: defaultdict[str, dict[int, Fault]] = defaultdict(dict)
        self._drawn: Counter[str] = Counter()
        self._randoms: dict[str, Random] = {}
        self.met: Counter[FaultKind] = Counter()
        """How many calls met a fault, by kind."""

    def fail_next(
        self, rpc: str, *, times: int = 1, status: Status = Status.UNKNOWN, message: str = "simulated fault"
    ) -> None:
        """The next `times` calls of `rpc` (or of anything, "*") fail without effect."""
        self.add_next(rpc, Fault(FaultKind.ERROR, status, message), times=times)

    def lose_next_reply(self, rpc: str, *, times: int = 1, status: Status = Status.UNAVAILABLE) -> None:
        """The next `times` calls of `rpc` take effect, but the caller sees them fail."""
        self.add_next(rpc, Fault(FaultKind.LOST_REPLY, status, "simulated: the reply was lost"), times=times)

    def hang_next(self, rpc: str, *, times: int = 1, seconds: float = math.inf) -> None:
        """The next `times` calls of `rpc` wait that long before they take effect."""
        self.add_next(rpc, Fault(FaultKind.HANG, seconds=seconds), times=times)

    def restart_at(self, rpc: str, nth: int = 1, *, when: When = "before", downtime: float = 1.0) -> None:
        """The runtime restarts at a call: at the `nth` call of `rpc` (or of anything, "*") from now on."""
        if nth < 1:
            raise ValueError(f"the next call is number 1, there is none with number {nth}")
        self._numbered[rpc][self._drawn[rpc] + nth] = Fault(FaultKind.RESTART, seconds=downtime, when=when)

    def add_next(self, rpc: str, fault: Fault, *, times: int = 1) -> None:
        self._next[rpc].extend([fault] * times)

    def fail_randomly(self, rpc: str, probability: float, fault: Fault | None = None) -> None:
        """Each call of `rpc` (or "*") meets `fault` with this probability, until `stop`."""
        self._chances.append(_Chance(rpc, probability, fault or Fault(FaultKind.ERROR)))

    def stop(self) -> None:
        """No faults from here on."""
        self._next.clear()
        self._chances.clear()
        self._numbered.clear()

    def draw(self, rpc: str) -> Fault | None:
        """The fault that this call meets, None for none."""
        fault = self._draw(rpc)
        if fault is not None:
            self.met[fault.kind] += 1
        return fault

    def _draw(self, rpc: str) -> Fault | None:
        self._drawn.update((rpc, ANY_RPC))
        for name in (rpc, ANY_RPC):
            if fault := self._numbered[name].pop(self._drawn[name], None):
                return fault
            if self._next.get(name):
                return self._next[name].popleft()
        for chance in self._chances:
            if chance.rpc in (rpc, ANY_RPC) and self.random(rpc).random() < chance.probability:
                return chance.fault
        return None

    def random(self, name: str) -> Random:
        """The random source for choices about `name`, fixed by the seed."""
        if name not in self._randoms:
            self._randoms[name] = Random(f"{self._seed}/{name}")
        return self._randoms[name]
