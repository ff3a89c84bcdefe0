"""When an agent begins to look after its node, and where it lets the kernel ring."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from tests.node.eviction.stage import Stage
from trikubelet.agent.eviction import SETTLED_WITHIN, SETTLING, AgentEviction, notifier_places
from trikubelet.broadcast import Broadcast
from trikubelet.clock import TrioClock
from trikubelet.config.eviction_thresholds import eviction_config
from trikubelet.config.eviction_values import Signal
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node.eviction.threshold_notifier import NODE_PRESSURE, NotifierPlaces

if TYPE_CHECKING:
    from trio.testing import MockClock

MEMORY = Path("/sys/fs/cgroup/memory")


def places(**fields: Any) -> NotifierPlaces | None:
    configuration = KubeletConfiguration(**fields)
    return notifier_places(configuration, eviction_config(configuration))


def test_stalls_ring_wherever_the_kernel_counts_them() -> None:
    assert places() == NotifierPlaces(groups={}, pressure=NODE_PRESSURE if NODE_PRESSURE.exists() else None)


def test_nothing_rings_where_memory_may_run_out() -> None:
    assert places(eviction_hard={"memory.available": "0%"}, kernel_memcg_notification=True) is None
    assert places(eviction_hard={"nodefs.available": "1Gi"}, kernel_memcg_notification=True) is None


def test_usage_of_the_machines_memory_rings_with_the_first_version_of_cgroups() -> None:
    found = places(kernel_memcg_notification=True, cgroup_root="/no-such-group")
    assert found is not None
    if not (MEMORY / "cgroup.event_control").exists():
        pytest.skip("cgroup v1 has no memory hierarchy here")
    assert found.groups == {Signal.MEMORY: MEMORY}


def agent(settled: trio.Event) -> Any:
    """What an `AgentEviction` looks at."""
    return SimpleNamespace(
        options=SimpleNamespace(configuration=KubeletConfiguration()),
        sync_loop=SimpleNamespace(settled=settled),
        desired=SimpleNamespace(active=list),
        allocation=SimpleNamespace(allocated=lambda pod: pod),
        workers=SimpleNamespace(
            states=SimpleNamespace(should_pod_be_finished=lambda uid: True), finished=Broadcast[str]()
        ),
        observer=SimpleNamespace(changed=Broadcast[None]()),
        volume_parts=None,
        housekeeping=SimpleNamespace(delete_dead_containers=None),
        image_collector=None,
        recorder=None,
        clock=TrioClock(),
    )


@pytest.mark.parametrize("settled_after", [0.0, 10.0, None])
async def test_a_node_is_looked_after_though_its_pods_are_not_all_known(
    settled_after: float | None, autojump_clock: MockClock
) -> None:
    """An API server that is away may stay away."""
    node, settled = Stage(), trio.Event()
    eviction = AgentEviction(usage=cast("Any", node), measures=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(eviction.run, agent(settled))
        if settled_after is not None:
            await trio.sleep(settled_after)
            settled.set()
        await trio.sleep(SETTLED_WITHIN + SETTLING + 1)
        nursery.cancel_scope.cancel()
    waited = SETTLED_WITHIN if settled_after is None else settled_after
    assert node.measured[:1] == [waited + SETTLING]
