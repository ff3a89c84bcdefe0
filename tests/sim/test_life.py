"""Programmed lives: reproducible, checked, and able to show what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import trio

from trikubelet.pods import termination, worker_state
from trikubelet.pods.worker_phases import Terminating
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.sim.life import LifeOptions, LifeSummary, live
from trikubelet.sim.watch import ENDS_IN_TIME, GRACE_SHRINKS, TERMINATED_IS_STILL

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = LifeOptions(pods=6, hours=0.25, seed=11, faults=True, mean_pod_hours=0.1)

BROKEN = LifeOptions(pods=4, hours=0.1, seed=11, mean_pod_hours=0.03)
"""For agents that are made to fail."""


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def broken(summary: LifeSummary) -> set[str]:
    return {violation.invariant for violation in summary.violations}


def test_one_seed_gives_one_life() -> None:
    first, second = live(SHORT), live(SHORT)
    assert first == second
    assert first.pods_run > 10
    assert first.restarts > 0
    assert all(first.checks.values())


def test_another_seed_gives_another_life() -> None:
    other = LifeOptions(pods=6, hours=0.25, seed=12, faults=True, mean_pod_hours=0.1)
    assert live(SHORT).digest != live(other).digest


def test_everything_holds_in_a_life_with_faults() -> None:
    assert live(SHORT).violations == ()


def test_the_order_of_sets_changes_nothing() -> None:
    script = (
        "import structlog; structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))\n"
        "from trikubelet.sim.life import LifeOptions, live\n"
        "print(live(LifeOptions(pods=6, hours=0.15, seed=11, faults=True, mean_pod_hours=0.1)).digest)\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_a_kill_that_kills_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kill_nothing(*_: Any) -> None:
        await trio.sleep(1)

    monkeypatch.setattr(RuntimeManager, "kill_pod", kill_nothing)
    assert ENDS_IN_TIME in broken(live(BROKEN))


def test_a_pod_called_terminated_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from trikubelet.pod_syncer import AgentPodSyncer

    async def end_nothing(*_: Any) -> None:
        await trio.sleep(1)

    monkeypatch.setattr(AgentPodSyncer, "sync_terminating_pod", end_nothing)
    assert TERMINATED_IS_STILL in broken(live(BROKEN))


def test_a_grace_period_that_grows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink = termination.effective_grace_period

    def grow(current: int | None, *rest: Any) -> int:
        return shrink(current, *rest) if current is None else current + 1

    monkeypatch.setattr(termination, "effective_grace_period", grow)
    assert GRACE_SHRINKS in broken(live(BROKEN))


def test_a_worker_that_goes_on_syncing_a_pod_that_ends_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = worker_state.begin

    def begin_wrongly(state: Any, now: float, *, may_start: bool) -> Any:
        after, commands = begin(state, now, may_start=may_start)
        if isinstance(after, Terminating) and not isinstance(state, Terminating):
            from trikubelet.pods.worker_messages import ConfigUpdate, Run, SyncPod

            if isinstance(after.active, ConfigUpdate):
                commands = tuple(
                    Run(each.uid, SyncPod(after.active)) if isinstance(each, Run) else each for each in commands
                )
        return after, commands

    monkeypatch.setattr(worker_state, "begin", begin_wrongly)
    assert TERMINATED_IS_STILL in broken(live(BROKEN))
