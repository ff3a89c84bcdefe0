"""The table's rows are those of apimachinery's strategicpatch/patch_test.go that a maker of patches can meet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.strategic import strategic_merge
from trikubelet.kube_client.patches import NODE_LISTS, POD_LISTS, MissingMergeKeyError, replacing, strategic_patch

LISTS = {"list": "name", "list.inner": "name", "map.list": "name"}

TABLE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing changed": ({"a": 1, "list": [{"name": 1}]}, {"a": 1, "list": [{"name": 1}]}, {}),
    "add field to map": ({"name": 1}, {"name": 1, "value": 1}, {"value": 1}),
    "add field and delete field from map": ({"name": 1}, {"value": 1}, {"name": None, "value": 1}),
    "delete field from nested map": ({"map": {"k1": 1, "k2": 2}}, {"map": {"k1": 1}}, {"map": {"k2": None}}),
    "delete all fields from map": ({"name": 1, "value": 1}, {}, {"name": None, "value": None}),
    "delete a map": ({"map": {"k": 1}}, {}, {"map": None}),
    "replace list of scalars": ({"plain": [1, 2]}, {"plain": [2, 3]}, {"plain": [2, 3]}),
    "replace a list of maps that is not merged": (
        {"plain": [{"name": 1}, {"name": 2}]},
        {"plain": [{"name": 1}]},
        {"plain": [{"name": 1}]},
    ),
    "replace map by list": ({"x": {"a": 1}}, {"x": [1]}, {"x": [1]}),
    "tell a number from a truth value": ({"x": 1}, {"x": True}, {"x": True}),
    "delete all maps from merging list": (
        {"list": [{"name": 1}, {"name": 2}]},
        {"list": []},
        {"list": [{"name": 1, "$patch": "delete"}, {"name": 2, "$patch": "delete"}]},
    ),
    "merge empty merging lists": ({"list": []}, {"list": []}, {}),
    "fill an empty list": ({"list": []}, {"list": [{"name": 1}]}, {"list": [{"name": 1}]}),
    "a list that was not there": ({}, {"list": [{"name": 1}]}, {"list": [{"name": 1}]}),
    "a list that is gone": ({"list": [{"name": 1}]}, {}, {"list": None}),
    "merge lists of maps": (
        {"list": [{"name": 1}, {"name": 2, "value": 2}]},
        {"list": [{"name": 4, "value": 4}, {"name": 1}, {"name": 2, "value": 2}, {"name": 3, "value": 3}]},
        {
            "$setElementOrder/list": [{"name": 4}, {"name": 1}, {"name": 2}, {"name": 3}],
            "list": [{"name": 4, "value": 4}, {"name": 3, "value": 3}],
        },
    ),
    "add field to map in merging list": (
        {"list": [{"name": 1}, {"name": 2, "value": 2}]},
        {"list": [{"name": 1, "value": 1}, {"name": 2, "value": 2}]},
        {"$setElementOrder/list": [{"name": 1}, {"name": 2}], "list": [{"name": 1, "value": 1}]},
    ),
    "replace map field value in merging list": (
        {"list": [{"name": 1, "value": 1}, {"name": 2, "value": 2}]},
        {"list": [{"name": 1, "value": "a"}, {"name": 2, "value": 2}]},
        {"$setElementOrder/list": [{"name": 1}, {"name": 2}], "list": [{"name": 1, "value": "a"}]},
    ),
    "delete map from merging list": (
        {"list": [{"name": 1}, {"name": 2}]},
        {"list": [{"name": 1}]},
        {"$setElementOrder/list": [{"name": 1}], "list": [{"name": 2, "$patch": "delete"}]},
    ),
    "delete field from map in merging list": (
        {"list": [{"name": 1, "value": 1}, {"name": 2, "value": 2}]},
        {"list": [{"name": 1}, {"name": 2, "value": 2}]},
        {"$setElementOrder/list": [{"name": 1}, {"name": 2}], "list": [{"name": 1, "value": None}]},
    ),
    "replace non merging list nested in merging list": (
        {"list": [{"name": 1, "plain": [1, 2]}, {"name": 2}]},
        {"list": [{"name": 1, "plain": [1, 3]}, {"name": 2}]},
        {"$setElementOrder/list": [{"name": 1}, {"name": 2}], "list": [{"name": 1, "plain": [1, 3]}]},
    ),
    "add field to map in merging list nested in merging list": (
        {"list": [{"name": 1, "inner": [{"name": 1}, {"name": 2, "value": 2}]}]},
        {"list": [{"name": 1, "inner": [{"name": 1, "value": 1}, {"name": 2, "value": 2}]}]},
        {
            "$setElementOrder/list": [{"name": 1}],
            "list": [
                {
                    "$setElementOrder/inner": [{"name": 1}, {"name": 2}],
                    "inner": [{"name": 1, "value": 1}],
                    "name": 1,
                }
            ],
        },
    ),
    "add an item in a list and preserve order": (
        {"list": [{"name": 1}, {"name": 2, "value": 2}]},
        {"list": [{"name": 3, "value": 3}, {"name": 1}, {"name": 2, "value": 2}]},
        {"$setElementOrder/list": [{"name": 3}, {"name": 1}, {"name": 2}], "list": [{"name": 3, "value": 3}]},
    ),
    "add and delete an item in a list and preserve order": (
        {"list": [{"name": 1}, {"name": 3, "value": 3}, {"name": 2, "value": 2}]},
        {"list": [{"name": 4, "value": 4}, {"name": 2, "value": 2}, {"name": 1}]},
        {
            "$setElementOrder/list": [{"name": 4}, {"name": 2}, {"name": 1}],
            "list": [{"name": 4, "value": 4}, {"name": 3, "$patch": "delete"}],
        },
    ),
    "set elements order in a list": (
        {"list": [{"name": 1}, {"name": 3, "value": 3}, {"name": 2, "value": 2}]},
        {"list": [{"name": 2, "value": 2}, {"name": 3, "value": 3}, {"name": 1}]},
        {"$setElementOrder/list": [{"name": 2}, {"name": 3}, {"name": 1}]},
    ),
    "within a map": (
        {"map": {"list": [{"name": 1}], "x": 1}},
        {"map": {"list": [{"name": 1, "v": 2}], "x": 1}},
        {"map": {"$setElementOrder/list": [{"name": 1}], "list": [{"name": 1, "v": 2}]}},
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_a_patch_names_what_changed(row: str) -> None:
    old, new, expected = TABLE[row]
    assert strategic_patch(old, new, LISTS) == expected


def test_an_item_without_its_key_is_a_mistake() -> None:
    with pytest.raises(MissingMergeKeyError, match="every item of list to have 'name'"):
        strategic_patch({"list": [{"name": 1}]}, {"list": [{"value": 1}]}, LISTS)


def test_conditions_of_others_survive_a_patch_of_ours() -> None:
    ready = {"type": "Ready", "status": "False"}
    old: dict[str, Any] = {
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}, ready]}
    }
    new = {"status": {"phase": "Running", "conditions": [old["status"]["conditions"][0], {**ready, "status": "True"}]}}
    patch = strategic_patch(old, new, POD_LISTS)
    gate = {"type": "example.com/gate", "status": "True"}
    third = {"status": {**old["status"], "conditions": [*old["status"]["conditions"], gate]}}
    result = strategic_merge(third, patch, "Pod")
    assert {item["type"]: item["status"] for item in result["status"]["conditions"]} == {
        "PodScheduled": "True",
        "Ready": "True",
        "example.com/gate": "True",
    }
    assert result["status"]["phase"] == "Running"


def test_a_list_can_be_replaced_although_its_kind_is_merged() -> None:
    old = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}
    addresses = [{"type": "InternalDNS", "address": "a.b"}, {"type": "Hostname", "address": "a"}]
    patch = {"status": {"addresses": replacing(addresses)}}
    assert strategic_merge(old, patch, "Node")["status"]["addresses"] == addresses
    assert NODE_LISTS["status.addresses"] == "type"


scalars = st.one_of(st.integers(0, 3), st.sampled_from(["x", "y"]), st.booleans())
named = st.lists(st.tuples(st.sampled_from("abcd"), scalars), max_size=4, unique_by=lambda pair: pair[0])
statuses = st.fixed_dictionaries(
    {},
    optional={
        "phase": scalars,
        "conditions": named.map(lambda pairs: [{"type": key, "status": value} for key, value in pairs]),
        "podIPs": named.map(lambda pairs: [{"ip": key} for key, _ in pairs]),
        "containerStatuses": named.map(lambda pairs: [{"name": key, "state": {"x": value}} for key, value in pairs]),
        "resources": st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.sampled_from("cd"), scalars)),
    },
)


@pytest.mark.fuzz
@given(old=statuses, new=statuses)
def test_the_server_makes_the_new_object_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = strategic_patch({"status": old}, {"status": new}, POD_LISTS)
    assert strategic_merge({"status": old}, patch, "Pod") == {"status": new}
    assert strategic_patch({"status": new}, {"status": new}, POD_LISTS) == {}
