"""Pods as manifests give them."""

from __future__ import annotations

from collections.abc import Mapping

from trikubelet.api.decode import describe, read_dict
from trikubelet.api.objects import Pod
from trikubelet.api.problems import DecodeError, Problem


def pod_from_dict(data: object) -> Pod:
    """Decode a pod from what a JSON or YAML parser returned; `apiVersion` and `kind` may be absent, as in lists.

    Raises DecodeError with every problem found.
    """
    pod, problems = read_pod(data)
    if pod is None or problems:
        raise DecodeError(problems)
    return pod


def read_pod(data: object) -> tuple[Pod | None, tuple[Problem, ...]]:
    """Decode a pod as far as possible, as `read_dict` does, with every problem found."""
    problems = [
        Problem(name, f'expected "{expected}", got {describe(data[name])}')
        for name, expected in (("apiVersion", "v1"), ("kind", "Pod"))
        if isinstance(data, Mapping) and data.get(name) not in (None, expected)
    ]
    pod, more = read_dict(Pod, data)
    return pod, (*problems, *more)
