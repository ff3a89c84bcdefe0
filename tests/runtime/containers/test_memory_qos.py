"""Protected and throttled memory of containers (kubelet: `TestGenerateContainerConfigWithMemoryQoSEnforced`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests.runtime.containers.test_resources import container, pod
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.runtime.containers.resources import container_resources
from trikubelet.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from trikubelet.api import Pod

MI: Final = 2**20
OPTIONS: Final = RuntimeOptions(
    root_dir=Path("/"),
    machine=MachineFacts(4 * 2**30),
    memory_qos=True,
    memory_reservation_policy="TieredReservation",
    allocatable_memory=2**30,
    single_process_oom_kill=True,
)
BURSTABLE: Final = pod(container(requests="/128Mi", limits="/256Mi"))


def files(situation: Pod, options: RuntimeOptions = OPTIONS) -> dict[str, str]:
    return container_resources(situation, situation.spec.containers[0], options).unified


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        # 128 Mi + 0.9 * 128 Mi, in whole pages
        (BURSTABLE, {"memory.low": str(128 * MI), "memory.high": str(255_012_864)}),
        # up to 1 Gi, which is what the node has for pods
        (pod(container(requests="/128Mi")), {"memory.low": str(128 * MI), "memory.high": str(979_787_776)}),
        (pod(container(requests="1/128Mi", limits="1/128Mi")), {"memory.min": str(128 * MI)}),
        (pod(container(limits="/100Mi")), {"memory.min": "0", "memory.low": "0", "memory.high": str(90 * MI)}),
        (pod(container()), {"memory.min": "0", "memory.low": "0"}),
        (pod(container(requests="/2Gi")), {"memory.low": str(2**31)}),
    ],
)
def test_memory_is_protected_by_class_and_throttled_before_the_limit(situation: Pod, expected: dict[str, str]) -> None:
    assert files(situation) == expected


def test_without_the_policy_memory_is_throttled_only() -> None:
    unprotected = {"memory.min": "0", "memory.low": "0", "memory.high": str(255_012_864)}
    assert files(BURSTABLE, attrs.evolve(OPTIONS, memory_reservation_policy="None")) == unprotected


def test_the_factor_says_where_throttling_begins() -> None:
    assert files(BURSTABLE, attrs.evolve(OPTIONS, memory_throttling_factor=0.5))["memory.high"] == str(192 * MI)


def test_nothing_is_said_without_the_gate_or_on_cgroup_v1() -> None:
    assert files(BURSTABLE, attrs.evolve(OPTIONS, memory_qos=False)) == {}
    assert files(BURSTABLE, attrs.evolve(OPTIONS, machine=MachineFacts(4 * 2**30, cgroup_v2=False))) == {}


def test_it_goes_together_with_the_killing_of_whole_cgroups() -> None:
    both = files(BURSTABLE, attrs.evolve(OPTIONS, single_process_oom_kill=False))
    assert both.keys() == {"memory.oom.group", "memory.low", "memory.high"}
