"""From objects to what a JSON or YAML writer takes.

Fields are left out when they are empty, as Go's `omitempty` does it: empty texts, lists and maps, zero, false and None
go, structs that are no pointers stay (`resources: {}`), and a few fields are always there. Unknown fields come last.
"""

from __future__ import annotations

import base64
import enum
import types
import typing
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import attrs

from trikubelet.api.decode import resolve_annotation, wire_name
from trikubelet.api.quantity import Quantity
from trikubelet.api.schema import ALWAYS_WRITTEN, APIObject, Microseconds
from trikubelet.api.timestamps import format_micro_time, format_time

Encoder = Callable[[Any], Any]


class _Presence(enum.Enum):
    """When a field is written."""

    ALWAYS = "always"
    WHEN_NOT_NONE = "when not None"
    WHEN_NOT_EMPTY = "when not empty"


def to_dict(obj: APIObject) -> dict[str, Any]:
    """The object's wire form: dicts, lists, strings, numbers and booleans, with camelCase names.

    Raises ValueError for a time without a zone. The values of unknown fields are not copied.
    """
    result: dict[str, Any] = {}
    for name, wire, presence, encode in _plan(type(obj)):
        value = getattr(obj, name)
        if value is None:
            # Go writes null for an empty pointer that is not `omitempty`.
            if presence is _Presence.ALWAYS:
                result[wire] = None
        elif value or presence is not _Presence.WHEN_NOT_EMPTY:
            result[wire] = value if encode is None else encode(value)
    result.update(obj.unknown_fields)
    return result


_FieldPlan = tuple[str, str, _Presence, Encoder | None]
_plans: Final[dict[type[APIObject], tuple[_FieldPlan, ...]]] = {}


def _plan(cls: type[APIObject]) -> tuple[_FieldPlan, ...]:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: type[APIObject]) -> tuple[_FieldPlan, ...]:
    """Per field: name, wire name, when it is written, and its encoder (None: as it is)."""
    plan = []
    for attribute in attrs.fields(cls):
        if attribute.name == "unknown_fields":
            continue
        annotation = resolve_annotation(cls, attribute.type)
        always = attribute.metadata.get(ALWAYS_WRITTEN, False)
        presence = _Presence.ALWAYS if always else _presence(annotation)
        plan.append((attribute.name, wire_name(attribute), presence, _encoder_for(annotation)))
    return tuple(plan)


def _presence(annotation: Any) -> _Presence:
    if type(None) in typing.get_args(annotation):
        return _Presence.WHEN_NOT_NONE
    if annotation is Quantity or (isinstance(annotation, type) and issubclass(annotation, APIObject)):
        return _Presence.ALWAYS
    return _Presence.WHEN_NOT_EMPTY


_SCALARS: Final[dict[Any, Encoder | None]] = {
    str: None,
    bool: None,
    int: None,
    Any: None,
    bytes: lambda value: base64.b64encode(value).decode("ascii"),
    datetime: format_time,
    Quantity: str,
}


def _encoder_for(annotation: Any) -> Encoder | None:
    """The encoder of a resolved type annotation; None when values are written as they are."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        if any(isinstance(mark, Microseconds) for mark in arguments[1:]):
            return format_micro_time
        return _encoder_for(arguments[0])
    if origin is types.UnionType or origin is typing.Union:
        return _encoder_for(arguments[0])
    if origin is tuple:
        return _list(_encoder_for(arguments[0]))
    if origin is dict:
        return _map(_encoder_for(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, APIObject):
        return to_dict
    raise TypeError(f"no encoder for {annotation!r}")


def _list(encode: Encoder | None) -> Encoder:
    if encode is None:
        return list
    return lambda value: [encode(item) for item in value]


def _map(encode: Encoder | None) -> Encoder:
    if encode is None:
        return dict
    return lambda value: {key: encode(item) for key, item in value.items()}
