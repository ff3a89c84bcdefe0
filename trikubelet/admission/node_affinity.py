"""Whether a node is one of those that a pod wants to run on (`GetRequiredNodeAffinity`). Pure.

The labels of `nodeSelector` must all be there, and of the terms of the required node affinity one must hold. A term
that cannot be understood does not hold, and does not hinder the others; a term that says nothing holds nowhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import label_value, qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.api import NodeSelectorRequirement, NodeSelectorTerm, Pod

_NAME_FIELD: Final = "metadata.name"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)


def matches_node(pod: Pod, node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of this name, with these labels, is one that the pod may be on. Preferences do not count."""
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if required is None:
        return True
    return matches_terms(required.node_selector_terms, node_name, labels)


def matches_terms(terms: Iterable[NodeSelectorTerm], node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether one of the terms holds for a node of this name, with these labels."""
    return any(_holds(term, node_name, labels) for term in terms)


def _holds(term: NodeSelectorTerm, node_name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_label_holds(one, labels) for one in term.match_expressions) and all(
        _field_holds(one, node_name) for one in term.match_fields
    )


def _label_holds(wanted: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    if qualified_name(wanted.key) or any(label_value(value) for value in wanted.values):
        return False
    value = labels.get(wanted.key)
    match wanted.operator:
        case "In":
            return value in wanted.values
        case "NotIn":
            return bool(wanted.values) and value not in wanted.values
        case "Exists":
            return not wanted.values and value is not None
        case "DoesNotExist":
            return not wanted.values and value is None
        case "Gt" | "Lt":
            return len(wanted.values) == 1 and _compares(wanted.operator, value, wanted.values[0])
        case _:
            return False


def _compares(operator: str, value: str | None, limit: str) -> bool:
    number, bound = _integer(value or ""), _integer(limit)
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def _integer(text: str) -> int | None:
    """A number as Go reads one of 64 bits."""
    if len(text) > 64 or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None


def _field_holds(wanted: NodeSelectorRequirement, node_name: str) -> bool:
    """A node has one field; of others it has nothing, which is different from any value but the empty one."""
    if len(wanted.values) != 1:
        return False
    value = node_name if wanted.key == _NAME_FIELD else ""
    match wanted.operator:
        case "In":
            return value == wanted.values[0]
        case "NotIn":
            return value != wanted.values[0]
        case _:
            return False
