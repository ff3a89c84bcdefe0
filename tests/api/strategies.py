"""Any object of any class of the API, sparse, with unknown fields: built from the annotations."""

from __future__ import annotations

import datetime as dt
import types
import typing
from typing import Annotated, Any

import attrs
from hypothesis import strategies as st

from trikubelet.api import APIObject, Quantity, QuantityFormat
from trikubelet.api.decode import resolve_annotation
from trikubelet.api.schema import Bits, Microseconds

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_KEYS = st.text(max_size=5)
_TIMES = st.datetimes(min_value=dt.datetime(1, 1, 2), max_value=dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    bytes: st.binary(max_size=8),
    dt.datetime: _TIMES.map(lambda time: time.replace(microsecond=0)),
    Quantity: st.builds(Quantity.from_nanos, st.integers(-(10**20), 10**20), st.sampled_from(QuantityFormat)),
    Any: JSON_VALUES,
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        if any(isinstance(mark, Microseconds) for mark in arguments[1:]):
            return _TIMES
        assert any(isinstance(mark, Bits) for mark in arguments[1:])
        return st.integers(-(2**31), 2**31 - 1)
    if origin is types.UnionType or origin is typing.Union:
        if set(arguments) == {int, str}:
            return st.integers(-(2**31), 2**31 - 1) | st.text(max_size=8)
        inner = next(argument for argument in arguments if argument is not type(None))
        return st.none() | values(inner)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(_KEYS, values(arguments[1]), max_size=2)
    return objects(annotation)


@st.composite
def objects(draw: st.DrawFn, cls: type[APIObject]) -> APIObject:
    """An object of `cls` with up to three fields set."""
    fields = [field for field in attrs.fields(cls) if field.name not in ("unknown_fields", "kind", "api_version")]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=3, unique_by=lambda field: field.name)) if fields else []
    given = {field.name: draw(values(resolve_annotation(cls, field.type))) for field in chosen}
    unknown = draw(st.dictionaries(st.sampled_from(["x-new", "x-other"]), JSON_VALUES, max_size=1))
    return cls(**given, unknown_fields=unknown)
