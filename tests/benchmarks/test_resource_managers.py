"""The benchmark of the resource managers measures each way to decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.resource_managers import added_times, assignment_times, machine, merge_times, paired, start_times

if TYPE_CHECKING:
    from pathlib import Path


def test_the_machine_is_as_large_as_it_says() -> None:
    topology = machine()
    assert (len(topology.places), len(topology.sockets), len(topology.cores)) == (768, 8, 384)
    assert {cpus.bit_count() for cpus in topology.uncores.values()} == {16}


def test_each_round_of_each_way_is_measured() -> None:
    assert [len(times) for times in assignment_times(machine(), 2).values()] == [2] * 5
    assert [len(times) for times in merge_times(1).values()] == [1] * 6


async def test_what_the_policy_adds_is_measured(tmp_path: Path) -> None:
    assert len(await added_times(tmp_path, 2)) == 2


@pytest.mark.night
@pytest.mark.root
def test_pods_start_with_a_policy_and_without() -> None:
    assert {policy: len(times) for policy, times in start_times(1, "1").items()} == {False: 1, True: 1}


def test_starts_are_compared_in_pairs() -> None:
    """What slows down both of a pair says nothing about the policy."""
    assert paired({False: [100.0, 300.0, 200.0], True: [101.0, 301.0, 250.0]}) == 1.0
