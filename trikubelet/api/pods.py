"""Pods as manifests give them."""

from __future__ import annotations

from collections.abc import Mapping

from trikubelet.api.decode import describe, from_dict
from trikubelet.api.objects import Pod
from trikubelet.api.problems import DecodeError, Problem


def pod_from_dict(data: object) -> Pod:
    """Decode a pod from what a JSON or YAML parser returned; `apiVersion` and `kind` may be absent, as in lists.

    Raises DecodeError with every problem found.
    """
    if isinstance(data, Mapping):
        problems = [
            Problem(name, f'expected "{expected}", got {describe(data[name])}')
            for name, expected in (("apiVersion", "v1"), ("kind", "Pod"))
            if data.get(name) not in (None, expected)
        ]
        if problems:
            raise DecodeError(problems)
    return from_dict(Pod, data)
