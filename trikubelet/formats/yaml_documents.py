"""Reads YAML and JSON that people write: with line numbers, every mistake named, and no way to be blown up.

PyYAML's constructors lose the lines, keep silent about duplicate keys, and expand aliases without limit. So this module
takes only the *events* of its (C) parser and builds a small tree of `Node`s from them: every value knows its line, an
alias shares the node it names, and cycles, depth and size are checked while building, before anything is expanded.
`Document.data()` then gives plain dictionaries and lists, for `trikubelet.api.from_dict` or the configuration decoder.

Scalars follow what Kubernetes' own reader makes of them: YAML 1.1 booleans and octal integers are read as such, but
dates and `12:30:00` stay strings, since JSON has no such values.
"""

from __future__ import annotations

import math
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Path: TypeAlias = "tuple[Path | None, str | int]"
    """Where a value stands: where what contains it does, and a key or an index. As text it could be longer than the
    file, for each value."""

MAX_DEPTH: Final = 100
_TOO_DEEP: Final = f"nested more than {MAX_DEPTH} levels deep"
MAX_NODES: Final = 250_000
"""Nodes of one file, counted as written, with what is merged, and again as expanded through aliases."""
MAX_ERRORS: Final = 50
"""Documents of one file that are no YAML; behind them no more is read."""
MAX_DUPLICATES: Final = 100
"""Of one document; more are not told."""


class YamlError(Exception):
    """The text cannot be read. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


class _LimitError(YamlError):
    """There is too much of something: no more is read."""


@frozen
class DuplicateKey:
    """A key that one mapping holds twice; the later value was taken."""

    line: int
    path: str


@attrs.define(eq=False, slots=True)
class Node:
    """One value and where it stands. A mapping's entries keep the line of their key."""

    line: int
    value: str | int | float | bool | dict[str, Node] | list[Node] | None = None
    key_lines: dict[str, int] | None = None
    complete: bool = True
    """False while the parser is still inside it: an alias to it now would be a cycle."""


@frozen
class Document:
    """One YAML document."""

    root: Node
    duplicates: tuple[DuplicateKey, ...] = ()

    @property
    def line(self) -> int:
        return self.root.line

    @property
    def empty(self) -> bool:
        return self.root.value is None

    def data(self) -> Any:
        """Plain dicts, lists and scalars. Raises YamlError when aliases expand to more than `MAX_NODES` nodes."""
        return _expand(self.root, [0], 0)

    def line_of(self, path: str) -> int:
        """The line of the deepest part of a field path such as `spec.containers[0].image` that exists."""
        node, line = self.root, self.root.line
        for step in _steps(path):
            if isinstance(node.value, dict) and isinstance(step, str) and step in node.value:
                line = (node.key_lines or {}).get(step, line)
                node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.line
            else:
                break
        return line


def read_documents(raw: bytes, on_error: Callable[[YamlError], None] | None = None) -> list[Document]:
    """All documents of a file. Raises YamlError with the line of the first thing that cannot be read.

    `on_error` is given every such error instead. A value that cannot be read is null then, or what it is without its
    tag; of a document that is no YAML nothing is read, and the next document follows.
    """
    if on_error is None:
        return list(_Builder(_decode(raw), _raise).documents())
    try:
        text = _decode(raw)
    except YamlError as error:
        on_error(error)
        return []
    return _read_all(text, on_error)


def _raise(error: YamlError) -> None:
    raise error


def _read_all(text: str, on_error: Callable[[YamlError], None]) -> list[Document]:
    """Documents before and behind those that are no YAML."""
    documents: list[Document] = []
    begin, line, count = 0, 0, 0
    told = set()
    for _ in range(MAX_ERRORS):
        builder = _Builder(text[begin:] if begin else text, on_error, line, count)
        try:
            documents.extend(builder.documents())
            return documents
        except YamlError as error:
            if (error.line, error.message) not in told:
                on_error(error)
            told.add((error.line, error.message))
            if isinstance(error, _LimitError):
                return documents
        # A line `---` begins a document, whatever stands before it.
        found = _BEGIN.search(text, begin + builder.document_at + 1)
        if found is None:
            return documents
        line += text.count("\n", begin, found.start())
        begin, count = found.start(), builder.count
    on_error(YamlError(line + 1, f"stopped after {MAX_ERRORS} documents that are no YAML"))
    return documents


