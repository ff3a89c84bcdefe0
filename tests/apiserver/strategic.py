"""Strategic merge patches: merge patches that know which lists are sets of named things.

Facts from `apimachinery/pkg/util/strategicpatch`: the directives `$patch`, `$retainKeys`, `$setElementOrder/LIST` and
`$deleteFromPrimitiveList/LIST`, and in which order a merged list ends up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.apiserver.documents import Document, clone
from tests.apiserver.errors import ApiFailure, bad_request
from tests.apiserver.merge_keys import PRIMITIVE, merge_keys

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTIVE: Final = "$patch"
RETAIN: Final = "$retainKeys"
ORDER: Final = "$setElementOrder/"
DELETE_FROM: Final = "$deleteFromPrimitiveList/"


def strategic_merge(document: Document, patch: Document, kind: str) -> Document:
    """`document` with `patch` applied; neither is changed. Raises ApiFailure."""
    return _merge_map(clone(document), clone(patch), "", merge_keys(kind))


def _merge_map(old: Document, patch: Document, path: str, keys: dict[str, str]) -> Document:
    if DIRECTIVE in patch:
        return _directed_map(patch)
    _retain(old, patch)
    for order_key in [key for key in patch if key.startswith(ORDER)]:
        _merge_ordered(old, patch, order_key, path, keys)
    for key, new in patch.items():
        if key.startswith(DELETE_FROM):
            name = key.removeprefix(DELETE_FROM)
            if isinstance(old.get(name), list):
                old[name] = [item for item in old[name] if item not in new]
            continue
        before = old.get(key)
        inner = f"{path}.{key}" if path else key
        if new is None:
            old.pop(key, None)
        elif isinstance(before, dict) and isinstance(new, dict):
            old[key] = _merge_map(before, new, inner, keys)
        elif isinstance(before, list) and isinstance(new, list) and inner in keys:
            merged = _merge_list(before, new, inner, keys)
            order = [item for item in new if not (isinstance(item, dict) and DIRECTIVE in item)]
            old[key] = _ordered(merged, order, before, keys[inner])
        else:
            _take(old, key, new)
    return old


def _directed_map(patch: Document) -> Document:
    directive = patch.pop(DIRECTIVE)
    if directive == "replace":
        return patch
    if directive == "delete":
        return {}
    raise _unknown_directive(directive)


def _unknown_directive(directive: object) -> ApiFailure:
    return ApiFailure(500, "InternalError", f"Unknown patch type {directive!r} found")


def _retain(old: Document, patch: Document) -> None:
    retained = patch.pop(RETAIN, None)
    if retained is None:
        return
    if not isinstance(retained, list):
        raise bad_request("invalid patch format of retainKeys")
    for key in list(old):
        if key not in retained:
            del old[key]


def _take(old: Document, key: str, new: Any) -> None:
    """A value that replaces, or is new: without the nulls and directives in it."""
    cleaned = _cleaned(new)
    if cleaned is None:
        old.pop(key, None)
    else:
        old[key] = cleaned


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get(DIRECTIVE) == "delete":
            return None
        found = {key: _cleaned(item) for key, item in value.items() if not key.startswith("$")}
        return {key: item for key, item in found.items() if item is not None}
    if isinstance(value, list):
        return [item for item in (_cleaned(item) for item in value) if item is not None]
    return value


def _merge_list(old: list[Any], patch: list[Any], path: str, keys: dict[str, str]) -> list[Any]:
    key = keys[path]
    if key == PRIMITIVE:
        return list(dict.fromkeys([*old, *patch]))
    merged = list(old)
    changes = []
    for item in patch:
        directive = item.get(DIRECTIVE)
        if directive is None:
            changes.append(item)
        elif directive == "delete":
            merged = [entry for entry in merged if entry.get(key) != _key_of(item, key)]
        elif directive != "replace":
            raise _unknown_directive(directive)
    if any(item.get(DIRECTIVE) == "replace" for item in patch):
        return [_cleaned(change) for change in changes]
    for change in changes:
        wanted = _key_of(change, key)
        place = next((index for index, entry in enumerate(merged) if entry.get(key) == wanted), None)
        if place is None:
            merged.append(_cleaned(change))
        else:
            merged[place] = _merge_map(merged[place], change, path, keys)
    return merged


def _key_of(item: Document, key: str) -> Any:
    if key not in item:
        text = ", ".join(f"{name}:{value}" for name, value in sorted(item.items()))
        raise ApiFailure(500, "InternalError", f"map: map[{text}] does not contain declared merge key: {key}")
    return item[key]


def _merge_ordered(old: Document, patch: Document, order_key: str, path: str, keys: dict[str, str]) -> None:
    """A list whose order the patch says: `$setElementOrder/conditions: [{"type": "Ready"}, …]`."""
    order = patch.pop(order_key)
    name = order_key.removeprefix(ORDER)
    inner = f"{path}.{name}" if path else name
    changes = patch.pop(name, None)
    before = old.get(name)
    if inner not in keys:
        if changes is not None:
            old[name] = changes
        return
    key = keys[inner]
    named = [_identity(key)(item) for item in order]
    for item in changes or []:
        if not (isinstance(item, dict) and DIRECTIVE in item) and _identity(key)(item) not in named:
            raise bad_request(f"The order in patch list:\n{changes}\n doesn't match $setElementOrder list:\n{order}\n")
    if before is None and changes is None:
        return
    merged = _merge_list(list(before or []), list(changes or []), inner, keys)
    old[name] = _ordered(merged, order, before or [], key)


def _identity(key: str) -> Callable[[Any], Any]:
    def identity(item: Any) -> Any:
        return item if key == PRIMITIVE else item.get(key)

    return identity


def _ordered(merged: list[Any], order: list[Any], before: list[Any], key: str) -> list[Any]:
    """What `order` names comes in its order; the rest keeps its place before what it stood before until now."""
    identity = _identity(key)
    wanted = [identity(item) for item in order]
    places = [identity(item) for item in before]
    named = sorted((item for item in merged if identity(item) in wanted), key=lambda item: wanted.index(identity(item)))
    others = [item for item in merged if identity(item) not in wanted]
    result = []
    while named and others:
        other, next_named = identity(others[0]), identity(named[0])
        stood_before = other in places and next_named in places and places.index(other) < places.index(next_named)
        result.append(others.pop(0) if stood_before else named.pop(0))
    return result + named + others
