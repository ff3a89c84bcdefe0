"""The three kinds of patches, on plain JSON, as far as a node agent's own patches go."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trikubelet.kube_client.types import PatchType

MERGE_KEYS: Final = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostIPs": "ip",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaimStatuses": "name",
    "volumes": "name",
}
"""Lists of pods and nodes whose items have an identity in strategic patches; other lists are replaced as a whole."""


def patched(document: Mapping[str, Any], kind: PatchType, body: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """The document with the patch applied; neither argument is changed. Raises ValueError for a patch that fails."""
    if kind is PatchType.JSON:
        return json_patched(document, body)
    if not isinstance(body, Mapping):
        raise ValueError(f"expected an object as {kind.value}, got {body!r}")
    return _merged(document, body, strategic=kind is PatchType.STRATEGIC)


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any], *, strategic: bool) -> dict[str, Any]:
    if strategic and patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(copy.deepcopy(old))
    for key, value in patch.items():
        if strategic and key.startswith("$"):
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, Mapping) else {}, value, strategic=strategic)
        elif strategic and isinstance(value, list) and key in MERGE_KEYS:
            result[key] = _merged_list(result.get(key, []), value, MERGE_KEYS[key])
        else:
            result[key] = copy.deepcopy(value)
    if strategic:
        _order(result, patch)
    return result


def _merged_list(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if "$patch" not in item]
    result = list(old)
    for item in patch:
        index = next((number for number, known in enumerate(result) if known.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(copy.deepcopy(item))
        else:
            result[index] = _merged(result[index], item, strategic=True)
    return result


def _order(result: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for directive, wanted in patch.items():
        name = directive.removeprefix("$setElementOrder/")
        if name == directive or name not in MERGE_KEYS or name not in result:
            continue
        key = MERGE_KEYS[name]
        places = {item[key]: place for place, item in enumerate(wanted)}
        # Items that the patch does not name keep their place before the named ones.
        result[name].sort(key=lambda item: places.get(item.get(key), -1))


def json_patched(document: Mapping[str, Any], operations: Any) -> dict[str, Any]:
    """RFC 6902 with `add`, `remove`, `replace` and `test`."""
    result = dict(copy.deepcopy(document))
    for operation in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].removeprefix("/").split("/")
        ]
        target: Any = result
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        key: Any = (len(target) if last == "-" else int(last)) if isinstance(target, list) else last
        match operation["op"]:
            case "remove":
                del target[key]
            case "test" if (target[key] if isinstance(target, list) else target.get(key)) != operation["value"]:
                raise ValueError(f"test failed at {operation['path']}")
            case "add" if isinstance(target, list):
                target.insert(key, operation["value"])
            case "add" | "replace":
                target[key] = operation["value"]
    return result
