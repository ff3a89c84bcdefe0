"""The static CPU policy: the rows of the kubelet's `policy_static_test.go`, `topology_hints_test.go` and
`policy_options_test.go`."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.allocation.cpus.machines import table, topology
from tests.allocation.pods import cpu_pod
from trikubelet.allocation.cpus.options import (
    ALPHA_GATE,
    BETA_GATE,
    NO_OPTIONS,
    StaticPolicyOptions,
    check_machine,
    parse_options,
)
from trikubelet.allocation.cpus.state import CpuState
from trikubelet.allocation.cpus.static_policy import CpuStateError, StaticPolicy, reserved_count
from trikubelet.allocation.demands import all_containers, pod_cpus
from trikubelet.allocation.topology.hints import AllocationError
from trikubelet.api import Quantity
from trikubelet.formats.cpu_list import format_cpu_list, members, parse_cpu_list, set_of

_GATES = {ALPHA_GATE: True}


def _policy(row: dict[str, Any], *, pod_level: bool = False) -> StaticPolicy:
    reserved = parse_cpu_list(row["reserved"])
    options = parse_options(row["options"], _GATES)
    machine = topology(row["topology"])
    return StaticPolicy.reserving(machine, row["reserved_count"], reserved, options, pod_level=pod_level)


def _state(row: dict[str, Any]) -> CpuState:
    containers = {
        uid: {name: parse_cpu_list(cpus) for name, cpus in its.items()} for uid, its in row["containers"].items()
    }
    return CpuState(parse_cpu_list(row["shared"]), containers)


def _nodes(numbers: list[int] | None) -> int | None:
    return None if numbers is None else set_of(numbers)


@pytest.mark.parametrize("row", table("start"))
def test_a_state_fits_the_machine_or_is_refused(row: dict[str, Any]) -> None:
    if row["error"] == "new":
        with pytest.raises(ValueError, match="reserved CPUs"):
            _policy(row)
    elif row["error"] == "start":
        with pytest.raises(CpuStateError):
            _policy(row).start(_state(row))
    else:
        assert format_cpu_list(_policy(row).start(_state(row)).shared) == row["expected"]


@pytest.mark.parametrize("row", table("allocate"))
def test_a_container_gets_cpus(row: dict[str, Any]) -> None:
    policy, pod, before = _policy(row), cpu_pod(row["pod"]), _state(row)
    container = pod.spec.containers[0]
    if row["error"]:
        with pytest.raises(AllocationError) as error:
            policy.allocate(before, pod, container, _nodes(row["hint"]))
        assert error.value.reason == row["error"]
        return
    after = policy.allocate(before, pod, container, _nodes(row["hint"]))
    cpus = after.get(pod.metadata.uid, container.name)
    assert (None if cpus is None else format_cpu_list(cpus)) == row["expected"]
    assert after.shared & (cpus or 0) == 0


@pytest.mark.parametrize("row", table("uncore"))
def test_cpus_share_uncore_caches(row: dict[str, Any]) -> None:
    policy, pod, state = _policy(row), cpu_pod(row["pod"]), _state(row)
    for container in pod.spec.containers:
        state = policy.allocate(state, pod, container)
    own = state.containers[pod.metadata.uid]
    if "expected" in row:
        assert format_cpu_list(own[pod.spec.containers[0].name]) == row["expected"]
    else:
        places = policy.topology.places
        assert {places[cpu].uncore for cpus in own.values() for cpu in members(cpus)} == set(row["uncores"])


@pytest.mark.parametrize("row", table("reuse"))
def test_cpus_of_init_containers_are_used_again_but_not_those_of_sidecars(row: dict[str, Any]) -> None:
    policy, pod, state = _policy(row), cpu_pod(row["pod"]), _state(row)
    for container in all_containers(pod):
        state = policy.allocate(state, pod, container)
    assert format_cpu_list(state.shared) == row["after"]
    if "remove" in row:
        state = policy.remove_container(state, pod.metadata.uid, row["remove"])
        assert format_cpu_list(state.shared) == row["after_remove"]
        assert state.get(pod.metadata.uid, row["remove"]) is None


@pytest.mark.parametrize("row", table("init_containers"))
def test_containers_get_cpus_one_after_the_other(row: dict[str, Any]) -> None:
    policy, pod, state = _policy(row), cpu_pod(row["pod"]), _state(row)
    shared = state.shared
    for container, cpus in zip(all_containers(pod), row["expected"], strict=True):
        state = policy.allocate(state, pod, container)
        assert format_cpu_list(state.get(pod.metadata.uid, container.name) or 0) == cpus
    assert state.shared == shared & ~state.of_pod(pod.metadata.uid)


@pytest.mark.parametrize("row", table("remove"))
def test_cpus_of_a_removed_container_are_shared_again(row: dict[str, Any]) -> None:
    state = _policy(row).remove_container(_state(row), row["uid"], row["container"])
    assert format_cpu_list(state.shared) == row["expected"]
    assert state.get(row["uid"], row["container"]) is None


@pytest.mark.parametrize("row", table("aligned"))
def test_cpus_of_agreed_nodes_are_taken_first(row: dict[str, Any]) -> None:
    cpus = str(row["count"])
    pod = cpu_pod({"uid": "pod", "containers": [["container", cpus, cpus]]})
    policy = StaticPolicy(topology(row["topology"]))
    state = policy.start(CpuState(parse_cpu_list(row["shared"])))
    state = policy.allocate(state, pod, pod.spec.containers[0], _nodes(row["nodes"]))
    assert format_cpu_list(state.containers["pod"]["container"]) == row["expected"]


@pytest.mark.parametrize("row", table("allocate_pod"))
def test_a_pod_gets_cpus_as_a_whole(row: dict[str, Any]) -> None:
    policy, pod, before = _policy(row, pod_level=row["gate"]), cpu_pod(row["pod"]), _state(row)
    if row["error"]:
        with pytest.raises(AllocationError) as error:
            policy.allocate_pod(before, pod)
        assert error.value.reason == row["error"]
        return
    after = policy.allocate_pod(before, pod)
    found = {uid: {name: format_cpu_list(cpus) for name, cpus in own.items()} for uid, own in after.containers.items()}
    assert found == row["expected"]
    assert format_cpu_list(after.shared) == row["shared_after"]


@pytest.mark.parametrize("row", table("shared_pool"))
def test_containers_that_share_a_pods_cpus_need_some(row: dict[str, Any]) -> None:
    policy = StaticPolicy(topology(row["topology"]), pod_level=True)
    hints = policy.pod_hints(policy.start(CpuState()), cpu_pod(row["pod"]))
    assert (hints == []) is row["error"]


@pytest.mark.parametrize("row", table("pod_cpus"))
def test_a_pod_needs_cpus_for_what_runs_at_the_same_time(row: dict[str, Any]) -> None:
    assert pod_cpus(cpu_pod(row["pod"]), pod_level=row["gate"]) == row["expected"]


@pytest.mark.parametrize("row", table("hints"))
def test_hints_say_where_cpus_could_be(row: dict[str, Any]) -> None:
    policy = StaticPolicy(topology(row["topology"]), parse_options(row["options"], _GATES), pod_level=row["gate"])
    pod, state = cpu_pod(row["pod"]), _state(row)
    found = {
        "container_hints": policy.hints(state, pod, pod.spec.containers[0]),
        "pod_hints": policy.pod_hints(state, pod),
    }
    for scope in found.keys() & row.keys():
        hints = {(hint.nodes, hint.preferred) for hint in found[scope] or ()}
        assert hints == {(set_of(nodes), preferred) for nodes, preferred in row[scope]}


@pytest.mark.parametrize("row", table("options"))
def test_options_are_read_and_checked(row: dict[str, Any]) -> None:
    if row["error"]:
        with pytest.raises(ValueError, match=r"option|expected one of"):
            parse_options(row["options"], row["gates"])
        return
    options = parse_options(row["options"], row["gates"])
    if "expected" in row:
        assert options == attrs.evolve(NO_OPTIONS, **row["expected"])


@pytest.mark.parametrize(
    ("option", "gates", "there"),
    [
        ("align-by-socket", {"AllAlpha": True}, True),
        ("align-by-socket", {"AllAlpha": True, ALPHA_GATE: False}, False),
        ("distribute-cpus-across-numa", {"AllBeta": False}, False),
        ("distribute-cpus-across-numa", {"AllBeta": False, BETA_GATE: True}, True),
    ],
)
def test_gates_of_a_whole_stage_count_for_options(option: str, gates: dict[str, bool], there: bool) -> None:
    if there:
        assert parse_options({option: "true"}, gates) != NO_OPTIONS
    else:
        with pytest.raises(ValueError, match="needs featureGates"):
            parse_options({option: "true"}, gates)


@pytest.mark.parametrize("row", table("machine_options"))
def test_options_fit_the_machine_or_are_refused(row: dict[str, Any]) -> None:
    options = parse_options(row["options"], _GATES)
    if row["error"]:
        with pytest.raises(ValueError, match="align-by-socket"):
            check_machine(options, topology(row["topology"]), row["topology_manager"])
    else:
        check_machine(options, topology(row["topology"]), row["topology_manager"])


def test_cores_with_a_reserved_thread_are_not_whole() -> None:
    policy = StaticPolicy(topology("SingleSocketHT"), StaticPolicyOptions(full_cores=True), reserved=0b1)
    pod = cpu_pod({"uid": "pod", "containers": [["container", "8", "8"]]})
    with pytest.raises(AllocationError, match="whole cores have 6 free"):
        policy.allocate(policy.start(CpuState()), pod, pod.spec.containers[0])


def test_whole_cores_are_not_asked_for_twice() -> None:
    policy = StaticPolicy(topology("SingleSocketHT"), StaticPolicyOptions(full_cores=True))
    pod = cpu_pod({"uid": "pod", "init": [["init", "8", "8"]], "containers": [["container", "8", "8"]]})
    state = policy.start(CpuState())
    for container in all_containers(pod):
        state = policy.allocate(state, pod, container)
    assert state.containers["pod"] == {"init": 0xFF, "container": 0xFF}
    assert policy.allocate(state, pod, pod.spec.containers[0]) == state


def test_no_cpu_has_to_be_shared_where_reserved_ones_are_not() -> None:
    policy = StaticPolicy(topology("SingleSocketHT"), StaticPolicyOptions(strict_reservation=True), reserved=0b1)
    pod = cpu_pod({"uid": "pod", "containers": [["container", "7", "7"]]})
    state = policy.allocate(policy.start(CpuState()), pod, pod.spec.containers[0])
    assert state.shared == 0
    assert policy.start(state) == state


def test_hints_have_all_nodes_of_cpus_that_are_used_again() -> None:
    policy = StaticPolicy(topology("TwoNodes"))
    pod = cpu_pod({"uid": "pod", "init": [["init", "2", "2"]], "containers": [["container", "2", "2"]]})
    state = policy.allocate(policy.start(CpuState()), pod, pod.spec.init_containers[0], 0b10)
    hints = policy.hints(state, pod, pod.spec.containers[0])
    assert [hint.nodes for hint in hints or ()] == [0b10, 0b11]


@pytest.mark.parametrize(("reserved", "count"), [("1", 1), ("500m", 1), ("1500m", 2)])
def test_parts_of_reserved_cpus_are_whole_ones(reserved: str, count: int) -> None:
    assert reserved_count(Quantity(reserved)) == count


@pytest.mark.parametrize("reserved", [None, Quantity("0")])
def test_some_cpu_must_be_reserved(reserved: Quantity | None) -> None:
    with pytest.raises(ValueError, match="needs CPUs"):
        reserved_count(reserved)
