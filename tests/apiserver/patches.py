"""The three kinds of PATCH that the server takes. All are pure: documents in, a new document out."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.apiserver.documents import Document, clone
from tests.apiserver.errors import bad_request, unprocessable, unsupported_media
from tests.apiserver.strategic import strategic_merge

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
PATCH_TYPES: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)


def apply_patch(document: Document, content_type: str, body: bytes | Any, kind: str) -> Document:
    """The document after the patch. Raises ApiFailure for what cannot be applied."""
    patch = _load(body) if isinstance(body, bytes) else body
    kind_of_patch = content_type.partition(";")[0].strip()
    if kind_of_patch == JSON_PATCH:
        return json_patch(document, patch)
    if kind_of_patch not in PATCH_TYPES:
        raise unsupported_media(PATCH_TYPES)
    if not isinstance(patch, dict):
        raise bad_request(
            f"json: cannot unmarshal {type(patch).__name__} into Go value of type map[string]interface {{}}"
        )
    if kind_of_patch == MERGE_PATCH:
        merged: Document = merge_patch(document, patch)
        return merged
    return strategic_merge(document, patch, kind)


def _load(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from error


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects are merged, everything else replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(document: Document, operations: Any) -> Document:
    """RFC 6902. Raises ApiFailure 422 when an operation, a `test` among them, does not apply."""
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: expected a list of operations")
    changed: Any = clone(document)
    for operation in operations:
        try:
            changed = _apply_operation(changed, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise unprocessable("the server rejected our request due to an error in our request") from error
    if not isinstance(changed, dict):
        raise unprocessable("the server rejected our request due to an error in our request")
    return changed


def _apply_operation(document: Any, operation: Document) -> Any:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "add":
            return _add(document, path, clone(operation["value"]))
        case "remove":
            return _remove(document, path)
        case "replace":
            _find(document, path)
            return _put(document, path, clone(operation["value"]))
        case "move":
            source = _pointer(operation["from"])
            if path[: len(source)] == source and path != source:
                raise ValueError("an object cannot be moved into itself")
            value = _find(document, source)
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, clone(_find(document, _pointer(operation["from"]))))
        case "test":
            if not _same(_find(document, path), operation["value"]):
                raise ValueError(f"testing value {operation['path']} failed")
            return document
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _same(left: Any, right: Any) -> bool:
    """JSON's equality, where true is no number."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"expected a pointer that begins with a slash, got {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(key: str, length: int) -> int:
    if not key.isdecimal() or int(key) >= length:
        raise IndexError(f"{key} is no place in a list of {length}")
    return int(key)


def _find(document: Any, path: list[str]) -> Any:
    for key in path:
        document = document[_index(key, len(document))] if isinstance(document, list) else document[key]
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        place = len(parent) if path[-1] == "-" else _index(path[-1], len(parent) + 1)
        parent.insert(place, value)
    else:
        parent[path[-1]] = value
    return document


def _put(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    parent[_index(path[-1], len(parent)) if isinstance(parent, list) else path[-1]] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    parent = _find(document, path[:-1])
    del parent[_index(path[-1], len(parent)) if isinstance(parent, list) else path[-1]]
    return document
