"""Saying what is wrong with a field, in the words that users of Kubernetes search the web for.

A `Place` is a field of the object under validation together with the list that its problems go to, so that checks read
as sentences: `place.at("image").required()`. The wording is that of the API server's field errors.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trikubelet.api.problems import Problem
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Place:
    """A field, and where its problems are collected."""

    problems: list[Problem]
    path: str = ""

    def at(self, *names: str) -> Place:
        """The field `names[-1]` below this one."""
        return Place(self.problems, ".".join((self.path, *names)) if self.path else ".".join(names))

    def index(self, index: int) -> Place:
        return Place(self.problems, f"{self.path}[{index}]")

    def key(self, key: str) -> Place:
        return Place(self.problems, f"{self.path}[{key}]")

    def required(self, detail: str = "") -> None:
        self._report(f"Required value: {detail}" if detail else "Required value")

    def invalid(self, value: object, *details: str) -> None:
        """One problem for each of `details`; none when there are none."""
        for detail in details:
            self._report(f"Invalid value: {_shown(value)}: {detail}")

    def duplicate(self, value: object) -> None:
        self._report(f"Duplicate value: {_shown(value)}")

    def unsupported(self, value: object, supported: Iterable[str]) -> None:
        self._report(f"Unsupported value: {_shown(value)}: supported values: {', '.join(map(_shown, supported))}")

    def forbidden(self, detail: str) -> None:
        self._report(f"Forbidden: {detail}")

    def not_found(self, value: object, detail: str = "") -> None:
        self._report(f"Not found: {_shown(value)}" + (f": {detail}" if detail else ""))

    def too_many(self, count: int, limit: int) -> None:
        self._report(f"Too many: {count}: must have at most {limit} items")

    def too_long(self, limit: int) -> None:
        self._report(f"Too long: may not be more than {limit} bytes")

    def one_of(self, value: str, supported: Iterable[str]) -> None:
        """Required when empty, unsupported when none of `supported`."""
        supported = tuple(supported)
        if not value:
            self.required()
        elif value not in supported:
            self.unsupported(value, supported)

    def not_negative(self, value: int) -> None:
        if value < 0:
            self.invalid(value, "must be greater than or equal to 0")

    def _report(self, message: str) -> None:
        self.problems.append(Problem(self.path, message))


def _shown(value: object) -> str:
    if isinstance(value, bool | int):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
