"""Strategic merge patches: the difference of two objects, as an API server applies it to a third.

Between reading an object and patching it, others change it too. A strategic merge patch names only what we change,
also within lists whose items have a name of their own (a status' conditions, by `type`), so the changes of others stay.
Which lists those are, and by which key, is part of the API's schema; the few that the agent writes are in tables here.
All other lists are replaced whole. Lists of plain strings that are merged too (finalizers) are nothing that the agent
changes, and are not provided for.

Objects are JSON values as `to_dict` makes them. Source: apimachinery's strategicpatch package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    MergeKeys = Mapping[str, str]
    """The merge key of each list that is merged, by its path without indexes: `status.conditions` → `type`."""

POD_LISTS: Final = {
    "metadata.ownerReferences": "uid",
    "status.conditions": "type",
    "status.hostIPs": "ip",
    "status.podIPs": "ip",
    "status.resourceClaimStatuses": "name",
}
"""Lists of a pod's metadata and status that are merged. The three lists of container statuses are not."""

NODE_LISTS: Final = {
    "metadata.ownerReferences": "uid",
    "status.addresses": "type",
    "status.conditions": "type",
}
"""Lists of a node's metadata and status that are merged.

By its type an address is found wrongly when there are two of one type: give changed addresses as `replacing` does.
"""

DIRECTIVE: Final = "$patch"
ORDER: Final = "$setElementOrder/"


@frozen
class MissingMergeKeyError(ValueError):
    """An item of a list that is merged does not have the key that names it."""

    path: str
    key: str

    def __str__(self) -> str:
        return f"expected every item of {self.path} to have {self.key!r}, by which the list is merged"


def strategic_patch(old: Mapping[str, Any], new: Mapping[str, Any], lists: MergeKeys) -> dict[str, Any]:
    """The patch that makes `new` of `old`; empty when they are equal.

    What `old` alone has is removed (null). Of a list that is merged the patch holds new and changed items, the latter
    only with what changed, a deletion for each item that is gone, and the order of all. Raises MissingMergeKeyError.
    """
    return _map_patch(old, new, lists, "")


def replacing(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A list's value in a patch that replaces the whole list, though lists of its kind are merged."""
    return [*map(dict, items), {DIRECTIVE: "replace"}]


def _map_patch(old: Mapping[str, Any], new: Mapping[str, Any], lists: MergeKeys, path: str) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for field, after in new.items():
        before = old.get(field)
        if before == after and type(before) is type(after) and field in old:
            continue
        where = f"{path}.{field}" if path else field
        if isinstance(before, dict) and isinstance(after, dict):
            if changes := _map_patch(before, after, lists, where):
                patch[field] = changes
        elif before and isinstance(before, list) and isinstance(after, list) and where in lists:
            patch.update(_list_patch(field, before, after, lists, where))
        else:
            patch[field] = after
    patch.update((field, None) for field in old if field not in new)
    return patch


def _list_patch(
    field: str, old: list[dict[str, Any]], new: list[dict[str, Any]], lists: MergeKeys, path: str
) -> dict[str, Any]:
    """The entries that a changed list, which had items, adds to the patch of the map that it is in."""
    key = lists[path]
    before = {_name(item, key, path): item for item in old}
    after = {_name(item, key, path): item for item in new}
    items: list[dict[str, Any]] = []
    for name, item in after.items():
        if name not in before:
            items.append(item)
        elif changes := _map_patch(before[name], item, lists, path):
            items.append({**changes, key: item[key]})
    items += [{DIRECTIVE: "delete", key: item[key]} for name, item in before.items() if name not in after]
    patch: dict[str, Any] = {}
    if items:
        patch[field] = items
    if new and (items or list(before) != list(after)):
        patch[ORDER + field] = [{key: item[key]} for item in after.values()]
    return patch


def _name(item: Mapping[str, Any], key: str, path: str) -> str:
    try:
        return str(item[key])
    except KeyError:
        raise MissingMergeKeyError(path, key) from None
