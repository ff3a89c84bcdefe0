"""Which features this agent declares on its node: those that it has and that no feature gate switches off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.admission.declared_features import DECLARED, REGISTRY
from trikubelet.config.feature_gates import gate_enabled

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_DECLARED_FEATURES: Final = "NodeDeclaredFeatures"
ALL: Final = tuple(feature.name for feature in REGISTRY)


def declared_features(gates: Mapping[str, bool]) -> tuple[str, ...]:
    """For `status.declaredFeatures`, sorted."""
    if not gate_enabled(gates, NODE_DECLARED_FEATURES):
        return ()
    return tuple(name for name in DECLARED if gate_enabled(gates, name))


def usable_features(gates: Mapping[str, bool]) -> tuple[str, ...]:
    """What pods may need of this node: where nothing is declared, nobody asks."""
    return declared_features(gates) if gate_enabled(gates, NODE_DECLARED_FEATURES) else ALL
