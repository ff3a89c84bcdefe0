"""Merge and JSON patches: rows of RFC 7396 and RFC 6902."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver.errors import ApiFailure
from tests.apiserver.patches import json_patch, merge_patch


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


def operation(op: str, path: str, **rest: Any) -> dict[str, Any]:
    return {"op": op, "path": path, **rest}


@pytest.mark.parametrize(
    ("document", "operations", "result"),
    [
        ({"a": 1}, [operation("add", "/b", value=2)], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [operation("add", "/a/1", value=2)], {"a": [1, 2, 3]}),
        ({"a": [1]}, [operation("add", "/a/-", value=2)], {"a": [1, 2]}),
        ({"a": 1, "b": 2}, [operation("remove", "/b")], {"a": 1}),
        ({"a": [1, 2, 3]}, [operation("remove", "/a/1")], {"a": [1, 3]}),
        ({"a": 1}, [operation("replace", "/a", value=2)], {"a": 2}),
        ({"a": {"b": 1}}, [operation("move", "/c", **{"from": "/a/b"})], {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, [operation("copy", "/c", **{"from": "/a"})], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": 1, "m~n": 2}, [operation("remove", "/a~1b"), operation("remove", "/m~0n")], {}),
        ({"a": 1}, [operation("test", "/a", value=1), operation("add", "/b", value=None)], {"a": 1, "b": None}),
    ],
)
def test_json_patches(document: Any, operations: Any, result: Any) -> None:
    assert json_patch(document, operations) == result


@pytest.mark.parametrize(
    "operations",
    [
        [operation("test", "/a", value=2)],
        [operation("test", "/a", value=True)],
        [operation("remove", "/missing")],
        [operation("replace", "/missing", value=1)],
        [operation("add", "/missing/b", value=1)],
        [operation("add", "/list/5", value=1)],
        [operation("move", "/map/inner", **{"from": "/map"})],
        [operation("mystery", "/a")],
        [operation("add", "a", value=1)],
        [{"op": "add", "path": "/b"}],
    ],
)
def test_what_does_not_apply_is_refused_as_a_whole(operations: Any) -> None:
    document = {"a": 1, "list": [], "map": {}}
    with pytest.raises(ApiFailure) as caught:
        json_patch(document, [operation("add", "/first", value=1), *operations])
    assert caught.value.code == 422
    assert document == {"a": 1, "list": [], "map": {}}
