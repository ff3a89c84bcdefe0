"""From parsed JSON or YAML to objects.

A manifest is somebody else's text, so decoding answers with all problems at once, each with its path and with what
would help (YAML reads an unquoted `on` as a boolean and `8080` as a number). The parser's result may also be hostile:
YAML anchors make lists that hold themselves, or a few lines that stand for millions of values. Decoding recurses only
as deep as the types do, walks unknown fields with a stack of its own, and counts every value it visits.

A codec for a type is made when the first value of that type is met. cattrs would do the same work, but cannot keep
unknown fields, and its errors would have to be rewritten one by one; both are most of what is here.

null means absent everywhere, as it does in Go.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

import attrs

from trikubelet.api.problems import DecodeError, Problem
from trikubelet.api.quantity import Quantity, QuantityError
from trikubelet.api.schema import WIRE_NAME, APIObject, Bits
from trikubelet.api.timestamps import parse_time
from trikubelet.formats.values import define

T = TypeVar("T", bound=APIObject)

MAX_VALUES: Final = 300_000
"""More values than any object that an API server accepts."""
MAX_DEPTH: Final = 100
"""How deep unknown fields may nest."""
MAX_PROBLEMS: Final = 50


@define
class Decoding:
    """The state of one call: the problems so far and the values left to visit."""

    values_left: int
    tells: bool = True
    """Where problems are. Else paths are empty, since putting them together takes a third of the time."""
    problems: list[Problem] = attrs.field(factory=list)

    def report(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))
        if len(self.problems) >= MAX_PROBLEMS:
            self.problems.append(Problem("", f"stopped after {MAX_PROBLEMS} problems"))
            raise _GiveUpError

    def visit(self, path: str, count: int = 1) -> None:
        self.values_left -= count
        if self.values_left < 0:
            self.problems.append(Problem(path, "the object holds too many values; do YAML anchors multiply it?"))
            raise _GiveUpError


class _GiveUpError(Exception):
    """Ends a decoding early; its problems are already recorded."""


Decoder = Callable[[Any, str, Decoding], Any]
"""Decodes a value at a path. After a problem it returns something of the right type, which is not used."""


def from_dict(cls: type[T], data: object, *, max_values: int = MAX_VALUES) -> T:
    """Decode an object of class `cls` from what a JSON or YAML parser returned.

    Raises DecodeError with every problem found (the first 50).
    """
    result, problems = read_dict(cls, data, max_values=max_values)
    if problems:
        raise DecodeError(problems)
    return typing.cast("T", result)


def read_dict(cls: type[T], data: object, *, max_values: int = MAX_VALUES) -> tuple[T | None, tuple[Problem, ...]]:
    """Decode an object as far as possible, with every problem found (the first 50).

    A field that has a problem is empty. No object comes of data that is none, or has too many problems.
    """
    decode = decoder_for(cls)
    with suppress(_GiveUpError):
        quick = Decoding(max_values, tells=False)
        result = decode(data, "", quick)
        if not quick.problems:
            return result, ()
    decoding, result = Decoding(max_values), None
    with suppress(_GiveUpError):
        result = decode(data, "", decoding)
    return (result if isinstance(data, Mapping) else None), tuple(decoding.problems)


def describe(value: object) -> str:
    """A value from a parser, short and in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "the boolean " + ("true" if value else "false")
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "a number of more than 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dt.date):
        return f"the date {value.isoformat()}"
    return f"a value of type {type(value).__name__}"


def _decode_str(value: Any, path: str, decoding: Decoding) -> str:
    if type(value) is str:
        return value
    if value is None:
        return ""
    message = f"expected a string, got {describe(value)}"
    if isinstance(value, bool):
        message += " (YAML reads unquoted yes, no, on, off, true and false as booleans); put quotes around it"
    elif isinstance(value, int | float | dt.date):
        message += "; put quotes around it"
    decoding.report(path, message)
    return ""


def _decode_bool(value: Any, path: str, decoding: Decoding) -> bool:
    if value is True or value is False:
        return value
    if value is None:
        return False
    message = f"expected true or false, got {describe(value)}"
    if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "on", "off"):
        message += "; remove the quotes and write true or false"
    decoding.report(path, message)
    return False


