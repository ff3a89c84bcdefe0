"""Rules about processors, memory and swap, in the kubelet's cases."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trikubelet.config.kubelet_configuration import KubeletConfiguration, MemorySwap
from trikubelet.config.resource_rules import check_resources


def problems(**fields: Any) -> list[tuple[str, str]]:
    config = attrs.evolve(KubeletConfiguration(), **fields)
    return [(problem.path, problem.message) for problem in check_resources(config)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"memory_throttling_factor": 1.0},
        {"memory_swap": MemorySwap(swap_behavior="LimitedSwap")},
        {"memory_swap": MemorySwap(swap_behavior="NoSwap")},
        {"memory_reservation_policy": "TieredReservation", "feature_gates": {"MemoryQoS": True}},
    ],
)
def test_what_the_kubelet_takes_is_fine(fields: dict[str, Any]) -> None:
    assert problems(**fields) == []


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        (
            {"memory_throttling_factor": 0.0},
            "memoryThrottlingFactor",
            "must be greater than 0 and at most 1.0, got 0.0",
        ),
        (
            {"memory_throttling_factor": 1.1},
            "memoryThrottlingFactor",
            "must be greater than 0 and at most 1.0, got 1.1",
        ),
        (
            {"memory_reservation_policy": "HardReservation"},
            "memoryReservationPolicy",
            'must be one of "None", "TieredReservation", got "HardReservation"',
        ),
        (
            {"memory_reservation_policy": "TieredReservation"},
            "memoryReservationPolicy",
            '"TieredReservation" needs featureGates[MemoryQoS] to be true',
        ),
        (
            {"memory_swap": MemorySwap(swap_behavior="invalid")},
            "memorySwap.swapBehavior",
            'must be one of "", "NoSwap", "LimitedSwap", got "invalid"',
        ),
        ({"cpu_manager_policy": "odd"}, "cpuManagerPolicy", 'must be one of "none", "static", got "odd"'),
    ],
)
def test_what_the_kubelet_refuses_is_refused(fields: dict[str, Any], path: str, message: str) -> None:
    assert problems(**fields) == [(path, message)]


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("cpu_manager_policy", "static"),
        ("memory_manager_policy", "Static"),
        ("topology_manager_policy", "best-effort"),
        ("topology_manager_policy", "restricted"),
        ("topology_manager_policy", "single-numa-node"),
    ],
)
def test_policies_of_the_resource_managers_may_be_set(field: str, policy: str) -> None:
    assert problems(**{field: policy}) == []


def test_no_policy_has_no_options() -> None:
    ((path, message),) = problems(cpu_manager_policy_options={"full-pcpus-only": "true"})
    assert path == "cpuManagerPolicyOptions"
    assert 'set cpuManagerPolicy to "static"' in message
