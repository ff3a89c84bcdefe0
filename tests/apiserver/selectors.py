"""Field and label selectors of list and watch requests."""

from __future__ import annotations

import re
from typing import Final, Literal

import attrs

from tests.apiserver.documents import Document, dig
from tests.apiserver.errors import bad_request
from tests.apiserver.resources import ResourceInfo, field_value

FieldOperator = Literal["=", "!="]
LabelOperator = Literal["in", "notin", "exists", "!", "gt", "lt"]


@attrs.frozen
class FieldTerm:
    label: str
    operator: FieldOperator
    value: str


@attrs.frozen
class LabelTerm:
    key: str
    operator: LabelOperator
    values: tuple[str, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        has = self.key in labels
        match self.operator:
            case "in":
                return has and labels[self.key] in self.values
            case "notin":
                return not has or labels[self.key] not in self.values
            case "exists":
                return has
            case "!":
                return not has
            case "gt":
                return has and int(labels[self.key]) > int(self.values[0])
            case "lt":
                return has and int(labels[self.key]) < int(self.values[0])


@attrs.frozen
class Selector:
    """What a list or a watch shows of a resource."""

    info: ResourceInfo
    namespace: str = ""
    """Empty: of all namespaces."""
    fields: tuple[FieldTerm, ...] = ()
    labels: tuple[LabelTerm, ...] = ()

    @property
    def selects(self) -> bool:
        """Whether it leaves anything out, the namespace aside."""
        return bool(self.fields or self.labels)

    def matches(self, document: Document) -> bool:
        if self.namespace and dig(document, "metadata", "namespace") != self.namespace:
            return False
        for term in self.fields:
            equal = field_value(self.info, document, term.label) == term.value
            if equal != (term.operator == "="):
                return False
        labels = dig(document, "metadata", "labels") or {}
        return all(term.matches(labels) for term in self.labels)

    def required(self, label: str) -> str | None:
        """The value that a field must have by this selector; None when it may have several."""
        return next((term.value for term in self.fields if term.label == label and term.operator == "="), None)


def parse_selector(info: ResourceInfo, namespace: str, fields: str, labels: str) -> Selector:
    """Raises ApiFailure 400 for what is no selector, or for a field that cannot be selected by."""
    field_terms = parse_fields(fields)
    for term in field_terms:
        if field_value(info, {}, term.label) is None:
            raise bad_request(f"field label not supported: {term.label}")
    return Selector(info, namespace, field_terms, parse_labels(labels))


def parse_fields(text: str) -> tuple[FieldTerm, ...]:
    """`metadata.name=a,spec.clusterIP!=None`. An empty text selects everything."""
    terms = []
    for part in text.split(","):
        if not part:
            continue
        found = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid selector: {text!r}; can't understand {part!r}")
        label, operator, value = found.groups()
        terms.append(FieldTerm(label, "!=" if operator == "!=" else "=", value))
    return tuple(terms)


_LABEL_TERM: Final = re.compile(
    r"""\s*(?:
        !\s*(?P<absent>[\w./-]+)
      | (?P<key>[\w./-]+)\s*(?:
            (?P<set>notin|in)\s*\((?P<values>[^)]*)\)
          | (?P<operator>==|=|!=|<|>)\s*(?P<value>[\w.-]*)
        )?
    )\s*(?:,|$)""",
    re.VERBOSE,
)


def parse_labels(text: str) -> tuple[LabelTerm, ...]:
    """`app=web,tier in (a,b),!canary`. An empty text selects everything."""
    terms: list[LabelTerm] = []
    position = 0
    while position < len(text):
        found = _LABEL_TERM.match(text, position)
        if found is None:
            raise bad_request(f"unable to parse requirement: found '{text[position:]}'")
        position = found.end()
        terms.append(_label_term(found.groupdict()))
    return tuple(terms)


_COMPARISONS: Final[dict[str, LabelOperator]] = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}


def _label_term(found: dict[str, str | None]) -> LabelTerm:
    if found["absent"]:
        return LabelTerm(found["absent"], "!")
    key = found["key"] or ""
    if found["set"]:
        values = tuple(value.strip() for value in (found["values"] or "").split(","))
        return LabelTerm(key, "in" if found["set"] == "in" else "notin", values)
    if found["operator"]:
        return LabelTerm(key, _COMPARISONS[found["operator"]], (found["value"] or "",))
    return LabelTerm(key, "exists")