def _decode(raw: bytes) -> str:
    if raw.startswith(b"\x7fELF") or b"\0" in raw[:8192]:
        raise YamlError(1, "expected YAML or JSON text, got binary data")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise YamlError(line, f"expected UTF-8, got the byte 0x{raw[error.start]:02x}") from None
    if text.lstrip()[:1] in ("{", "["):
        # JSON writes characters beyond U+FFFF as two escapes; YAML's escapes know no pairs.
        text = _SURROGATES.sub(_join_surrogates, text)
    return text


_SURROGATES: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def _join_surrogates(match: re.Match[str]) -> str:
    high, low = int(match[2], 16), int(match[3], 16)
    return match[1] + chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


_BEGIN: Final = re.compile(r"^---(?=\s|$)", re.M)


class _Builder:
    """Turns parser events into documents. Errors in single values go to `wrong`; others are raised."""

    def __init__(self, text: str, wrong: Callable[[YamlError], None], first: int = 0, count: int = 0) -> None:
        import yaml

        self._yaml = yaml
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self._text = text
        self._wrong = wrong
        self._first = first + 1
        """Number of the text's first line."""
        self.count = count
        """Nodes so far, with those of earlier builders."""
        self.document_at = 0
        """Where the last document began, in characters of the text."""
        self._line = self._first
        """Of the value that was read last."""
        self._anchors: dict[str, Node] = {}
        self._duplicates: list[DuplicateKey] = []

    def documents(self) -> Iterator[Document]:
        event = self._next()
        while not isinstance(event, self._yaml.StreamEndEvent):
            if isinstance(event, self._yaml.DocumentStartEvent):
                self._anchors = {}
                self._duplicates = []
                begin: Any = event.start_mark
                self.document_at = begin.index
                root = self._node(self._next(), None, 0)
                yield Document(root, tuple(self._duplicates))
            event = self._next()

    def _next(self) -> Any:
        try:
            return next(self._events)
        except self._yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
            context = getattr(error, "context", None)
            message = f"{problem} ({context})" if context else str(problem)
            if "maximum nesting depth" in message:  # libyaml's own limit, which is beyond ours
                message = _TOO_DEEP
            line = mark.line if mark else self._line_of_character(getattr(error, "position", 0))
            raise YamlError(line + self._first, message) from None
        except ValueError:  # PyYAML's own parser, of an escape beyond U+10FFFF
            raise YamlError(self._line, "found invalid Unicode character escape code") from None

    def _line_of_character(self, position: int) -> int:
        """Lines before a byte of the text, which the parser refuses."""
        return self._text.encode()[:position].count(b"\n")

    def _take(self, nodes: int, line: int) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise _LimitError(line, f"more than {MAX_NODES} values in one file")

    def _node(self, event: Any, path: Path | None, depth: int) -> Node:
        yaml, line = self._yaml, event.start_mark.line + self._first
        self._line = line
        self._take(1, line)
        if depth > MAX_DEPTH:
            raise YamlError(line, _TOO_DEEP)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, line)
        node = Node(line, complete=False)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        if isinstance(event, yaml.ScalarEvent):
            node.value = self._scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._fill_list(node, event, path, depth)
        else:
            self._fill_mapping(node, event, path, depth)
        node.complete = True
        return node

    def _alias(self, anchor: str, line: int) -> Node:
        target = self._anchors.get(anchor)
        if target is not None and target.complete:
            return target
        known = "names no anchor before it" if target is None else "refers to the value that contains it"
        self._wrong(YamlError(line, f"the alias *{anchor} {known}"))
        return Node(line)

    def _scalar(self, event: Any, line: int) -> str | int | float | bool | None:
        try:
            return _scalar(event, line)
        except YamlError as error:
            self._wrong(error)
            return None

    def _check_tag(self, tag: str | None, allowed: str, line: int) -> None:
        if tag is not None and tag not in ("!", allowed):
            self._wrong(YamlError(line, f"the tag {tag} is not supported"))

    def _fill_list(self, node: Node, event: Any, path: Path | None, depth: int) -> None:
        self._check_tag(event.tag, "tag:yaml.org,2002:seq", node.line)
        items: list[Node] = []
        node.value = items
        while not isinstance(event := self._next(), self._yaml.SequenceEndEvent):
            items.append(self._node(event, (path, len(items)), depth + 1))

    def _fill_mapping(self, node: Node, event: Any, path: Path | None, depth: int) -> None:
        self._check_tag(event.tag, "tag:yaml.org,2002:map", node.line)
        entries: dict[str, Node] = {}
        lines: dict[str, int] = {}
        merged: list[Node] = []
        while not isinstance(event := self._next(), self._yaml.MappingEndEvent):
            key_line = event.start_mark.line + self._first
            merging = isinstance(event, self._yaml.ScalarEvent) and event.value == "<<" and not event.style
            key = _key(self._node(event, path, depth + 1))
            if key is None:
                self._wrong(YamlError(key_line, "expected a string as key of a mapping"))
            value = self._node(self._next(), (path, key or ""), depth + 1)
            if key is None:
                continue
            if merging:
                merged.append(value)
                continue
            if key in entries and len(self._duplicates) < MAX_DUPLICATES:
                self._duplicates.append(DuplicateKey(key_line, _text_of((path, key))))
            entries[key] = value
            lines[key] = key_line
        for source in merged:
            self._merge(source, entries, lines)
        node.value = entries
        node.key_lines = lines

    def _merge(self, source: Node, entries: dict[str, Node], lines: dict[str, int]) -> None:
        """`<<: *defaults`: keys that the mapping has itself win, and earlier sources win over later ones."""
        parts = source.value if isinstance(source.value, list) else [source]
        for part in parts:
            if not isinstance(part.value, dict):
                self._wrong(YamlError(source.line, "expected a mapping after <<"))
                continue
            self._take(1 + len(part.value), self._line)
            for key, value in part.value.items():
                if key not in entries:
                    entries[key] = value
                    lines[key] = (part.key_lines or {}).get(key, value.line)


