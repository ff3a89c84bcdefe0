"""Which CPUs are taken: the rows of the kubelet's `cpu_assignment_test.go`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.allocation.cpus.machines import table, topology
from trikubelet.allocation.cpus.assignment import Choice, NotEnoughCpusError, take_packed
from trikubelet.allocation.cpus.distribution import take_distributed
from trikubelet.formats.cpu_list import format_cpu_list, members, parse_cpu_list


@pytest.mark.parametrize("row", table("free"))
def test_what_is_whole_comes_in_the_order_in_which_it_is_taken(row: dict[str, Any]) -> None:
    machine = topology(row["topology"])
    choice = Choice(machine, parse_cpu_list(row["available"]), 0)
    found = {
        "sockets": [one for one in choice.sorted_sockets() if choice.is_whole(machine.sockets[one])],
        "nodes": [one for one in choice.sorted_nodes() if choice.is_whole(machine.nodes[one])],
        "cores": [one for one in choice.sorted_cores() if choice.is_whole(machine.cores[one])],
        "cpus": [cpu for core in choice.sorted_cores() for cpu in members(machine.cores[core] & choice.free)],
    }
    wanted = {level: numbers for level, numbers in row.items() if level in found}
    if wanted.keys() == {"sockets"}:  # these rows do not say in which order
        found["sockets"].sort()
    assert {level: found[level] for level in wanted} == wanted


@pytest.mark.parametrize("row", table("take"))
def test_what_was_taken_is_needed_no_more(row: dict[str, Any]) -> None:
    choice = Choice(topology(row["topology"]), parse_cpu_list(row["available"]), row["count"])
    for cpus in row["take"]:
        choice.take(parse_cpu_list(cpus))
    assert (choice.needed < 1) is row["satisfied"]
    assert (choice.needed > choice.free.bit_count()) is row["failed"]


@pytest.mark.parametrize("row", table("packed"))
def test_cpus_are_packed(row: dict[str, Any]) -> None:
    def taken() -> int:
        return take_packed(
            topology(row["topology"]),
            parse_cpu_list(row["available"]),
            row["count"],
            spread="distribute-cpus-across-cores" in row["options"],
            align_uncore="prefer-align-cpus-by-uncorecache" in row["options"],
        )

    if row["error"]:
        with pytest.raises(NotEnoughCpusError):
            taken()
    else:
        assert format_cpu_list(taken()) == row["cpus"]


@pytest.mark.parametrize("row", table("distributed"))
def test_cpus_are_distributed(row: dict[str, Any]) -> None:
    def taken() -> int:
        available = parse_cpu_list(row["available"])
        return take_distributed(topology(row["topology"]), available, row["count"], group=row["group"])

    if row["error"]:
        with pytest.raises(NotEnoughCpusError):
            taken()
    else:
        assert format_cpu_list(taken()) == row["cpus"]
