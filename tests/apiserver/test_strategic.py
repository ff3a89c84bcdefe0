"""Strategic merge patches: cases after `strategicpatch/patch_test.go`, with lists that agents write."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver.documents import clone
from tests.apiserver.errors import ApiFailure
from tests.apiserver.strategic import strategic_merge

Document = dict[str, Any]


def conditions(*names: str) -> Document:
    """`Ready:True` stands for a condition."""
    found = []
    for name in names:
        kind, _, status = name.partition(":")
        found.append({"type": kind, "status": status} if status else {"type": kind})
    return {"conditions": found}


CASES: list[tuple[str, Document, Document, Document]] = [
    ("a field is added", {}, {"phase": "Running"}, {"phase": "Running"}),
    ("a field is removed", {"phase": "x", "reason": "y"}, {"reason": None}, {"phase": "x"}),
    ("a field that is not there cannot be removed", {"phase": "x"}, {"reason": None}, {"phase": "x"}),
    ("nulls inside something new are dropped", {}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ("a map is merged", {"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
    ("a map is replaced", {"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 3}}, {"a": {"c": 3}}),
    ("a map is emptied", {"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {"a": {}}),
    ("a map that is not there is not deleted", {}, {"a": {"$patch": "delete"}}, {}),
    ("keys are retained", {"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["c", "d"], "d": 4}}, {"a": {"c": 2, "d": 4}}),
    (
        "an element is changed in its place, which is before what the patch does not name",
        conditions("A:1", "B:1"),
        conditions("B:2"),
        conditions("A:1", "B:2"),
    ),
    ("an element is added", conditions("A:1"), conditions("B:1"), conditions("B:1", "A:1")),
    (
        "an element is removed",
        conditions("A:1", "B:1"),
        {"conditions": [{"$patch": "delete", "type": "A"}]},
        conditions("B:1"),
    ),
    (
        "the removal of what is not there is none",
        conditions("A:1"),
        {"conditions": [{"$patch": "delete", "type": "X"}]},
        conditions("A:1"),
    ),
    (
        "a list is replaced",
        conditions("A:1", "B:1"),
        {"conditions": [{"$patch": "replace"}, {"type": "C", "status": "1"}]},
        conditions("C:1"),
    ),
    (
        "the order is set",
        conditions("A:1", "B:1", "C:1"),
        {"$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}, {"type": "B"}]},
        conditions("C:1", "A:1", "B:1"),
    ),
    (
        "the order is set, and what it does not name keeps its place before what it stood before",
        conditions("A:1", "mine:1", "B:1"),
        {"$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}]},
        conditions("A:1", "mine:1", "B:1"),
    ),
    (
        "an addition comes where the order says",
        conditions("A:1", "B:1"),
        {
            "$setElementOrder/conditions": [{"type": "A"}, {"type": "N"}, {"type": "B"}],
            "conditions": [{"type": "N", "status": "1"}],
        },
        conditions("A:1", "N:1", "B:1"),
    ),
    (
        "changed, removed and ordered at once",
        conditions("A:1", "B:1", "other:1"),
        {
            "$setElementOrder/conditions": [{"type": "B"}],
            "conditions": [{"type": "B", "status": "2"}, {"$patch": "delete", "type": "A"}],
        },
        conditions("B:2", "other:1"),
    ),
    (
        "a list without key is replaced",
        {"containerStatuses": [{"name": "a"}]},
        {"containerStatuses": []},
        {"containerStatuses": []},
    ),
    (
        "addresses of pods go by ip",
        {"podIPs": [{"ip": "1"}]},
        {"podIPs": [{"ip": "2"}]},
        {"podIPs": [{"ip": "2"}, {"ip": "1"}]},
    ),
]


@pytest.mark.parametrize(("before", "patch", "after"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_pods_status_is_merged(before: Document, patch: Document, after: Document) -> None:
    old, change = {"status": before}, {"status": patch}
    untouched = clone(old), clone(change)
    assert strategic_merge(old, change, "Pod") == {"status": after}
    assert (old, change) == untouched


def test_finalizers_are_a_set() -> None:
    old = {"metadata": {"finalizers": ["a", "b"]}}
    added = strategic_merge(old, {"metadata": {"finalizers": ["b", "c"]}}, "Node")
    assert sorted(added["metadata"]["finalizers"]) == ["a", "b", "c"]
    removed = strategic_merge(old, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, "Node")
    assert removed["metadata"]["finalizers"] == ["b"]


def test_lists_within_elements_have_keys_of_their_own() -> None:
    old = {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}], "args": ["x"]}]}}
    patch = {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}], "args": ["y"]}]}}
    container = strategic_merge(old, patch, "Pod")["spec"]["containers"][0]
    assert {e["name"] for e in container["env"]} == {"X", "Y"}
    assert container["args"] == ["y"]


def test_node_addresses_of_one_type_replace_each_other_unless_the_list_is_replaced() -> None:
    old = {"status": {"addresses": [{"type": "InternalIP", "address": "1"}, {"type": "InternalIP", "address": "::1"}]}}
    new = [{"type": "InternalIP", "address": "2"}, {"type": "InternalIP", "address": "::2"}]
    merged = strategic_merge(old, {"status": {"addresses": new}}, "Node")
    assert merged["status"]["addresses"] != new
    replaced = strategic_merge(old, {"status": {"addresses": [{"$patch": "replace"}, *new]}}, "Node")
    assert replaced["status"]["addresses"] == new


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"status": {"conditions": [{"status": "True"}]}}, 500),
        ({"status": {"$patch": "merge"}}, 500),
        ({"status": {"$setElementOrder/conditions": [{"type": "A"}], "conditions": [{"type": "B"}]}}, 400),
        ({"status": {"$retainKeys": "x"}}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(patch: Document, code: int) -> None:
    with pytest.raises(ApiFailure) as caught:
        strategic_merge({"status": conditions("A:1")}, patch, "Pod")
    assert caught.value.code == code
