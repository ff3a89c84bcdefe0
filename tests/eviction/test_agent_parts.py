"""Where an agent lets the kernel ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trikubelet.agent_eviction import alarm_places
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.eviction.alarms import NODE_PRESSURE, AlarmPlaces
from trikubelet.eviction.model import Signal
from trikubelet.eviction.thresholds import eviction_config

MEMORY = Path("/sys/fs/cgroup/memory")


def places(**fields: Any) -> AlarmPlaces | None:
    configuration = KubeletConfiguration(**fields)
    return alarm_places(configuration, eviction_config(configuration))


def test_stalls_ring_wherever_the_kernel_counts_them() -> None:
    assert places() == AlarmPlaces(groups={}, pressure=NODE_PRESSURE if NODE_PRESSURE.exists() else None)


def test_nothing_rings_where_memory_may_run_out() -> None:
    assert places(eviction_hard={"memory.available": "0%"}, kernel_memcg_notification=True) is None
    assert places(eviction_hard={"nodefs.available": "1Gi"}, kernel_memcg_notification=True) is None


def test_usage_of_the_machines_memory_rings_with_the_first_version_of_cgroups() -> None:
    found = places(kernel_memcg_notification=True, cgroup_root="/no-such-group")
    assert found is not None
    if not (MEMORY / "cgroup.event_control").exists():
        pytest.skip("cgroup v1 has no memory hierarchy here")
    assert found.groups == {Signal.MEMORY: MEMORY}
