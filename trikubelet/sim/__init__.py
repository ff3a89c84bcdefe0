"""A simulated node, for tests, benchmarks and curiosity.

`SimulatedRuntime` is a container runtime in memory: it speaks CRI through the same gRPC code as a real one, its
containers live the lives that a test wrote for them, and it fails in the ways that real runtimes fail. Its time is
Trio's, so under `trio.testing.MockClock(autojump_threshold=0)` a day takes as long as its events take to compute.

How a call goes through it: `connect.py` carries the bytes, `runtime_service.py` and `image_service.py` receive the
call, `calls.py` notes it, draws a delay and a fault for it (`faults.py`), `abilities.py` refuses what this runtime
cannot do, `machine.py` holds the sandboxes and containers and decides what happens to them (`programs.py` says how they
live, `listing.py` how they look on the wire), and `feed.py` tells the subscribers of container events.
"""

from __future__ import annotations

from trikubelet.sim.abilities import Abilities
from trikubelet.sim.calls import Call, CallLog
from trikubelet.sim.faults import Fault, FaultKind, FaultPlan
from trikubelet.sim.feed import EventFeed
from trikubelet.sim.images import ImageShelf
from trikubelet.sim.machine import Machine, Run
from trikubelet.sim.programs import ExecOutcome, Life, Program
from trikubelet.sim.runtime import SimulatedRuntime

__all__ = [
    "Abilities",
    "Call",
    "CallLog",
    "EventFeed",
    "ExecOutcome",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "ImageShelf",
    "Life",
    "Machine",
    "Program",
    "Run",
    "SimulatedRuntime",
]
