"""The events of a resize, word for word the kubelet's (`events/resize.go`). Pure.

A text is followed by a JSON object that tools read: what each container asks for, which generation of the spec, and
what is wrong.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trikubelet.api import Container, to_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Pod

RESIZE_STARTED: Final = "ResizeStarted"
RESIZE_COMPLETED: Final = "ResizeCompleted"
RESIZE_ERROR: Final = "ResizeError"
RESIZE_DEFERRED: Final = "ResizeDeferred"
RESIZE_INFEASIBLE: Final = "ResizeInfeasible"
"""Reasons of the events."""


def resize_started(pod: Pod, generation: int) -> str:
    """`pod`: as allocated from now on."""
    return f"Pod resize started: {_summary(pod, generation)}"


def resize_completed(pod: Pod, generation: int) -> str:
    """`pod`: as allocated; `generation`: of the spec that asked for it."""
    return f"Pod resize completed: {_summary(pod, generation)}"


def resize_error(pod: Pod, generation: int, error: str) -> str:
    """`pod`: as allocated."""
    return f"Pod resize error: {_summary(pod, generation, error)}"


def resize_pending(pod: Pod, reason: str, message: str, generation: int) -> str:
    """`pod`: as it asks to be; `reason`: of the refusal, as `OutOfcpu`."""
    return f"Pod resize {reason}: {_summary(pod, generation, message)}"


def _summary(pod: Pod, generation: int, error: str = "") -> str:
    fields: dict[str, Any] = {
        "initContainers": _resources(pod.spec.init_containers),
        "containers": _resources(pod.spec.containers),
        "generation": generation,
        "error": error,
    }
    shown = {name: value for name, value in fields.items() if value or name == "generation"}
    return _go_json(shown)


def _resources(containers: Sequence[Container]) -> list[dict[str, Any]]:
    listed = []
    for container in containers:
        wire = to_dict(container.resources)
        for name in ("limits", "requests"):
            if name in wire:
                wire[name] = dict(sorted(wire[name].items()))
        listed.append({"name": container.name, "resources": wire})
    return listed


def _go_json(value: Any) -> str:
    """As Go writes JSON: compact, and with what means something to HTML escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    # Outside of strings there is none of them.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
