"""A fault in any task of the agent ends neither the agent nor anything beside it, and later the task works again.

The tasks are those that a whole agent has when it is quiet, as Trio knows them: one that is added later is in the test.
The fault comes out of whatever the task waits for, as a cancellation would.
"""

from __future__ import annotations

import os
import random
import stat
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from tests.agent.sim_node import clock_without_threads
from tests.agent.whole_node import OWN_PODS, SETTLED, Place, WholeNode, whole_node
from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT, examples
from tests.pods.test_tree import sizes
from tests.supervised_places import supervised_places
from tests.throwing import throw_into
from tests.volumes.fake_mounter import FakeMounter
from trikubelet.agent.volumes import VolumeTools
from trikubelet.supervision import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trio.testing import MockClock

    from tests.scenarios.stage import Stage
    from trikubelet.api import Pod

PLUGIN: Final = "trikubelet.node.devices.connections.PluginConnections._keep"
PASSING: Final = ("agent.cluster.events.", "agent.tracing.exporter._queue")
"""What has happened: the last so and so many events, and the spans of which the collector has yet to be told."""


AT_ONCE: Final = 1 if IS_NIGHT else 6
"""Faults."""
PART: Final = 3
"""So many names, from the root of the tree on, say to which part of the agent a task belongs."""
SEEDS: Final = examples(4)


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    seek = os.lseek

    def seek_in_file(descriptor: int, *where: Any) -> int:
        """The kernel's log is a pipe here, which has no end to go to."""
        return 0 if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else seek(descriptor, *where)

    monkeypatch.setattr(os, "lseek", seek_in_file)
    monkeypatch.setattr("trikubelet.agent.volumes.VolumeTools", partial(VolumeTools, mounter=FakeMounter()))
    return clock_without_threads(monkeypatch)


ABSENT: Final = {
    "it lasts as long as what it does for a pod": (
        "agent/tracing.py: contain self._until_ready",
        "allocation/manager.py: contain self._make_room",
        "node/dra/manager.py: contain self._take_off",
        "node/eviction/manager.py: contain end",
        "pods/admitting.py: supervise self._answer_about_devices",
        "pods/admitting.py: supervise self._make_room",
        "pods/life.py: contain tell_when_stuck",
        "pods/preempting.py: contain self._end",
        "runtime/cpusets.py: contain self._update",
        "status/writer.py: contain self._write",
        "volumes/manager.py: contain self._resolve_again",
        "volumes/runner.py: contain self._perform",
        "volumes/stats.py: contain self._measure_pod",
    ),
    "it lasts as long as a connection, a request or a program": (
        "agent/node_view.py: contain save",
        "agent/run.py: contain server.serve_stream",
        "kube_client/transport.py: contain task",
        "node_api/auth/sharing.py: contain self._carry_out",
        "node_api/listeners.py: contain self._serve",
        "runtime/logs/rotation.py: contain self._make_log",
        "runtime/logs/rotation.py: contain self._rotate_in_turn",
        "volumes/flex/discovery.py: contain self._ask",
    ),
    "it is over once the agent has started": (
        "agent/service.py: contain _collect_old_garbage_again",
        "agent/service.py: supervise tell_of_nothing_to_run",
        "node/dra/slices.py: supervise self.wipe",
        "node/observer.py: contain self._inspect_images",
        "node/observer.py: contain self._resolve_name",
        "node/status_manager.py: supervise self._keep_csi_node",
        "pods/mirrors.py: supervise self._adopt",
    ),
    "it is there when a driver has gone, or after a fault": (
        "node/dra/slices.py: supervise self._wipe_later",
        "pods/sync_loop.py: supervise self._handle_again",
    ),
    "it is there when the agent or the machine ends": (
        "agent/ending.py: supervise _log_what_takes_long",
        "node/shutdown/manager.py: contain run.node.report_node",
        "node/shutdown/manager.py: contain self._end_pod",
        "node/shutdown/manager.py: contain self._lengthen_delay",
        "node/shutdown/manager.py: contain self._shut_down",
        "node/shutdown/manager.py: supervise self._end_pods",
    ),
    "the simulated machine has no cgroups, and its runtime's images are nobody's to remove or to remember": (
        "agent/agent.py: supervise collector.run",
        "agent/resources.py: supervise _verify_periodically",
        "agent/resources.py: supervise manager.run",
        "agent/resources.py: supervise node.run",
        "agent/resources.py: supervise self._daemons.run",
        "node/eviction/threshold_notifier.py: supervise self._wait_for_stalls",
        "node/eviction/threshold_notifier.py: supervise self._wait_for_usage",
        "runtime/manager.py: supervise records.run",
    ),
    "it belongs to an agent without a cluster, without sources of pods, or without the gate PLEGOnDemandRelist": (
        "agent/agent.py: supervise pod_cidr.run",
        "pleg/pleg.py: supervise self._inspect_each_second",
        "sources/mux.py: supervise trio.sleep_forever",
    ),
    "the node has it from elsewhere: the test begins what belongs to the process, and `scopes.running` the exporter": (
        "agent/cluster_access.py: supervise identity.run",
        "agent/service.py: supervise _cancel_when",
        "agent/service.py: supervise _end_on_contention",
        "agent/service.py: supervise _flush_logs",
        "agent/service.py: supervise console.run",
        "agent/service.py: supervise keep_chains",
        "agent/service.py: supervise sd_notify.watchdog",
        "agent/service.py: supervise show_ending",
        "agent/service.py: supervise watch_image_arrivals",
        "agent/service.py: supervise watch_listed_images",
        "tracing/exporter.py: supervise self._run",
    ),
}
"""Places in the source whose tasks the quiet node does not have, by the reason why."""


