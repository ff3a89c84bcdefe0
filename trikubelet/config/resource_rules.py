"""Rules of what a configuration says of processors, memory and swap (kubelet: `ValidateKubeletConfiguration`).

Pure. What depends on the machine (`cpuManagerPolicyOptions`, `topologyManagerPolicyOptions`, `reservedMemory`) is
judged when the agent starts (`agent/resource_managers.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.config.decode import FieldProblem
from trikubelet.config.kubelet_configuration import MEMORY_QOS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.config.kubelet_configuration import KubeletConfiguration

_TIERED: Final = "TieredReservation"
_RESERVATION_POLICIES: Final = ("None", _TIERED)
_SWAP_BEHAVIORS: Final = ("", "NoSwap", "LimitedSwap")


def check_resources(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    """Every rule that is broken, in the order of the rules."""
    yield from _check_policy("cpuManagerPolicy", config.cpu_manager_policy, "none", "static")
    if config.cpu_manager_policy == "none" and config.cpu_manager_policy_options:
        problem = 'the policy "none" has no options: remove them, or set cpuManagerPolicy to "static"'
        yield FieldProblem("cpuManagerPolicyOptions", problem)
    yield from _check_policy("memoryManagerPolicy", config.memory_manager_policy, "None", "Static")
    levels = ("none", "best-effort", "restricted", "single-numa-node")
    yield from _check_policy("topologyManagerPolicy", config.topology_manager_policy, *levels)
    factor = config.memory_throttling_factor
    if not 0 < factor <= 1:
        yield FieldProblem("memoryThrottlingFactor", f"must be greater than 0 and at most 1.0, got {factor}")
    reservation = config.memory_reservation_policy
    if reservation not in _RESERVATION_POLICIES:
        expected = _quoted(_RESERVATION_POLICIES)
        yield FieldProblem("memoryReservationPolicy", f'must be one of {expected}, got "{reservation}"')
    elif reservation == _TIERED and not config.enabled(MEMORY_QOS):
        yield FieldProblem("memoryReservationPolicy", f'"{_TIERED}" needs featureGates[{MEMORY_QOS}] to be true')
    behavior = config.memory_swap.swap_behavior
    if behavior not in _SWAP_BEHAVIORS:
        expected = _quoted(_SWAP_BEHAVIORS)
        yield FieldProblem("memorySwap.swapBehavior", f'must be one of {expected}, got "{behavior}"')


def _check_policy(path: str, value: str, *policies: str) -> Iterator[FieldProblem]:
    if value not in policies:
        yield FieldProblem(path, f'must be one of {_quoted(policies)}, got "{value}"')


def _quoted(values: tuple[str, ...]) -> str:
    return ", ".join(f'"{value}"' for value in values)
