"""What is wrong with an object: problems, each at a field, all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Problem:
    """One thing that is wrong. `path` names the field as in `spec.containers[0].image`; empty is the whole object."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class DecodeError(ValueError):
    """An object does not have the form that its type asks for. `problems` is never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))
