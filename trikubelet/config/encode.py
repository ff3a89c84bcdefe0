"""A KubeletConfiguration as Go writes it to JSON: the opposite of `decode`, to show what is in force."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs

from trikubelet.config.kubelet_configuration import API_VERSION, KIND, KubeletConfiguration, wire_name
from trikubelet.formats.durations import format_duration


def encode_configuration(configuration: KubeletConfiguration) -> dict[str, Any]:
    """With `kind` and `apiVersion`. What Go leaves out is left out: empty values of fields that are no pointers."""
    return {"kind": KIND, "apiVersion": API_VERSION, **_struct(configuration)}


def _struct(value: Any) -> dict[str, Any]:
    shown = {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        if item is None or (item in ("", (), {}, 0, False) and field.metadata.get("zero_is_default", False)):
            continue
        shown[wire_name(field)] = _encode(item)
    return shown


def _encode(value: Any) -> Any:
    if attrs.has(type(value)):
        return _struct(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    return [_encode(item) for item in value] if isinstance(value, (list, tuple)) else value
