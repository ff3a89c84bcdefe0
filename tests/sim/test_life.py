"""Programmed lives: reproducible, checked, and able to show what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT
from trikubelet.sim.life import LifeOptions, LifeSummary, live

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.together("one life")  # which several tests look at
SHORT = LifeOptions(pods=6, hours=0.25, seed=11, faults=True, mean_pod_hours=0.1)

HASH_SEEDS = ("1", "2", "3") if IS_NIGHT else ("1", "2")


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


@cache
def short_life() -> LifeSummary:
    return live(SHORT)


def test_one_seed_gives_one_life() -> None:
    first, second = short_life(), live(SHORT)
    assert first == second
    assert first.pods_run > 10
    assert first.restarts > 0
    assert all(first.checks.values())


def test_another_seed_gives_another_life() -> None:
    other = LifeOptions(pods=6, hours=0.25, seed=12, faults=True, mean_pod_hours=0.1)
    assert short_life().digest != live(other).digest


def test_everything_holds_in_a_life_with_faults() -> None:
    assert short_life().violations == ()


def test_the_order_of_sets_changes_nothing() -> None:
    script = (
        "from trikubelet.telemetry.logs import silence; silence()\n"
        "from trikubelet.sim.life import LifeOptions, live\n"
        "print(live(LifeOptions(pods=6, hours=0.15, seed=11, faults=True, mean_pod_hours=0.1)).digest)\n"
    )
    lives = [
        subprocess.Popen(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in HASH_SEEDS
    ]
    digests = {one.communicate()[0] for one in lives}
    assert [one.returncode for one in lives] == [0 for _ in HASH_SEEDS]
    assert len(digests) == 1
