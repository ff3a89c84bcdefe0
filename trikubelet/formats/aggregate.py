"""Several problems as one text (kubelet: `utilerrors.NewAggregate`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def aggregate(problems: Iterable[str]) -> str:
    """One text of several: each once, in brackets when there is more than one."""
    different = list(dict.fromkeys(problems))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]"
