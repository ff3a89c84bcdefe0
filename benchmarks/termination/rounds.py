"""Rounds: every contestant in its turn starts pods, lets them settle, and has them ended while they are watched."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.manifest_agents import PATIENCE
from benchmarks.termination.phases import Batch, Measurements
from benchmarks.termination.pods import STARTED, Behaviour, PodPlan
from benchmarks.termination.watch import wait_for_signs, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.termination.kubelets import Contestant

GRACE_TO_SHORTEN: Final = 30
"""Seconds at least."""


@attrs.frozen
class Settings:
    """What is measured."""

    pods: int
    rounds: int
    grace: int
    behaviours: tuple[Behaviour, ...]
    settle: float
    """Seconds from a pod's start until it is asked to end."""
    idle: float = 0.0
    """Seconds in which an agent without pods is watched, after as many in which it comes to rest."""

    def plans(self, behaviour: Behaviour, prefix: str) -> list[PodPlan]:
        """The pods of one batch."""
        grace = max(self.grace, GRACE_TO_SHORTEN) if behaviour is Behaviour.GRACE_SHORTENED else self.grace
        return [PodPlan(f"{prefix}-{number}", behaviour, grace) for number in range(self.pods)]


async def measure(
    settings: Settings, contestants: Sequence[Contestant], progress: Callable[[str], None]
) -> Measurements:
    """`progress` is told of what begins: for each contestant its warm-up, then its batches."""
    idle: dict[str, float] = {}
    for contestant in contestants:
        progress(f"{contestant.name}: warming up")
        await run_batch(contestant, [PodPlan("warm-up", Behaviour.EXITS_ON_TERM, grace=5)], settings.settle, 0)
        idle[contestant.name] = await _idle_share(contestant, settings.idle)
    measured = Measurements()
    for behaviour in settings.behaviours:
        for number in range(settings.rounds):
            turn = number % len(contestants)
            for contestant in (*contestants[turn:], *contestants[:turn]):
                progress(f"{contestant.name}: {behaviour}, round {number + 1} of {settings.rounds}")
                plans = settings.plans(behaviour, f"{_slug(contestant.name)}-{behaviour}-{number}")
                batch = await run_batch(contestant, plans, settings.settle, idle[contestant.name])
                measured.add(behaviour, contestant.name, batch)
    return measured


async def run_batch(contestant: Contestant, plans: Sequence[PodPlan], settle: float, idle: float) -> Batch:
    """From the first manifest until nothing is left. `idle`: CPU seconds a second that are not these pods'."""
    began, cpu = time.monotonic(), _cpu_seconds(contestant.pid)
    await contestant.start(plans)
    started = frozenset[str]().union(*(plan.signs(STARTED) for plan in plans))
    await wait_for_signs(contestant.signs, started, PATIENCE)
    await trio.sleep(settle)
    patience = PATIENCE + max(plan.grace for plan in plans)
    async with watching(contestant.eyes, contestant.signs, contestant.pod_folders, plans, patience) as pods:
        asked = await contestant.ask(pods)
    await contestant.clear(plans)
    spent = None
    if contestant.pid is not None:
        spent = _cpu_seconds(contestant.pid) - cpu - idle * (time.monotonic() - began)
    for path in contestant.signs.iterdir():
        path.unlink()
    return Batch([pod.times(asked[pod.plan.name]) for pod in pods], spent)


async def _idle_share(contestant: Contestant, seconds: float) -> float:
    """CPU seconds a second of an agent without pods."""
    if contestant.pid is None or not seconds:
        return 0.0
    await trio.sleep(seconds)
    before = _cpu_seconds(contestant.pid)
    await trio.sleep(seconds)
    return (_cpu_seconds(contestant.pid) - before) / seconds


def _cpu_seconds(pid: int | None) -> float:
    """Of all threads of a process, by the clock that the kernel keeps for it."""
    return 0.0 if pid is None else time.clock_gettime((~pid << 3) | 2)


def _slug(name: str) -> str:
    """A contestant's name as a part of its pods' names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