def assert_every_task_that_is_kept_is_there(node: WholeNode) -> None:
    """So that there is a fault in each."""
    there = {where for _, task in node.tree() for where in node.beginnings.of(task)}
    absent = {str(place) for place in supervised_places() if not any(place.has(where) for where in there)}
    assert absent == {place for places in ABSENT.values() for place in places}


def is_apart(part: tuple[str, ...], other: Place) -> bool:
    return len(other.path) >= PART and other.path[:PART] != part


def thrown_into_at_once(places: Iterable[Place]) -> list[list[Place]]:
    """Cut places into groups. At night each is alone. By day there are a few in each, of different parts of the agent,
    and a connection that many parts share is still alone."""
    groups: list[list[Place]] = []
    for place in places:
        part = place.path[:PART]
        for group in groups:
            if len(group) < AT_ONCE and len(part) == PART and all(is_apart(part, other) for other in group):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


async def test_a_fault_in_any_task_is_that_tasks_alone(mock_clock: MockClock, tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with whole_node(tmp_path) as node:
            assert_every_task_that_is_kept_is_there(node)
            await node.serves("before")
            await trio.sleep(SETTLED)
            shape, held = node.shape(), sizes(node.agent)
            for number, places in enumerate(thrown_into_at_once(node.places())):
                where = " and ".join(map(str, places))
                there = node.places()
                assert there.keys() >= set(places), f"one of {where} is not there any more"
                pods, containers = node.pods(), node.containers()
                lines.clear()
                for place in places:
                    throw_into(there[place])
                await trio.sleep(2 * FAULTS.first + 1)
                for place in places:
                    told = f"thrown into {there[place].name}"
                    assert any(told in str(line) for line in lines), f"nobody told of the fault in {place}"
                ill = {name for place in places for name in place.path if name.startswith("pod ")}
                for life, tasks in pods.items():
                    assert life in ill or node.pods()[life] == tasks, f"{life} was touched by the fault in {where}"
                assert node.containers() == containers
                if any(PLUGIN in place.path and place.path[-1] != PLUGIN for place in places):
                    await node.register_plugin()  # as a plugin does whose connection has ended
                await node.serves(f"after-{number}")
                await trio.sleep(SETTLED)
                assert node.shape() == shape, f"another tree after the fault in {where}"
            now = {path: size for path, size in sizes(node.agent).items() if not path.startswith(PASSING)}
            more = {path: size for path, size in now.items() if size > held.get(path, 0)}
            assert more == {}, "nothing listens twice"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_while_pods_come_and_go_lose_no_pod(mock_clock: MockClock, tmp_path: Path, seed: int) -> None:
    """What a task has taken and not dealt with is not lost with it."""
    rng = random.Random(seed)
    async with whole_node(tmp_path) as node:
        shape = node.shape()
        wanted: set[str] = set()
        static: list[Pod] = []
        for number in range(40):
            node.stage.create_pod(name := f"pod-{number}")
            wanted.add(name)
            if number % 4 == 0:
                static.append(node.stage.add_static_pod(f"static-{number}"))
            elif number % 4 == 3 and rng.random() < 0.7:
                node.stage.source.remove(static.pop(rng.randrange(len(static))))
            if len(wanted) > 5:
                gone = rng.choice(sorted(wanted))
                wanted.remove(gone)
                node.stage.delete_pod(gone, grace=rng.choice((0, 3)))
            await trio.sleep(rng.uniform(0, 0.3))
            busy = {place: task for place, task in node.places().items() if PLUGIN not in place.path}
            throw_into(busy[rng.choice(list(busy))])
            await trio.sleep(rng.uniform(0, 0.3))
        await node.stage.until_ready(*wanted, *(pod.metadata.name for pod in static), within=300)
        gone_pods = {f"pod-{number}" for number in range(40)} - wanted
        await node.stage.until_gone(*gone_pods, within=300)
        for name in sorted(wanted):
            assert node.stage.status(name)["containerStatuses"][0]["restartCount"] == 0
            node.stage.delete_pod(name, grace=0)
        node.stage.source.remove(*static)
        await node.stage.until_gone(*wanted, within=300)
        await node.stage.until(lambda: _names_of_pods(node.stage) == OWN_PODS, 300, "mirror pods are left")
        await trio.sleep(SETTLED)
        assert node.shape() == shape


def _names_of_pods(stage: Stage) -> set[str]:
    return {pod["metadata"]["name"] for pod in stage.admin.list("pods")}
