"""Turns the plain data of a configuration into `KubeletConfiguration`, naming every mistake by its path at once.

Pure. A mistake in one field hides no mistake in another: decoding goes on with the field's default.
"""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, Final

import attrs

from trikubelet.config.kubelet_configuration import KubeletConfiguration, wire_name
from trikubelet.formats.durations import parse_duration
from trikubelet.formats.values import frozen

TYPE_META: Final = frozenset({"apiVersion", "kind"})


@frozen
class FieldProblem:
    """A field that cannot be used as it stands."""

    path: str
    message: str


@frozen
class Decoded:
    """What a mapping held."""

    config: KubeletConfiguration
    problems: tuple[FieldProblem, ...]
    unknown: tuple[FieldProblem, ...]
    """Fields that Kubernetes does not have."""
    explicit: frozenset[str]
    """Top-level fields that were given, by their name in the file. A zero value that means the default gives nothing:
    kubeadm writes one for every field that nobody has set."""


def decode_configuration(data: dict[str, Any]) -> Decoded:
    """Decode one merged (or single) configuration mapping. Never raises: see `Decoded.problems`."""
    decoder = _Decoder()
    body = {name: value for name, value in data.items() if name not in TYPE_META}
    config = decoder.struct(KubeletConfiguration, body, "")
    explicit = frozenset(name for name, value in body.items() if value is not None) - decoder.defaulted
    return Decoded(_derive(config, explicit), tuple(decoder.problems), tuple(decoder.unknown), explicit)


def _derive(config: KubeletConfiguration, explicit: frozenset[str]) -> KubeletConfiguration:
    """Defaults that depend on another field, and values that mean a default."""
    changes: dict[str, Any] = {}
    if "nodeStatusReportFrequency" not in explicit and "nodeStatusUpdateFrequency" in explicit:
        changes["node_status_report_frequency"] = config.node_status_update_frequency
    if "serializeImagePulls" not in explicit and (config.max_parallel_image_pulls or 0) > 1:
        changes["serialize_image_pulls"] = False
    if config.pod_pids_limit < 0:
        changes["pod_pids_limit"] = -1
    if config.cgroup_root and not config.cgroup_root.startswith("/"):
        changes["cgroup_root"] = f"/{config.cgroup_root}"  # The kubelet counts both from the root of the hierarchy.
    return attrs.evolve(config, **changes) if changes else config


class _Decoder:
    def __init__(self) -> None:
        self.problems: list[FieldProblem] = []
        self.unknown: list[FieldProblem] = []
        self.defaulted: set[str] = set()

    def struct(self, cls: Any, data: Any, path: str) -> Any:
        if not isinstance(data, dict):
            self._expected("a mapping", data, path)
            return cls()
        known = _fields(cls)
        values: dict[str, Any] = {}
        for name, raw in data.items():
            child = f"{path}.{name}" if path else name
            if name not in known:
                self.unknown.append(FieldProblem(child, _unknown_message(name, known)))
            elif raw is not None:
                attribute, kind = known[name]
                self._assign(values, attribute, kind, raw, child)
        return cls(**values)

    def _assign(self, values: dict[str, Any], attribute: attrs.Attribute[Any], kind: Any, raw: Any, path: str) -> None:
        from_number = attribute.metadata.get("from_number")
        if from_number is not None and isinstance(raw, int) and not isinstance(raw, bool):
            raw = from_number(raw)
        try:
            value = self._value(kind, raw, path, attribute.metadata.get("bits", 32))
        except _WrongValueError as error:
            self.problems.append(FieldProblem(path, str(error)))
            return
        if attribute.metadata.get("zero_is_default") and not value:
            self.defaulted.add(path)
            return
        values[attribute.name] = value

    def _value(self, kind: Any, raw: Any, path: str, bits: int) -> Any:
        origin = typing.get_origin(kind)
        if origin is types.UnionType:
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
            origin = typing.get_origin(kind)
        if origin is tuple:
            return self._list(typing.get_args(kind)[0], raw, path, bits)
        if origin is dict:
            return self._mapping(typing.get_args(kind)[1], raw, path, bits)
        if attrs.has(kind):
            return self.struct(kind, raw, path)
        return _scalar(kind, raw, bits)

    def _list(self, kind: Any, raw: Any, path: str, bits: int) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise _WrongValueError("a list", raw)
        values = []
        for index, item in enumerate(raw):
            values.extend(self._item(kind, item, f"{path}[{index}]", bits))
        return tuple(values)

    def _mapping(self, kind: Any, raw: Any, path: str, bits: int) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _WrongValueError("a mapping", raw)
        entries: dict[str, Any] = {}
        for key, item in raw.items():
            for value in self._item(kind, item, f"{path}[{key}]", bits):
                entries[key] = value
        return entries

    def _item(self, kind: Any, raw: Any, path: str, bits: int) -> list[Any]:
        try:
            return [self._value(kind, raw, path, bits)]
        except _WrongValueError as error:
            self.problems.append(FieldProblem(path, str(error)))
            return []

    def _expected(self, what: str, raw: Any, path: str) -> None:
        self.problems.append(FieldProblem(path, str(_WrongValueError(what, raw))))


class _WrongValueError(Exception):
    def __init__(self, expected: str, raw: Any) -> None:
        super().__init__(f"expected {expected}, got {_describe(raw)}")


def _describe(raw: Any) -> str:
    match raw:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(raw).lower()}"
        case int() | float():
            return f"the number {raw}"
        case str():
            return f'the string "{raw[:60]}"' + ("…" if len(raw) > 60 else "")
        case list():
            return "a list"
        case _:
            return "a mapping"


def _scalar(kind: type, raw: Any, bits: int) -> Any:
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        raise _WrongValueError("true or false", raw)
    if kind is str:
        if isinstance(raw, str):
            return raw
        raise _WrongValueError("a string", raw)
    if kind is int:
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, int) and not isinstance(raw, bool) and -(2 ** (bits - 1)) <= raw < 2 ** (bits - 1):
            return raw
        raise _WrongValueError(f"a whole number of {bits} bits", raw)
    if kind is float:
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return float(raw)
        raise _WrongValueError("a number", raw)
    if not isinstance(raw, str):
        raise _WrongValueError('a duration such as "1m30s"', raw)
    try:
        return parse_duration(raw)
    except ValueError:
        raise _WrongValueError('a duration such as "1m30s" (units ns, us, ms, s, m, h)', raw) from None


@cache
def _fields(cls: Any) -> dict[str, tuple[attrs.Attribute[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {wire_name(attribute): (attribute, hints[attribute.name]) for attribute in attrs.fields(cls)}


def _unknown_message(name: str, known: dict[str, Any]) -> str:
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    hint = f" (did you mean {by_lower[close[0]]}?)" if close else ""
    return f"unknown field{hint}, ignored"