def _text_of(path: Path | None) -> str:
    """As it is told to people, for example `spec.containers[0].image`."""
    steps = []
    while path is not None:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return "".join(reversed(steps)).removeprefix(".")


def _key(node: Node) -> str | None:
    match node.value:
        case str():
            return node.value
        case bool():
            return "true" if node.value else "false"
        case int() | float():
            return str(node.value)
        case _:
            return None


_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {
    word: value
    for value, words in ((True, ("true", "yes", "on")), (False, ("false", "no", "off")))
    for lower in words
    for word in (lower, lower.capitalize(), lower.upper())
}
_INT: Final = re.compile(r"[-+]?(0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*|0o?[0-7][0-7_]*|0|[1-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SCALAR_TAGS: Final = {f"tag:yaml.org,2002:{kind}": kind for kind in ("str", "int", "float", "bool", "null")}


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _scalar(event: Any, line: int) -> str | int | float | bool | None:
    text: str = event.value
    if _SURROGATE.search(text):  # the C parser refuses these itself
        raise YamlError(line, "expected characters, got half of a surrogate pair")
    if event.tag is not None and event.tag != "!":
        kind = _SCALAR_TAGS.get(event.tag)
        if kind is None:
            raise YamlError(line, f"the tag {event.tag} is not supported")
        if kind == "str":
            return text
    elif not event.implicit[0]:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return _integer(text, line)
    if _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        return number if math.isfinite(number) else text
    if _NOT_FINITE.fullmatch(text):
        raise YamlError(line, f"expected a finite number, got {text}")
    return text


def _integer(text: str, line: int) -> int:
    if len(text) > 400:
        raise YamlError(line, f"expected a number of at most 400 digits, got {len(text)}")
    digits = text.replace("_", "").lower()
    negative = digits.startswith("-")
    digits = digits.lstrip("+-")
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)):
        if digits.startswith(prefix) and len(digits) > len(prefix):
            value = int(digits[len(prefix) :], base)
            break
    else:
        value = int(digits)
    return -value if negative else value


def _expand(node: Node, count: list[int], depth: int) -> Any:
    count[0] += 1
    if count[0] > MAX_NODES:
        raise YamlError(node.line, f"aliases expand this file to more than {MAX_NODES} values")
    if depth > MAX_DEPTH:
        raise YamlError(node.line, f"aliases nest values more than {MAX_DEPTH} levels deep")
    match node.value:
        case dict():
            return {key: _expand(child, count, depth + 1) for key, child in node.value.items()}
        case list():
            return [_expand(child, count, depth + 1) for child in node.value]
        case _:
            return node.value


_STEP: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_WORD: Final = re.compile(r"[^.\[\]]+")


def _steps(path: str) -> Iterator[str | int]:
    end = path.rfind("]") + 1  # behind it no bracket is closed, and none need be looked for
    for match in chain(_STEP.finditer(path, 0, end), _WORD.finditer(path, end)):
        if match.re is _WORD:
            yield match[0]
        elif match[1] is None:
            yield match[2]
        elif match[1].isascii() and match[1].isdigit() and len(match[1]) < 10:
            yield int(match[1])
        else:
            yield match[1].strip("\"'")