def _decode_integer(value: Any, path: str, decoding: Decoding, bits: int = 64) -> int:
    if type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    if value is None:
        return 0
    # YAML and JSON texts such as 3.0 and 1e3 are whole numbers that parsers give as floats.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"expected an integer, got {describe(value)}"
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            message += "; remove the quotes"
        decoding.report(path, message)
        return 0
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        decoding.report(path, f"expected an integer of {bits} bits, got {describe(value)}")
        return 0
    return value


def _decode_int_or_string(value: Any, path: str, decoding: Decoding) -> int | str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        decoding.report(path, f"expected an integer or a string, got {describe(value)}")
        return 0
    return _decode_integer(value, path, decoding, 32)


def _decode_bytes(value: Any, path: str, decoding: Decoding) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):  # YAML's !!binary
        return value
    if not isinstance(value, str):
        decoding.report(path, f"expected base64 text, got {describe(value)}")
        return b""
    try:
        # Line breaks are allowed, as in Go.
        return base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        decoding.report(path, f"expected base64 text, got {describe(value)}: {error}")
        return b""


def _decode_time(value: Any, path: str, decoding: Decoding) -> dt.datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        parsed = parse_time(value)
        if parsed is not None:
            return parsed
    if isinstance(value, dt.datetime):  # YAML's own timestamps; without a zone they are UTC
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    decoding.report(path, f'expected a time such as "2026-01-31T12:00:00Z", got {describe(value)}')
    return None


def _decode_quantity(value: Any, path: str, decoding: Decoding) -> Quantity:
    if value is None:
        return Quantity()
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        decoding.report(path, f'expected a quantity such as "500m" or "1.5Gi", got {describe(value)}')
        return Quantity()
    if isinstance(value, int) and value.bit_length() > 300:
        decoding.report(path, f'expected a quantity such as "500m" or "1.5Gi", got {describe(value)}')
        return Quantity()
    try:
        # The shortest text of a float is the number that was written.
        return Quantity(str(value).strip())
    except QuantityError as error:
        decoding.report(path, str(error))
        return Quantity()


def check_plain(value: Any, path: str, decoding: Decoding) -> Any:
    """Accept any JSON value, with bounds on its depth and size, and with a look at what JSON cannot express."""
    stack: list[tuple[Any, str, int]] = [(value, path, 0)]
    while stack:
        current, where, depth = stack.pop()
        decoding.visit(where)
        if depth > MAX_DEPTH:
            decoding.report(path, f"nested more than {MAX_DEPTH} levels deep; does a YAML anchor refer to itself?")
            return None
        if isinstance(current, Mapping):
            for key, item in current.items():
                if not isinstance(key, str):
                    decoding.report(where, f"expected strings as keys, got {describe(key)}; put quotes around it")
                    continue
                stack.append((item, f"{where}.{key}", depth + 1))
        elif isinstance(current, list):
            stack.extend((item, f"{where}[{index}]", depth + 1) for index, item in enumerate(current))
        elif current is not None and not isinstance(current, str | bool | int | float):
            decoding.report(where, f"expected a JSON value, got {describe(current)}; put quotes around it")
    return value


def _decode_plain_object(value: Any, path: str, decoding: Decoding) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        decoding.report(path, f"expected an object, got {describe(value)}")
        return {}
    check_plain(value, path, decoding)
    return dict(value)


_SCALARS: Final[dict[Any, Decoder]] = {
    str: _decode_str,
    bool: _decode_bool,
    int: _decode_integer,
    bytes: _decode_bytes,
    dt.datetime: _decode_time,
    Quantity: _decode_quantity,
    Any: check_plain,
}


def decoder_for(annotation: Any) -> Decoder:
    """The decoder of a resolved type annotation."""
    decoder = _SCALARS.get(annotation)
    if decoder is not None:
        return decoder
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        marks = [mark.count for mark in arguments[1:] if isinstance(mark, Bits)]
        return functools.partial(_decode_integer, bits=marks[0]) if marks else decoder_for(arguments[0])
    if origin is types.UnionType or origin is typing.Union:
        present = [argument for argument in arguments if argument is not type(None)]
        if set(present) == {int, str}:
            return _decode_int_or_string
        (inner,) = present
        return _optional(inner)
    if origin is tuple:
        return _list(arguments[0])
    if origin is dict:
        return _decode_plain_object if arguments[1] is Any else _map(arguments[1])
    if isinstance(annotation, type) and issubclass(annotation, APIObject):
        return _object_decoder(annotation)
    raise TypeError(f"no decoder for {annotation!r}")


