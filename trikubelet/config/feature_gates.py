"""Feature gates: what a configuration may say of them, and which are on (kubelet: `component-base/featuregate`). Pure.

A configuration maps names to booleans. `AllAlpha` and `AllBeta` set every gate of that stage which is not named itself.
A gate that Kubernetes 1.36 does not know is refused, one that is locked to its other value, and one that is on while
one that it depends on is off. The table of all gates is `gate_table.py`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL_ALPHA: Final = "AllAlpha"
ALL_BETA: Final = "AllBeta"


class Stage(enum.Enum):
    """How ripe a feature is; the values are what Kubernetes writes into metrics."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""
    DEPRECATED = "DEPRECATED"
    OWN = "OWN"
    """This agent's own, which Kubernetes does not know: no matter for `AllAlpha` and `AllBeta`."""


class Effect(enum.Enum):
    """What a gate is to this agent."""

    SWITCHED = "switched"
    """The agent does otherwise when it is switched."""
    FIXED = "fixed"
    """The agent has the feature, always."""
    EMPTY = "empty"
    """No kubelet 1.36 does otherwise when it is switched."""
    LACKING = "lacking"
    """The agent has not the feature."""
    FOREIGN = "foreign"
    """No affair of a node's."""


@frozen
class FeatureGate:
    """One gate as of Kubernetes 1.36."""

    name: str
    stage: Stage
    default: bool
    locked: bool = False
    """Whether it cannot have another value than the default."""
    effect: Effect = Effect.FOREIGN
    used: str = ""
    """The module below `trikubelet/` that looks at it, when it is switched."""
    on_here: bool = False
    """Whether it is on here unless switched off, though off in Kubernetes."""


_STAGE_OF: Final = {ALL_ALPHA: Stage.ALPHA, ALL_BETA: Stage.BETA}


def gate_enabled(given: Mapping[str, bool], name: str) -> bool:
    """Whether a gate is on. `given`: a configuration's `featureGates`. Raises KeyError for one that does not exist."""
    from trikubelet.config.gate_table import GATES

    gate = GATES[name]
    return _value(gate, given, gate.default or gate.on_here)


def gate_values(given: Mapping[str, bool]) -> dict[FeatureGate, bool]:
    """Every gate that a kubelet knows, with its value here."""
    from trikubelet.config.gate_table import GATES

    known = {gate: _value(gate, given, gate.default or gate.on_here) for gate in GATES.values()}
    both = {FeatureGate(name, stage, default=False): given.get(name, False) for name, stage in _STAGE_OF.items()}
    return {**known, **both}


def gate_problems(given: Mapping[str, bool]) -> Iterator[str]:
    """Why gates cannot be set so, in Kubernetes's words."""
    from trikubelet.config.gate_table import DEPENDENCIES, GATES

    wrong = list(_wrong_values(given))
    yield from wrong
    if wrong:
        return
    on = {name for name, gate in GATES.items() if _value(gate, given, gate.default)}
    for name, needed in DEPENDENCIES.items():
        missing = [one for one in needed if one not in on]
        if name in on and missing:
            yield f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]"


def _wrong_values(given: Mapping[str, bool]) -> Iterator[str]:
    from trikubelet.config.gate_table import GATES

    for name, value in sorted(given.items()):
        if name in _STAGE_OF:
            continue
        gate = GATES.get(name)
        if gate is None:
            yield f"unrecognized feature gate: {name}"
        elif gate.locked and value != gate.default:
            yield f"cannot set feature gate {name} to {_text(value)}, feature is locked to {_text(gate.default)}"


def gate_warnings(given: Mapping[str, bool]) -> Iterator[str]:
    """What is to be said at the start of gates that may be set so."""
    from trikubelet.config.gate_table import GATES

    for name, value in sorted(given.items()):
        gate = GATES.get(name)
        if gate is None:
            continue
        if gate.stage in (Stage.GA, Stage.DEPRECATED):
            kind = gate.stage.value.lower() or "GA"
            yield f"setting {kind} feature gate {name}={_text(value)}. It will be removed in a future release."
        effect = _no_effect(gate, value)
        if effect:
            yield f"featureGates[{name}]={_text(value)} has no effect: {effect}"
    for all_name, stage in _STAGE_OF.items():
        lacking = [
            name
            for name, gate in GATES.items()
            if given.get(all_name) and gate.stage is stage and gate.effect is Effect.LACKING and name not in given
        ]
        if lacking:
            yield f"featureGates[{all_name}]=true: this agent has none of {', '.join(sorted(lacking))}"


def _no_effect(gate: FeatureGate, value: bool) -> str:
    """Why not; empty where it has one, and for what is no affair of the node's, which one file for all may name."""
    if gate.effect is Effect.LACKING and value:
        return "this agent has not the feature"
    if gate.effect is Effect.EMPTY:
        return "there is nothing in Kubernetes 1.36 that it would switch on a node"
    if gate.effect is Effect.FIXED and not value and not gate.locked:
        return "this agent has the feature always"
    return ""


def _value(gate: FeatureGate, given: Mapping[str, bool], default: bool) -> bool:
    if gate.name in given:
        return given[gate.name]
    for name, stage in _STAGE_OF.items():
        if gate.stage is stage and name in given:
            return given[name]
    return default


def _text(value: bool) -> str:
    return str(value).lower()
