"""Programmed lives: reproducible, checked, and able to show what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import structlog

from trikubelet.sim.life import LifeOptions, live

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = LifeOptions(pods=6, hours=0.25, seed=11, faults=True, mean_pod_hours=0.1)


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


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