def _optional(inner: Any) -> Decoder:
    decode = decoder_for(inner)

    def decode_optional(value: Any, path: str, decoding: Decoding) -> Any:
        return None if value is None else decode(value, path, decoding)

    return decode_optional


def _list(inner: Any) -> Decoder:
    decode = decoder_for(inner)

    def decode_list(value: Any, path: str, decoding: Decoding) -> tuple[Any, ...]:
        if value is None:
            return ()
        if type(value) is not list and not isinstance(value, tuple):
            decoding.report(path, f"expected a list, got {describe(value)}")
            return ()
        decoding.visit(path, len(value))
        if not decoding.tells:
            return tuple([decode(item, "", decoding) for item in value])
        return tuple([decode(item, f"{path}[{index}]", decoding) for index, item in enumerate(value)])

    return decode_list


def _map(inner: Any) -> Decoder:
    decode = decoder_for(inner)

    def decode_map(value: Any, path: str, decoding: Decoding) -> dict[str, Any]:
        if value is None:
            return {}
        if type(value) is not dict and not isinstance(value, Mapping):
            decoding.report(path, f"expected an object, got {describe(value)}")
            return {}
        decoding.visit(path, len(value))
        result = {}
        for key, item in value.items():
            if not isinstance(key, str):
                decoding.report(path, f"expected strings as keys, got {describe(key)}; put quotes around it")
                continue
            result[key] = decode(item, f"{path}[{key}]" if decoding.tells else "", decoding)
        return result

    return decode_map


_object_decoders: Final[dict[type[APIObject], Decoder]] = {}


def _object_decoder(cls: type[APIObject]) -> Decoder:
    decoder = _object_decoders.get(cls)
    if decoder is None:
        decoder = _object_decoders[cls] = _make_object_decoder(cls)
    return decoder


def _make_object_decoder(cls: type[APIObject]) -> Decoder:
    plan: dict[str, tuple[str, Decoder | None]] = {
        wire_name(attribute): (attribute.name, None)
        for attribute in attrs.fields(cls)
        if attribute.name != "unknown_fields"
    }
    annotations = {attribute.name: attribute.type for attribute in attrs.fields(cls)}

    def decode_object(value: Any, path: str, decoding: Decoding) -> APIObject:
        if value is None:
            return cls()
        if type(value) is not dict and not isinstance(value, Mapping):  # the second question takes five times as long
            decoding.report(path, f"expected an object, got {describe(value)}")
            return cls()
        decoding.visit(path, len(value))
        known: dict[str, Any] = {}
        unknown: dict[str, Any] = {}
        tells = decoding.tells
        prefix = f"{path}." if path else ""
        for key, item in value.items():
            field = plan.get(key) if isinstance(key, str) else None
            if field is not None:
                name, decode = field
                if item is None:
                    continue
                if decode is None:
                    decode = decoder_for(resolve_annotation(cls, annotations[name]))
                    plan[key] = (name, decode)
                if decode is _decode_str and type(item) is str:
                    known[name] = item  # the most frequent kind, without a call
                else:
                    known[name] = decode(item, prefix + key if tells else "", decoding)
            elif isinstance(key, str):
                unknown[key] = check_plain(item, prefix + key, decoding)
            else:
                decoding.report(path, f"expected field names as keys, got {describe(key)}; put quotes around it")
        return cls(**known, unknown_fields=unknown) if unknown else cls(**known)

    return decode_object


def wire_name(attribute: attrs.Attribute[Any]) -> str:
    """The name of a field on the wire: what its metadata says, else its name in camelCase."""
    name = attribute.metadata.get(WIRE_NAME)
    if name is not None:
        return typing.cast("str", name)
    first, *rest = attribute.name.rstrip("_").split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def resolve_annotation(cls: type[APIObject], annotation: Any) -> Any:
    """The type that an annotation's text stands for, in the module of the class or of a base that declares it."""
    if not isinstance(annotation, str):
        return annotation
    for owner in cls.__mro__:
        try:
            return eval(annotation, dict(vars(sys.modules[owner.__module__])))
        except NameError:
            continue
    raise TypeError(f"cannot resolve {annotation!r} of {cls.__name__}")
