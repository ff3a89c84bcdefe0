"""Which taints a pod puts up with (`Toleration.ToleratesTaint`). Pure.

Tolerations that compare numbers (`Lt`, `Gt`) match nothing: in Kubernetes they are still behind a gate that is off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api import Taint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Toleration

NO_EXECUTE: Final = "NoExecute"
MEMORY_PRESSURE: Final = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")
"""What the control plane puts on nodes that run out of memory."""


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations is for the taint."""
    return any(_matches(toleration, taint) for toleration in tolerations)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration], effect: str) -> Taint | None:
    """The first taint of this effect that no toleration is for."""
    put_up_with = tuple(tolerations)
    return next((taint for taint in taints if taint.effect == effect and not tolerates(put_up_with, taint)), None)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False
