r"""kubectl's JSONPath templates: `{.items[*].metadata.name}`, `{range .items[*]}{.metadata.name}{"\n"}{end}`.

Text outside of braces is itself. Inside: fields (`.a`, `['a.b']`, `.a\.b`), indexes and slices (`[0]`, `[-1]`,
`[0:2]`, `[*]`), all fields below (`..name`), filters (`[?(@.a == "x")]` with `== != < <= > >=`, or `[?(@.a)]` for those
that have it), unions (`[0,2]`, `['a','b']`), texts in quotes, `range` and `end`. A dot at the begin may be left out, as
may the braces. What is not there is nothing. (kubectl: `client-go/util/jsonpath`.)
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from trikubelet.formats.values import frozen


class JSONPathError(ValueError):
    """A template that cannot be read."""


Step: TypeAlias = Callable[[Any], Iterable[Any]]


@frozen
class _Path:
    """Leads from a value to values."""

    steps: tuple[Step, ...]

    def __call__(self, value: Any) -> list[Any]:
        values = [value]
        for step in self.steps:
            values = [found for each in values for found in step(each)]
        return values


@frozen
class _Text:
    text: str


@frozen
class _Range:
    path: _Path
    body: tuple[_Node, ...]


_Node: TypeAlias = "_Text | _Path | _Range"


class JSONPath:
    """A template that was read. Raises JSONPathError."""

    def __init__(self, template: str) -> None:
        text = template if "{" in template else "{" + template + "}"
        reader = _Reader(text)
        self._nodes = tuple(reader.nodes(until_end=False))

    def render(self, value: Any) -> str:
        """What the template says of a JSON value; several values of one path stand with a space between."""
        return "".join(_rendered(self._nodes, value))

    def values(self, value: Any) -> list[Any]:
        """What the paths lead to, in their order."""
        return [found for node in self._nodes if isinstance(node, _Path) for found in node(value)]


def _rendered(nodes: Iterable[_Node], value: Any) -> Iterator[str]:
    for node in nodes:
        match node:
            case _Text():
                yield node.text
            case _Path():
                yield " ".join(map(_shown, node(value)))
            case _Range():
                for each in node.path(value):
                    yield from _rendered(node.body, each)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, separators=(",", ":"))


class _Reader:
    """Reads a template from its begin to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def nodes(self, *, until_end: bool) -> Iterator[_Node]:
        while self._at < len(self._text):
            if self._text[self._at] != "{":
                stop = self._text.find("{", self._at)
                stop = len(self._text) if stop < 0 else stop
                yield _Text(self._text[self._at : stop])
                self._at = stop
                continue
            inside = self._action()
            if inside == "end":
                if not until_end:
                    raise JSONPathError("an {end} without its {range}")
                return
            if inside.startswith("range "):
                path = _read_path(inside.removeprefix("range ").strip())
                yield _Range(path, tuple(self.nodes(until_end=True)))
            elif inside[:1] in "\"'" and inside[:1]:
                yield _Text(_unquoted(inside))
            elif inside:
                yield _read_path(inside)
        if until_end:
            raise JSONPathError("a {range} without its {end}")

    def _action(self) -> str:
        """What stands between two braces."""
        start, quote = self._at + 1, ""
        for at in range(start, len(self._text)):
            character = self._text[at]
            if quote:
                if character == quote and self._text[at - 1] != "\\":
                    quote = ""
            elif character in "\"'":
                quote = character
            elif character == "}":
                self._at = at + 1
                return self._text[start:at].strip()
        raise JSONPathError(f"unclosed action in {self._text[self._at :]!r}: expected }}")


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[-1] != text[0]:
        raise JSONPathError(f"unterminated quoted string {text}")
    inside = text[1:-1].replace('"', '\\"') if text[0] == "'" else text[1:-1]
    try:
        return str(json.loads(f'"{inside}"'))
    except ValueError:
        raise JSONPathError(f"unrecognized escape in {text}") from None


# --- Paths -----------------------------------------------------------------------------------------------------------

