"""What NUMA nodes are agreed on: the rows of the kubelet's `topologymanager` tests, and all combinations on small
machines."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.allocation.pods import cpu_pod
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, POD_SCOPE, TOPOLOGY_AFFINITY, admit
from trikubelet.allocation.topology.hints import AllocationError, Hints, TopologyHint, narrowness, node_sets
from trikubelet.allocation.topology.options import TopologyOptions, parse_options
from trikubelet.allocation.topology.policy import (
    BEST_EFFORT,
    NONE,
    RESTRICTED,
    SINGLE_NUMA_NODE,
    TopologyPolicy,
    wanted_count,
)
from trikubelet.formats.cpu_list import set_of
from trikubelet.linux.machine_topology import MachineTopology, NumaNode

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod

_TABLES = Path(__file__).parent / "tables"
_FOUR = ((10, 11, 12, 12), (11, 10, 12, 12), (12, 12, 10, 11), (12, 12, 11, 10))
_EIGHT = (
    *((*row, 30, 30, 30, 30) for row in _FOUR),
    *((30, 30, 30, 30, *row) for row in (*_FOUR[:3], (12, 12, 13, 10))),
)
_DISTANCES = {4: _FOUR, 8: _EIGHT}


def _table(name: str) -> list[Any]:
    return cast("list[Any]", json.loads((_TABLES / f"{name}.json").read_text()))


def _hint(wire: list[Any]) -> TopologyHint:
    return TopologyHint(None if wire[0] is None else set_of(wire[0]), wire[1])


def _hints(wire: dict[str, list[Any] | None]) -> Hints:
    return {name: None if hints is None else [_hint(one) for one in hints] for name, hints in wire.items()}


def _machine(distances: tuple[tuple[int, ...], ...]) -> MachineTopology:
    return MachineTopology(tuple(NumaNode(number, distances=row) for number, row in enumerate(distances)))


@pytest.mark.parametrize("row", _table("merge"))
def test_hints_are_merged(row: dict[str, Any]) -> None:
    policy = TopologyPolicy.of(_machine(_DISTANCES[row["nodes"]]), row["policy"], TopologyOptions(row["closest"]))
    best, admitted = policy.merge([_hints(provider) for provider in row["providers"]])
    assert best == _hint(row["expected"])
    assert admitted is (row["policy"] in (NONE, BEST_EFFORT) or best.preferred)


@pytest.mark.parametrize("row", _table("compare"))
def test_one_hint_is_better_than_another(row: dict[str, Any]) -> None:
    policy = TopologyPolicy(BEST_EFFORT, (0, 1, 2, 3))
    candidate, current = _hint(row["candidate"]), row["current"]
    better = bool(candidate.nodes) and (
        current is None or policy.rank(candidate, row["wanted"]) < policy.rank(_hint(current), row["wanted"])
    )
    assert better is (row["better"] == "candidate")


@pytest.mark.parametrize("row", _table("wanted"))
def test_the_most_demanding_resource_says_how_many_nodes_are_wanted(row: dict[str, Any]) -> None:
    assert wanted_count([[_hint(one) for one in hints] for hints in row["lists"]]) == row["expected"]


@pytest.mark.parametrize("row", _table("distance"))
def test_distances_are_of_all_nodes_to_all(row: dict[str, Any]) -> None:
    distances = {one: dict(enumerate(others)) for one, others in enumerate(row["distances"])}
    policy = TopologyPolicy(BEST_EFFORT, tuple(distances), distances)
    pairs = len(row["nodes"]) ** 2
    assert policy.distance(set_of(row["nodes"])) / max(pairs, 1) == row["average"]


@pytest.mark.parametrize("row", _table("closest"))
def test_of_as_many_nodes_the_closest_are_better(row: dict[str, Any]) -> None:
    distances = {one: dict(enumerate(others)) for one, others in enumerate(row["distances"])} or None
    policy = TopologyPolicy(BEST_EFFORT, tuple(distances or ()), distances)
    current, candidate = (TopologyHint(set_of(row[name]), preferred=True) for name in ("current", "candidate"))
    assert (policy.rank(candidate, 0) < policy.rank(current, 0)) is (row["better"] == "candidate")


@pytest.mark.parametrize("row", _table("numa"))
def test_a_machine_tells_its_nodes_and_their_distances(row: dict[str, Any]) -> None:
    machine = MachineTopology(tuple(NumaNode(int(node), distances=tuple(its)) for node, its in row["nodes"].items()))
    if row["error"]:
        with pytest.raises(ValueError, match="distances"):
            TopologyPolicy.of(machine, BEST_EFFORT, TopologyOptions(row["closest"]))
        return
    policy = TopologyPolicy.of(machine, BEST_EFFORT, TopologyOptions(row["closest"]))
    assert list(policy.nodes) == row["expected"]
    if row["closest"]:
        numbers = list(map(int, row["nodes"]))
        told = {int(node): dict(zip(numbers, its, strict=False)) for node, its in row["nodes"].items()}
        assert policy.distances == told
    else:
        assert policy.distances is None


@pytest.mark.parametrize("row", [row for row in _table("new") if row["policy"] != "unknown"])
def test_a_policy_fits_options_and_machine_or_is_refused(row: dict[str, Any]) -> None:
    def made() -> TopologyPolicy:
        machine = MachineTopology(tuple(NumaNode(node) for node in row["nodes"]))
        return TopologyPolicy.of(machine, row["policy"], parse_options(row["options"]))

    if row["error"]:
        with pytest.raises(ValueError, match=r"NUMA|expected"):
            made()
    else:
        assert made().name == row["policy"]


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ({"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "8"}, TopologyOptions(True, 8)),
        ({"max-allowable-numa-nodes": "12"}, TopologyOptions(False, 12)),
        ({}, TopologyOptions(False, 8)),
    ],
)
def test_options_are_read(texts: dict[str, str], options: TopologyOptions) -> None:
    assert parse_options(texts) == options


@pytest.mark.parametrize(
    "texts",
    [
        {"prefer-closest-numa-nodes": "not a boolean"},
        {"max-allowable-numa-nodes": "can't parse to int"},
        {"max-allowable-numa-nodes": "7"},
        {"fancy-beta-option": "true"},
        {"fancy-alpha-option": "true"},
    ],
)
def test_bad_options_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"option|expected"):
        parse_options(texts)


@pytest.mark.parametrize(
    ("option", "available"),
    [("this-option-does-not-exist", False), ("prefer-closest-numa-nodes", True), ("max-allowable-numa-nodes", True)],
)
def test_options_are_there_whatever_the_gates_say(option: str, available: bool) -> None:
    """No option of the topology manager is behind a gate in 1.36, so there is none to ask."""
    value = "8" if option == "max-allowable-numa-nodes" else "true"
    if available:
        parse_options({option: value})
    else:
        with pytest.raises(ValueError, match="expected"):
            parse_options({option: value})


@pytest.mark.parametrize(("narrower", "wider"), [([0], [0, 1]), ([0], [1])])
def test_fewer_and_lower_nodes_are_narrower(narrower: list[int], wider: list[int]) -> None:
    assert narrowness(set_of(narrower)) < narrowness(set_of(wider))


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16])
def test_all_sets_of_nodes_come_the_narrowest_first(nodes: int) -> None:
    sets = [set_of(one) for one in node_sets(range(nodes))]
    assert len(set(sets)) == len(sets) == 2**nodes - 1
    sizes = [one.bit_count() for one in sets]
    assert sizes == sorted(sizes)


class _Fixed:
    """A resource manager with fixed hints. Remembers what it was told to give."""

    def __init__(self, hints: Hints, given: tuple[tuple[str, TopologyHint], ...] = (), *, full: bool = False) -> None:
        self._hints = hints
        self.given = given
        self._full = full

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return container.name in dict(self.given)

    def hints(self, pod: Pod, container: Container) -> Hints:
        """Nowhere else than where it is, and that suits nobody."""
        return {"resource": []} if self.is_settled(pod, container) else self._hints

    def pod_hints(self, pod: Pod) -> Hints:
        return self._hints

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> _Fixed:
        if self._full:
            raise AllocationError("full")
        return _Fixed(self._hints, (*self.given, (container.name, hint)))

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> _Fixed:
        return _Fixed(self._hints, (*self.given, ("", hint)))


_POD = {"uid": "pod", "init": [["init"]], "containers": [["one"], ["two"]]}


@pytest.mark.parametrize("scope", [CONTAINER_SCOPE, POD_SCOPE])
@pytest.mark.parametrize("row", _table("admit"))
def test_pods_are_admitted_or_rejected_for_their_topology(row: dict[str, Any], scope: str) -> None:
    managers = [_Fixed(_hints(provider)) for provider in row["providers"]]
    policy = TopologyPolicy(row["policy"], (0, 1))
    if row["admitted"]:
        admit(policy, scope, managers, cpu_pod(_POD))
    else:
        with pytest.raises(AllocationError) as error:
            admit(policy, scope, managers, cpu_pod(_POD))
        assert error.value.reason == TOPOLOGY_AFFINITY


@pytest.mark.parametrize("scope", [CONTAINER_SCOPE, POD_SCOPE])
def test_all_managers_give_to_all_containers_where_it_was_agreed(scope: str) -> None:
    one = _Fixed({"cpu": [TopologyHint(0b01, True), TopologyHint(0b10, True)]})
    other = _Fixed({"gpu": [TopologyHint(0b10, True)]})
    hint = TopologyHint(0b10, True)
    after = admit(TopologyPolicy(SINGLE_NUMA_NODE, (0, 1)), scope, (one, other), cpu_pod(_POD))
    assert [cast("_Fixed", manager).given for manager in after] == [(("init", hint), ("one", hint), ("two", hint))] * 2


def test_without_a_policy_nobody_is_asked() -> None:
    (after,) = admit(TopologyPolicy(NONE), POD_SCOPE, [_Fixed({"cpu": []})], cpu_pod(_POD))
    assert {hint for _, hint in cast("_Fixed", after).given} == {TopologyHint(None, False)}


@pytest.mark.parametrize(
    ("name", "pod_level", "given"), [(RESTRICTED, True, [""]), (RESTRICTED, False, ["one"]), (NONE, True, ["one"])]
)
def test_a_pod_with_resources_of_its_own_gets_them_as_a_whole(name: str, pod_level: bool, given: list[str]) -> None:
    pod = cpu_pod({"uid": "pod", "containers": [["one"]], "resources": ["2", "2"]})
    policy = TopologyPolicy(name, (0, 1))
    (after,) = admit(policy, POD_SCOPE, [_Fixed({})], pod, pod_level=pod_level)
    assert [name for name, _ in cast("_Fixed", after).given] == given


@pytest.mark.parametrize("scope", [CONTAINER_SCOPE, POD_SCOPE])
def test_who_has_everything_is_not_asked_where(scope: str) -> None:
    hint = TopologyHint(0b1, True)
    given = tuple((name, hint) for name in ("init", "one", "two"))
    settled = (_Fixed({"cpu": []}, given), _Fixed({"memory": []}, given))
    assert admit(TopologyPolicy(RESTRICTED, (0, 1)), scope, settled, cpu_pod(_POD)) == settled


def test_a_container_that_has_everything_does_not_stop_the_next_ones() -> None:
    hint = TopologyHint(0b1, True)
    manager = _Fixed({"resource": [hint]}, (("init", hint),))
    (after,) = admit(TopologyPolicy(RESTRICTED, (0, 1)), CONTAINER_SCOPE, [manager], cpu_pod(_POD))
    assert cast("_Fixed", after).given == (("init", hint), ("one", hint), ("two", hint))


def test_what_one_gave_is_not_given_when_another_refuses() -> None:
    managers = (_Fixed({}), _Fixed({}, full=True))
    with pytest.raises(AllocationError, match="full"):
        admit(TopologyPolicy(BEST_EFFORT, (0,)), CONTAINER_SCOPE, managers, cpu_pod(_POD))
    assert managers[0].given == ()


def _brute_force(policy: TopologyPolicy, lists: list[list[TopologyHint]], nodes: int) -> TopologyHint:
    """All combinations, one after the other, compared as the kubelet compares them."""
    best = None
    wanted = wanted_count(lists)
    for combination in product(*lists):
        sets = [hint.nodes for hint in combination if hint.nodes is not None]
        merged = nodes
        for one in sets:
            merged &= one
        candidate = TopologyHint(merged, len(set(sets)) <= 1 and all(hint.preferred for hint in combination))
        best = _better(policy, wanted, best, candidate)
    return best or TopologyHint(nodes)


def _better(
    policy: TopologyPolicy, wanted: int, current: TopologyHint | None, candidate: TopologyHint
) -> TopologyHint | None:
    if not candidate.nodes:
        return current
    if current is None:
        return candidate
    if current.preferred != candidate.preferred:
        return current if current.preferred else candidate
    assert current.nodes is not None
    mine, its = current.nodes.bit_count(), candidate.nodes.bit_count()
    if not current.preferred:
        if mine == wanted != its or mine < wanted < its or (mine < wanted and its < mine):
            return current
        if mine < wanted and (its == wanted or its > mine):
            return candidate
    if mine == its and policy.distances is not None:
        far, near = policy.distance(current.nodes), policy.distance(candidate.nodes)
        if far != near:
            return current if far < near else candidate
    return min(current, candidate, key=lambda hint: narrowness(hint.nodes or 0))


_SETS = st.integers(0, 0b1111)
_LISTS = st.lists(
    st.lists(st.builds(TopologyHint, st.none() | _SETS, st.booleans()), min_size=1, max_size=4), max_size=4
)


@given(_LISTS, st.booleans(), st.sampled_from([(0, 1, 2, 3), (0, 1, 2), (0, 3)]))
def test_a_merged_hint_is_the_best_of_all_combinations(
    lists: list[list[TopologyHint]], closest: bool, nodes: tuple[int, ...]
) -> None:
    distances = {one: dict(enumerate(others)) for one, others in enumerate(_FOUR)} if closest else None
    policy = TopologyPolicy(BEST_EFFORT, nodes, distances)
    providers = [{f"resource-{number}": hints} for number, hints in enumerate(lists)]
    best, _ = policy.merge(providers)
    assert best == _brute_force(policy, lists, set_of(nodes))
