"""Checkpoints whose checksum is of a Go structure, printed: FNV-1a over what go-spew's `%#v` makes of it.

The checksum covers names of types and fields, so each file says here how its structure is printed. Objects are read as
Go reads them: names in any case, unknown ones ignored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from trikubelet.formats.hashing import fnv1a_32, go_json_string

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_Value = TypeVar("_Value")


class GoCheckpointError(ValueError):
    """The file is not what was written, or not for this agent."""


def go_map(entries: Mapping[str, str]) -> str:
    """A map with texts as keys; values as they are printed, without their types."""
    return f"map[{' '.join(f'{key}:{entries[key]}' for key in sorted(entries))}]"


def go_struct(**fields: str) -> str:
    """Fields as they are printed, with their types: `Size="(uint64)5"`."""
    return f"{{{' '.join(f'{name}:{text}' for name, text in fields.items())}}}"


def go_checksum(type_name: str, **fields: str) -> int:
    """Of a pointer to a structure, which has the checksum as its last field."""
    printed = f"(*{type_name})" + go_struct(**fields, Checksum="(checksum.Checksum)0")
    return fnv1a_32(printed.encode("utf-8", "surrogatepass"))


def go_json(value: Any) -> str:
    """What a JSON text can say as Go's encoding/json writes them. Objects as they come; see `go_sorted`."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{go_json_string(str(key))}:{go_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(go_json, value)) + "]"
    return go_json_string(value) if isinstance(value, str) else json.dumps(value)


def go_sorted(entries: Mapping[Any, _Value]) -> dict[str, _Value] | None:
    """A map as Go writes it, numbers sorted as texts; None for an empty one, which is left out (`omitempty`)."""
    return dict(sorted((str(key), value) for key, value in entries.items())) or None


def go_object(**fields: Any) -> bytes:
    """A structure: in the order of its fields, those that are None left out."""
    written = (f"{go_json_string(name)}:{go_json(value)}" for name, value in fields.items() if value is not None)
    return ("{" + ",".join(written) + "}").encode()


def read_object(content: bytes) -> dict[str, Any]:
    """The members by their names in lower case. Raises GoCheckpointError."""
    try:
        wire = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise GoCheckpointError(f"expected JSON: {error}") from error
    return by_lower_name(wire)


def by_lower_name(wire: Any) -> dict[str, Any]:
    """Raises GoCheckpointError."""
    if not isinstance(wire, dict):
        raise GoCheckpointError(f"expected an object, got {wire!r:.60}")
    return {name.lower(): value for name, value in wire.items()}


def mapping_of(wire: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    """An object with any names; nothing where there is none. Raises GoCheckpointError."""
    if wire is None:
        return {}
    if not isinstance(wire, dict):
        raise GoCheckpointError(f"expected an object, got {wire!r:.60}")
    return {name: read(value) for name, value in wire.items()}


def text_of(wire: Any) -> str:
    """Raises GoCheckpointError."""
    if wire is None:
        return ""
    if not isinstance(wire, str):
        raise GoCheckpointError(f"expected a text, got {wire!r:.60}")
    return wire


def number_of(wire: Any) -> int:
    """Raises GoCheckpointError."""
    if wire is None:
        return 0
    if type(wire) is not int or wire < 0:
        raise GoCheckpointError(f"expected a whole number, got {wire!r:.60}")
    return wire
