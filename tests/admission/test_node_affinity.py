"""Nodes that pods want to be on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.admission.situations import make_pod, requires, term, wants
from trikubelet.admission.predicates import matches_node
from trikubelet.api import Affinity, NodeAffinity, NodeSelectorTerm, PreferredSchedulingTerm

if TYPE_CHECKING:
    from trikubelet.api import NodeSelectorRequirement

BAR = {"foo": "bar"}


def matches(labels: dict[str, str], name: str = "node_1", **spec: Any) -> bool:
    return matches_node(make_pod(**spec), name, labels)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [({}, False), (BAR, True), (BAR | {"baz": "blah"}, True), ({"foo": "other"}, False)],
)
def test_all_labels_of_the_node_selector_have_to_be_there(labels: dict[str, str], expected: bool) -> None:
    assert matches(labels, node_selector=BAR) is expected
    assert not matches(labels, node_selector=BAR | {"more": "x"})


def test_a_pod_that_names_no_node_may_be_on_any() -> None:
    assert matches({})
    assert matches(BAR, affinity=Affinity())
    assert matches(BAR, affinity=Affinity(node_affinity=NodeAffinity()))


def test_what_a_pod_prefers_does_not_count() -> None:
    preferred = PreferredSchedulingTerm(weight=1, preference=term(wants("foo", "In", "other")))
    affinity = NodeAffinity(preferred_during_scheduling_ignored_during_execution=(preferred,))
    assert matches(BAR, affinity=Affinity(node_affinity=affinity))


@pytest.mark.parametrize(
    ("wanted", "label", "expected"),
    [
        (wants("key", "In", "bar", "value2"), "bar", True),
        (wants("key", "In", "value1", "value2"), "bar", False),
        (wants("key", "In", "bar"), None, False),
        (wants("key", "NotIn", "DDR", "DDR2"), "DDR3", True),
        (wants("key", "NotIn", "DDR", "DDR2"), "DDR", False),
        (wants("key", "NotIn", "DDR"), None, True),
        (wants("key", "Exists"), "NVIDIA-GRID-K1", True),
        (wants("key", "Exists"), "", True),
        (wants("key", "Exists"), None, False),
        (wants("key", "DoesNotExist"), None, True),
        (wants("key", "DoesNotExist"), "", False),
        (wants("key", "Gt", "0204"), "0206", True),
        (wants("key", "Gt", "0206"), "0206", False),
        (wants("key", "Lt", "7"), "6", True),
        (wants("key", "Lt", "7"), "7", False),
        (wants("key", "Lt", "7"), "-8", True),
        (wants("key", "Gt", "1"), "two", False),
        (wants("key", "Gt", "1"), None, False),
        (wants("key", "Lt", "7"), None, False),
        (wants("key", "Lt", "7"), "-99999999999999999999", False),
    ],
)
def test_one_label(wanted: NodeSelectorRequirement, label: str | None, expected: bool) -> None:
    labels = {} if label is None else {"key": label}
    assert matches(labels, affinity=requires(term(wanted))) is expected


@pytest.mark.parametrize(
    "nonsense",
    [
        wants("key", "In"),
        wants("key", "NotIn"),
        wants("key", "Exists", "bar", "baz"),
        wants("other", "DoesNotExist", "bar"),
        wants("key", "Gt", "1", "2"),
        wants("key", "Gt", "one"),
        wants("key", "Gt"),
        wants("key", "invalid", "5"),
        wants("key", "", "5"),
        wants("invalid key", "NotIn", "5"),
        wants("key", "NotIn", "invalid value: ___@#$%^"),
        wants("key", "Gt", "99999999999999999999"),
    ],
)
def test_a_term_that_makes_no_sense_holds_nowhere_and_hinders_no_other(nonsense: NodeSelectorRequirement) -> None:
    assert not matches({"key": "5"}, affinity=requires(term(nonsense)))
    assert matches({"key": "5"}, affinity=requires(term(nonsense), term(wants("key", "In", "5"))))


@pytest.mark.parametrize("terms", [(), (NodeSelectorTerm(),)])
def test_terms_that_say_nothing_hold_nowhere(terms: tuple[NodeSelectorTerm, ...]) -> None:
    assert not matches(BAR, affinity=requires(*terms))


def test_all_of_a_term_has_to_hold_but_only_one_term() -> None:
    gpu = {"GPU": "NVIDIA-GRID-K1"}
    exists = wants("GPU", "Exists")
    assert matches(gpu, affinity=requires(term(exists, wants("GPU", "NotIn", "AMD", "INTER"))))
    assert not matches(gpu, affinity=requires(term(exists, wants("GPU", "In", "AMD", "INTER"))))
    either = requires(term(wants("foo", "In", "bar", "value2")), term(wants("diffkey", "In", "wrong", "value2")))
    assert matches(BAR, affinity=either)


def test_the_selector_and_the_affinity_both_have_to_hold() -> None:
    exists = requires(term(wants("foo", "Exists")))
    assert matches(BAR, node_selector=BAR, affinity=exists)
    assert not matches({"foo": "barrrrrr"}, node_selector=BAR, affinity=exists)


def by_name(operator: str, *names: str) -> NodeSelectorTerm:
    return term(fields=(wants("metadata.name", operator, *names),))


def test_a_node_can_be_wanted_by_its_name() -> None:
    assert matches({}, affinity=requires(by_name("In", "node_1")))
    assert not matches({}, name="node_2", affinity=requires(by_name("In", "node_1")))
    assert matches({}, name="node_2", affinity=requires(by_name("NotIn", "node_1")))
    assert not matches({}, affinity=requires(by_name("NotIn", "node_1")))


@pytest.mark.parametrize("nonsense", [by_name("In", "node_1", "node_2"), by_name("In"), by_name("Exists")])
def test_a_field_has_one_value(nonsense: NodeSelectorTerm) -> None:
    assert not matches({}, affinity=requires(nonsense))


def test_a_node_has_no_field_but_its_name() -> None:
    assert not matches({}, affinity=requires(term(fields=(wants("metadata.uid", "In", "node_1"),))))
    assert matches({}, affinity=requires(term(fields=(wants("metadata.uid", "NotIn", "node_1"),))))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("node_1", "bar", True), ("node_2", "bar", False), ("node_1", "not-match-to-bar", False)],
)
def test_name_and_labels_of_one_term(name: str, value: str, expected: bool) -> None:
    fields = (wants("metadata.name", "In", "node_1"),)
    both = requires(term(wants("foo", "In", value), fields=fields))
    assert matches(BAR, name=name, affinity=both) is expected


def test_name_or_labels_in_two_terms() -> None:
    assert matches(BAR, name="node_2", affinity=requires(by_name("In", "node_1"), term(wants("foo", "In", "bar"))))
    assert not matches(BAR, name="node_2", affinity=requires(by_name("In", "node_1"), term(wants("foo", "In", "x"))))