_FIELD: Final = re.compile(r"((?:[^.\[\]\\'\"{}()\s=<>!,]|\\.)+)")
_NUMBER: Final = re.compile(r"-?\d+")
_FILTER: Final = re.compile(r"(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)", re.DOTALL)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _read_path(text: str) -> _Path:
    at = 1 if text[:1] in ("$", "@") else 0
    steps: list[Step] = []
    if at < len(text) and text[at] not in ".[":
        text = f"{text[:at]}.{text[at:]}"
    while at < len(text):
        if text.startswith("..", at):
            step, at = _field(text, at + 2, recursive=True)
            steps.append(step)
        elif text[at] == ".":
            if at + 1 == len(text):
                break  # `{.}` is the value itself
            step, at = _field(text, at + 1, recursive=False)
            steps.append(step)
        elif text[at] == "[":
            inside, at = _bracket(text, at)
            steps.append(_subscript(inside))
        else:
            raise JSONPathError(f"unexpected {text[at:]!r} in {text!r}: expected a field like .name, or [")
    return _Path(tuple(steps))


def _field(text: str, at: int, *, recursive: bool) -> tuple[Step, int]:
    match = _FIELD.match(text, at)
    if match is None:
        raise JSONPathError(f"expected the name of a field in {text!r}, got {text[at:]!r}")
    name = re.sub(r"\\(.)", r"\1", match[1])
    if recursive:
        return (lambda value: _everywhere(value, name)), match.end()
    if name == "*":
        return _every, match.end()
    return (lambda value: _field_of(value, name)), match.end()


def _field_of(value: Any, name: str) -> Iterable[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def _every(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _everywhere(value: Any, name: str) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        each = waiting.pop(0)
        yield from _every(each) if name == "*" else _field_of(each, name)
        waiting[:0] = _every(each)


def _bracket(text: str, at: int) -> tuple[str, int]:
    """What stands in brackets, and where they have ended."""
    depth, quote = 0, ""
    for index in range(at, len(text)):
        character = text[index]
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
            if depth == 0:
                return text[at + 1 : index].strip(), index + 1
    raise JSONPathError(f"unterminated array in {text!r}: expected ]")


def _subscript(inside: str) -> Step:
    if inside.startswith("?(") and inside.endswith(")"):
        return _filter(inside[2:-1].strip())
    parts = [part.strip() for part in _split(inside)]
    if len(parts) > 1:
        steps = [_subscript(part) for part in parts]
        return lambda value: [found for step in steps for found in step(value)]
    if inside == "*":
        return _every
    if inside[:1] in "\"'" and inside[:1]:
        name = _unquoted(inside)
        return lambda value: _field_of(value, name)
    if ":" in inside:
        return _slice(inside)
    if _NUMBER.fullmatch(inside):
        index = int(inside)
        return lambda value: (value[index],) if isinstance(value, list) and -len(value) <= index < len(value) else ()
    raise JSONPathError(f"invalid array index [{inside}]")


def _split(text: str) -> list[str]:
    """By commas outside of quotes."""
    return re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^,])+", text)


def _slice(inside: str) -> Step:
    parts = inside.split(":")
    if len(parts) > 3 or any(part.strip() and not _NUMBER.fullmatch(part.strip()) for part in parts):
        raise JSONPathError(f"invalid array index [{inside}]")
    numbers = [int(part) if part.strip() else None for part in parts]
    if len(numbers) == 3 and numbers[2] == 0:
        raise JSONPathError(f"invalid array index [{inside}]: the step must not be 0")
    chosen = slice(*numbers)
    return lambda value: value[chosen] if isinstance(value, list) else ()


def _filter(condition: str) -> Step:
    match = _FILTER.fullmatch(condition)
    if match is None:
        path = _read_path(condition)
        return lambda value: [each for each in _every(value) if path(each)]
    left, right, compare = _operand(match[1]), _operand(match[3]), _COMPARISONS[match[2]]

    def passes(each: Any) -> bool:
        for one in left(each):
            for other in right(each):
                try:
                    return compare(one, other)
                except TypeError:
                    return False
        return False

    return lambda value: [each for each in _every(value) if passes(each)]


def _operand(text: str) -> Callable[[Any], list[Any]]:
    text = text.strip()
    if text[:1] in ("@", "$", "."):
        return _read_path(text)
    if text[:1] in "\"'":
        literal: Any = _unquoted(text)
    else:
        try:
            literal = json.loads(text)
        except ValueError:
            raise JSONPathError(f"unrecognized value {text!r} in a filter: put texts into quotes") from None
    return lambda _: [literal]
