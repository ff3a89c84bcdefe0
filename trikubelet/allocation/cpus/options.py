"""The options of the static CPU policy (kubelet: `cpumanager/policy_options.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.config.feature_gates import gate_enabled
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.allocation.cpus.topology import CpuTopology

ALPHA_GATE: Final = "CPUManagerPolicyAlphaOptions"
BETA_GATE: Final = "CPUManagerPolicyBetaOptions"

_OPTIONS: Final = {
    "full-pcpus-only": ("full_cores", None),
    "strict-cpu-reservation": ("strict_reservation", None),
    "prefer-align-cpus-by-uncorecache": ("align_uncore", None),
    "distribute-cpus-across-numa": ("across_numa", BETA_GATE),
    "align-by-socket": ("align_socket", ALPHA_GATE),
    "distribute-cpus-across-cores": ("across_cores", ALPHA_GATE),
}
"""The name of each, the field, and the feature gate that it needs."""
_EXCLUSIVE: Final = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)
_BOOLEANS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


@frozen
class StaticPolicyOptions:
    full_cores: bool = False
    """Refuse what is no multiple of a core's threads."""
    strict_reservation: bool = False
    """Keep reserved CPUs out of the shared pool."""
    align_uncore: bool = False
    """Prefer CPUs that share an uncore cache."""
    across_numa: bool = False
    """Take as many CPUs from each NUMA node, where one is not enough."""
    align_socket: bool = False
    """Align CPUs with sockets, not with NUMA nodes."""
    across_cores: bool = False
    """Take CPUs of different cores first."""


NO_OPTIONS: Final = StaticPolicyOptions()


def parse_options(texts: Mapping[str, str], gates: Mapping[str, bool]) -> StaticPolicyOptions:
    """`gates`: a configuration's `featureGates`. Raises ValueError for the first thing that is wrong."""
    fields = {}
    for name, text in texts.items():
        if name not in _OPTIONS:
            raise ValueError(f'expected one of {", ".join(_OPTIONS)}, got "{name}"')
        field, gate = _OPTIONS[name]
        if gate is not None and not gate_enabled(gates, gate):
            raise ValueError(f'the option "{name}" needs featureGates[{gate}] to be true')
        fields[field] = parse_boolean(name, text)
    for pair in _EXCLUSIVE:
        if all(fields.get(_OPTIONS[name][0]) for name in pair):
            raise ValueError(f'the options "{pair[0]}" and "{pair[1]}" exclude each other: keep one of them')
    return StaticPolicyOptions(**fields)


def parse_boolean(name: str, text: str) -> bool:
    """As Go reads it. Raises ValueError."""
    if text not in _BOOLEANS:
        raise ValueError(f'the option "{name}" must be "true" or "false", got "{text}"')
    return _BOOLEANS[text]


def check_machine(options: StaticPolicyOptions, topology: CpuTopology, topology_manager_policy: str) -> None:
    """Raises ValueError for options that do not fit the machine or the topology manager's policy."""
    if not options.align_socket:
        return
    if topology_manager_policy == "single-numa-node":
        raise ValueError('align-by-socket and topologyManagerPolicy "single-numa-node" exclude each other: keep one')
    if len(topology.sockets) > len(topology.nodes):
        raise ValueError("align-by-socket does not fit a machine with more sockets than NUMA nodes: leave it out")
