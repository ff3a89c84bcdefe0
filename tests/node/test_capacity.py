"""Capacity and allocatable: the kubelet's table, and what is reserved."""

from __future__ import annotations

import pytest

from trikubelet.api import Quantity
from trikubelet.linux.machine import Machine
from trikubelet.node.capacity import (
    Reservations,
    allocatable,
    capacity,
    is_extended_resource,
    reservation_problem,
    reserved,
)

NOTHING = Reservations(eviction={})


def machine(memory: int = 1024, cpus: int = 2, **others: object) -> Machine:
    return Machine(cpus=cpus, memory=memory, **others)  # type: ignore[arg-type]


def texts(amounts: dict[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def quantities(**amounts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity(text) for name, text in amounts.items()}


def test_a_machine_has_processors_memory_and_room_for_pods() -> None:
    found = capacity(machine(memory=16384001 * 1024, storage=5000), max_pods=110)
    assert texts(found) == {"cpu": "2", "memory": "16384001Ki", "pods": "110", "ephemeral-storage": "5000"}


@pytest.mark.parametrize(("per_core", "pods"), [(0, "10"), (4, "8"), (6, "10")])
def test_pods_per_core_lower_the_number_of_pods(per_core: int, pods: str) -> None:
    assert texts(capacity(machine(), max_pods=10, pods_per_core=per_core))["pods"] == pods


def test_every_size_of_huge_pages_is_named_even_when_there_are_none() -> None:
    found = texts(capacity(machine(huge_pages={2**21: 512, 2**30: 0}), max_pods=1))
    assert (found["hugepages-2Mi"], found["hugepages-1Gi"]) == ("1Gi", "0")


def test_storage_is_not_named_where_it_is_not_isolated() -> None:
    assert "ephemeral-storage" not in capacity(machine(storage=5000), max_pods=1, local_storage=False)


def test_of_a_machine_that_cannot_be_read_only_the_pods_are_known() -> None:
    assert texts(capacity(None, max_pods=110)) == {"cpu": "0", "memory": "0", "pods": "110"}


def test_allocatable_is_capacity_without_what_is_reserved() -> None:
    has = quantities(cpu="2", memory="1024", pods="110")
    assert texts(allocatable(has, quantities(cpu="1m", memory="1", ephemeral_storage="1"))) == {
        "cpu": "1999m",
        "memory": "1023",
        "pods": "110",
    }


def test_nothing_is_allocatable_below_zero() -> None:
    has = quantities(cpu="2", negative="-1")
    assert texts(allocatable(has, quantities(cpu="3"))) == {"cpu": "0", "negative": "0"}


@pytest.mark.parametrize(("pages", "memory"), [("1", "1023"), ("1025", "0")])
def test_huge_pages_are_taken_from_memory(pages: str, memory: str) -> None:
    found = texts(allocatable({"memory": Quantity("1024"), "hugepages-test": Quantity(pages)}, {}))
    assert found == {"memory": memory, "hugepages-test": pages}


def test_extended_resources_that_are_gone_are_not_allocatable_but_unknown_others_stay() -> None:
    before = {"example.com/extended": Quantity(1), "example.com/there": Quantity(1), "odd": Quantity(1)}
    found = allocatable({"example.com/there": Quantity(2)}, {}, before)
    assert texts(found) == {"example.com/there": "2", "odd": "1"}


def test_reservations_add_up_with_what_eviction_keeps_free() -> None:
    has = quantities(cpu="4", memory="8Gi", ephemeral_storage="100Gi", pods="110")
    kept = Reservations.of(kube={"cpu": "100m", "memory": "200Mi"}, system={"cpu": "0.2", "pid": "1000"})
    assert texts(reserved(has, kept)) == {"cpu": "300m", "memory": "300Mi", "ephemeral-storage": "10737418400"}


def test_percentages_have_the_kubelets_precision() -> None:
    kept = Reservations.of(kube={}, system={}, eviction_hard={"memory.available": "10%"})
    assert reserved(quantities(memory="100Gi"), kept)["memory"] == Quantity(int(100 * 2**30 * 0.10000000149011612))


@pytest.mark.parametrize(("configured", "memory"), [(None, "100Mi"), ({}, None), ({"nodefs.available": "1Gi"}, None)])
def test_default_thresholds_count_where_none_is_configured(
    configured: dict[str, str] | None, memory: str | None
) -> None:
    kept = Reservations.of(kube={}, system={}, eviction_hard=configured)
    assert texts(reserved(quantities(memory="8Gi"), kept)).get("memory") == memory


def test_processors_of_the_system_alone_replace_what_is_reserved_of_them() -> None:
    kept = Reservations.of(
        kube={"cpu": "500m", "memory": "1Mi"}, system={"cpu": "7"}, reserved_cpus=2, eviction_hard={}
    )
    assert texts(reserved(quantities(cpu="4", memory="8Gi"), kept)) == {"cpu": "2", "memory": "1Mi"}


def test_more_cannot_be_reserved_than_there_is() -> None:
    kept = Reservations.of(kube={"cpu": "5"}, system={}, eviction_hard={})
    assert reservation_problem(quantities(cpu="4"), kept) == (
        'invalid Node Allocatable configuration. Resource "cpu" has a reservation of 5 but capacity of 4. '
        "Expected capacity >= reservation."
    )
    assert reservation_problem(quantities(cpu="5"), kept) is None


@pytest.mark.parametrize(
    ("name", "extended"), [("example.com/gpu", True), ("cpu", False), ("kubernetes.io/x", False), ("a", False)]
)
def test_extended_resources_have_a_domain_that_is_not_kubernetes(name: str, extended: bool) -> None:
    assert is_extended_resource(name) is extended
