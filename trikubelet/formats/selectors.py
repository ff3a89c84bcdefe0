"""Label and field selectors as people type them: `app=web,tier in (a, b),!old`, `status.phase!=Running`.

Raises SelectorError for what cannot be read. (apimachinery: `labels.Parse`, `fields.ParseSelector`.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final


class SelectorError(ValueError):
    """A selector that cannot be read."""


Labels = Mapping[str, str]
_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET: Final = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL: Final = re.compile(rf"({_NAME})\s*(==|=|!=|>|<)\s*([-A-Za-z0-9_.]*)")
_EXISTS: Final = re.compile(rf"(!?)\s*({_NAME})")
_COMMA: Final = re.compile(r",(?![^(]*\))")


def label_selector(text: str) -> Callable[[Labels], bool]:
    """Whether labels are selected. An empty text selects all."""
    requirements = [_requirement(part.strip()) for part in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _requirement(text: str) -> Callable[[Labels], bool]:
    if match := _SET.fullmatch(text):
        name, values = match[1], {value.strip() for value in match[4].split(",")}
        if match[3] == "in":
            return lambda labels: labels.get(name) in values
        return lambda labels: labels.get(name) not in values
    if match := _EQUAL.fullmatch(text):
        name, operator, value = match[1], match[3], match[4]
        if operator in "><":
            return _comparison(name, operator, value)
        if operator == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    if match := _EXISTS.fullmatch(text):
        name, absent = match[2], bool(match[1])
        return lambda labels: (name in labels) is not absent
    raise SelectorError(f"unable to parse {text!r}: expected KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY or !KEY")


def _comparison(name: str, operator: str, text: str) -> Callable[[Labels], bool]:
    if not re.fullmatch(r"-?\d+", text):
        raise SelectorError(f"unable to parse {name}{operator}{text}: expected a whole number")
    bound = int(text)

    def holds(labels: Labels) -> bool:
        value = labels.get(name, "")
        if not re.fullmatch(r"-?\d+", value):
            return False
        return int(value) > bound if operator == ">" else int(value) < bound

    return holds


def field_selector(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an object, as JSON, is selected."""
    requirements = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([A-Za-z][A-Za-z0-9.]*)(==|=|!=)(.*)", part)
        if match is None:
            raise SelectorError(f"invalid selector {part!r}; can't understand it: expected FIELD=VALUE or FIELD!=VALUE")
        requirements.append((match[1].split("."), match[2] != "!=", match[3]))
    return lambda item: all((_text_at(item, path) == value) is wanted for path, wanted, value in requirements)


def _text_at(item: Any, path: list[str]) -> str:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    if isinstance(item, bool):
        return "true" if item else "false"
    return "" if item is None else str(item)
