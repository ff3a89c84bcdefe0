"""Which features this agent declares on its node: those that it has and that no feature gate switches off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.admission.declared_features import DECLARED

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_DECLARED_FEATURES = "NodeDeclaredFeatures"


def declared_features(gates: Mapping[str, bool]) -> tuple[str, ...]:
    """For `status.declaredFeatures`, sorted. A gate that is not named is on, as all of these are by default."""
    if not gates.get(NODE_DECLARED_FEATURES, True):
        return ()
    return tuple(name for name in DECLARED if gates.get(name, True))


def usable_features(gates: Mapping[str, bool]) -> tuple[str, ...]:
    """What pods may need of this node, declared or not."""
    return declared_features({**gates, NODE_DECLARED_FEATURES: True})
