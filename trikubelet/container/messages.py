"""Texts that users know: pods and durations as the kubelet writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trikubelet.api import Pod


def describe_pod(pod: Pod) -> str:
    """`name_namespace(uid)`."""
    return f"{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})"


def describe_duration(seconds: float) -> str:
    """A duration to the millisecond as Go prints it: `850ms`, `1.5s`, `2m40s`, `1h0m0s`."""
    milliseconds = int(seconds * 1000)
    if milliseconds == 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
