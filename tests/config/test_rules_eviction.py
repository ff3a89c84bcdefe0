"""Settings of eviction that are more than their types say."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest

from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.config.rules import check_configuration


def problems(**settings: object) -> dict[str, str]:
    configuration = attrs.evolve(KubeletConfiguration(), **settings)  # type: ignore[arg-type]
    return {problem.path: problem.message for problem in check_configuration(configuration)}


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"eviction_hard": {"mem.available": "1Gi"}}, "evictionHard[mem.available]"),
        ({"eviction_hard": {"memory.available": "150%"}}, "evictionHard[memory.available]"),
        ({"eviction_soft": {"memory.available": "1Gi"}}, "evictionSoft[memory.available]"),
        (
            {"eviction_soft_grace_period": {"memory.available": "-1s"}},
            "evictionSoftGracePeriod[memory.available]",
        ),
        ({"eviction_minimum_reclaim": {"nodefs.available": "-1Gi"}}, "evictionMinimumReclaim[nodefs.available]"),
        ({"eviction_max_pod_grace_period": -1}, "evictionMaxPodGracePeriod"),
        ({"eviction_pressure_transition_period": timedelta(seconds=-1)}, "evictionPressureTransitionPeriod"),
    ],
)
def test_what_is_no_threshold_is_refused(settings: dict[str, object], path: str) -> None:
    assert list(problems(**settings)) == [path]


def test_every_entry_is_told() -> None:
    found = problems(eviction_hard={"a": "1", "memory.available": "x"}, eviction_minimum_reclaim={"b": "1"})
    assert list(found) == ["evictionHard[a]", "evictionHard[memory.available]", "evictionMinimumReclaim[b]"]
    assert found["evictionHard[memory.available]"].startswith("expected a quantity such as")


def test_thresholds_pass() -> None:
    assert (
        problems(
            eviction_hard={"memory.available": "5%", "nodefs.inodesFree": "0%"},
            eviction_soft={"memory.available": "1.5Gi"},
            eviction_soft_grace_period={"memory.available": "1m30s"},
            eviction_minimum_reclaim={"memory.available": "0Mi", "imagefs.available": "2Gi"},
        )
        == {}
    )
