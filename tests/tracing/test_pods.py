"""The traces of pods on a simulated node, as a collector gets them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.agent.sim_node import static_pod
from tests.scenarios.stage import cluster_stage
from tests.tracing.collector import Collected, Collector
from trikubelet.agent.tracing import Tracing
from trikubelet.clock import TrioClock
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node
from trikubelet.tracing.context import pod_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.sim.node import SimulatedNode

UID = "0f0e0d0c-0b0a-4908-8706-050403020100"
TRACE = UID.replace("-", "")
CRI = "runtime.v1.RuntimeService"
IMAGES = "runtime.v1.ImageService"
PROBED: dict[str, Any] = {
    "name": "main",
    "image": "test:1",
    "imagePullPolicy": "Always",
    "readinessProbe": {"exec": {"command": ["ready"]}, "periodSeconds": 1, "initialDelaySeconds": 2},
    "lifecycle": {"preStop": {"exec": {"command": ["stop"]}}},
}


@attrs.frozen
class Stage:
    collector: Collector
    tracing: Tracing
    sim: SimulatedRuntime
    source: ScriptedSource

    @asynccontextmanager
    async def agent(self, **options: Any) -> AsyncIterator[SimulatedNode]:
        """One agent's life; a second one finds what the first left."""
        sources = {"file": self.source}
        async with simulated_node(self.sim, sources=sources, tracing=self.tracing, **options) as node:
            yield node


@asynccontextmanager
async def staged(*, per_million: int = 1_000_000) -> AsyncIterator[Stage]:
    """All that was told has arrived at the collector when the block is over."""
    collector, sim = Collector(), SimulatedRuntime(seed=1)
    sim.delays.update({"RunPodSandbox": 0.1, "PullImage": 1.5, "StartContainer": 0.02, "StopContainer": 0.5})
    async with collector.served() as channel:
        tracing = Tracing.make(channel, node="node1", per_million=per_million, clock=sim.clock)
        async with tracing.exporter.running():
            yield Stage(collector, tracing, sim, ScriptedSource("file"))


async def lived(**spec: Any) -> Collector:
    """A pod's whole life."""
    async with staged() as stage:
        async with stage.agent():
            stage.source.put(pod := static_pod("web", uid=UID, **spec))
            await trio.sleep(100)
            stage.source.remove(pod)
            await trio.sleep(60)
        assert stage.tracing.exporter.counts.dropped == 0
    return stage.collector


def within(inner: Collected, outer: Collected) -> bool:
    return outer.began <= inner.began <= inner.ended <= outer.ended


async def test_one_trace_tells_of_a_pods_start_and_end(autojump_clock: trio.testing.MockClock) -> None:
    collector = await lived(containers=[PROBED])
    start, end = collector.only("podStart"), collector.only("podEnd")
    assert (start.trace, end.trace) == (TRACE, TRACE)
    assert start.parent == ""
    assert end.parent == start.id
    assert start.attributes == {
        "k8s.pod.uid": UID,
        "k8s.pod": "default/web-node",
        "k8s.pod.name": "web-node",
        "k8s.namespace.name": "default",
    }
    assert start.resource == {"service.name": "kubelet", "host.name": "node1"}

    first, *_ = collector.children(start)
    assert (first.name, first.scope) == ("syncPod", "k8s.io/kubernetes/pkg/kubelet")
    assert first.attributes == {**start.attributes, "k8s.pod.update_type": "create"}
    assert [one.name for one in collector.children(first)] == [
        "waitForAttachAndMount",
        f"{CRI}/RunPodSandbox",
        f"{CRI}/PodSandboxStatus",
        f"{IMAGES}/PullImage",
        f"{IMAGES}/ImageStatus",
        f"{CRI}/CreateContainer",
        f"{CRI}/StartContainer",
    ]
    assert all(within(one, first) for one in collector.children(first))
    *_, probe, _ = collector.children(start)
    assert probe.name == f"{CRI}/ExecSync", "what makes it ready is the last that happens"
    assert 2 < start.ended - start.began < 5
    assert start.ended - probe.ended < 0.1

    assert [one.name for one in collector.children(end)] == ["syncTerminatingPod", "syncTerminatedPod"]
    terminating, terminated = collector.children(end)
    assert [one.name for one in collector.children(terminating)] == [
        f"{CRI}/ExecSync",
        f"{CRI}/StopContainer",
        f"{CRI}/StopPodSandbox",
    ]
    assert all(within(one, terminating) for one in collector.children(terminating))
    assert terminating.attributes == terminated.attributes == start.attributes
    assert within(terminating, end)
    assert within(terminated, end)
    assert end.began == pytest.approx(start.began + 100)
    ids = [one.id for one in collector.spans]
    assert len(ids) == len(set(ids))


async def test_what_is_done_for_a_running_pod_has_traces_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    collector = await lived(containers=[PROBED])
    start, end = collector.only("podStart"), collector.only("podEnd")
    later = [one for one in collector.spans if one.span.links]
    assert {one.name for one in later} == {"syncPod", f"{CRI}/ExecSync"}
    for one in later:
        assert start.ended <= one.began <= end.began
        assert one.parent == ""
        assert one.trace != TRACE
        assert [link.trace_id.hex() for link in one.span.links] == [TRACE]
    assert len({one.trace for one in later}) == len(later)


async def test_every_span_of_a_trace_is_in_one_that_arrived(autojump_clock: trio.testing.MockClock) -> None:
    collector = await lived(
        initContainers=[
            {"name": "side", "image": "test:1", "restartPolicy": "Always"},
        ],
        containers=[PROBED, {"name": "other", "image": "test:1"}],
    )
    ids = {one.id for one in collector.of_trace(TRACE)}
    assert {one.parent for one in collector.of_trace(TRACE)} <= {*ids, ""}
    stops = [one for one in collector.of_trace(TRACE) if one.name == f"{CRI}/StopContainer"]
    assert {one.parent for one in stops} == {collector.only("syncTerminatingPod").id}
    assert len(stops) == 3


async def test_a_pod_that_is_never_ready_is_told_of_at_its_end(autojump_clock: trio.testing.MockClock) -> None:
    probe = {"exec": {"command": ["false"]}, "initialDelaySeconds": 10_000}
    collector = await lived(containers=[{"name": "main", "image": "test:1", "readinessProbe": probe}])
    start, end = collector.only("podStart"), collector.only("podEnd")
    assert start.ended == end.began
    assert end.parent == start.id


async def test_a_sync_that_fails_says_why(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage, stage.agent():
        stage.source.put(static_pod("web", uid=UID, containers=[{"name": "main", "image": "no such image"}]))
        await trio.sleep(5)
    first = stage.collector.named("syncPod")[0]
    assert first.span.status.message
    assert first.span.status.code == 2
    (event,) = first.span.events
    assert event.name == "exception"


async def test_a_sync_that_is_called_off_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage, stage.agent():
        stage.sim.delays["PullImage"] = 1000.0
        stage.source.put(pod := static_pod("web", uid=UID, containers=[PROBED]))
        await trio.sleep(5)
        stage.source.remove(pod)
        await trio.sleep(60)
    first = stage.collector.named("syncPod")[0]
    pull = stage.collector.only(f"{IMAGES}/PullImage")
    assert (first.span.status.message, pull.span.status.message) == ("cancelled", "cancelled")
    assert pull.attributes["rpc.response.status_code"] == "Canceled"
    end = stage.collector.only("podEnd")
    assert end.began - stage.collector.only("podStart").began == pytest.approx(5), "it was asked for then"


async def test_another_agent_goes_on_with_the_same_trace(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        async with stage.agent():
            stage.source.put(pod := static_pod("web", uid=UID, containers=[PROBED]))
            await trio.sleep(50)
        async with stage.agent() as node:
            await trio.sleep(20)
            runtime = node.agent.runtime_client
            (sandbox,) = await runtime.list_pod_sandboxes()
            await runtime.stop_pod_sandbox(sandbox.id)
            await runtime.remove_pod_sandbox(sandbox.id)
            await trio.sleep(30)
            assert len(await runtime.list_pod_sandboxes()) == 1, "it has another one"
            stage.source.remove(pod)
            await trio.sleep(60)
    start, end = stage.collector.only("podStart"), stage.collector.only("podEnd")
    assert start.ended - start.began < 10, "the second agent tells of no start"
    assert (end.trace, end.parent) == (TRACE, start.id)
    assert "syncTerminatedPod" in {one.name for one in stage.collector.children(end)}


async def test_an_agent_that_ends_tells_of_what_was_going_on(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        async with stage.agent():
            stage.sim.delays["PullImage"] = 1000.0
            stage.source.put(static_pod("web", uid=UID, containers=[PROBED]))
            await trio.sleep(5)
    assert stage.collector.only("podStart").span.status.message == "cancelled"


async def test_a_pod_of_a_cluster_is_gone_when_its_object_is(autojump_clock: trio.testing.MockClock) -> None:
    collector = Collector()
    async with collector.served() as channel:
        tracing = Tracing.make(channel, node="node1", per_million=1_000_000, clock=TrioClock())
        async with tracing.exporter.running(), cluster_stage(tracing=tracing) as stage:
            await stage.until_node_ready()
            stage.create_pod("web")
            stage.create_pod("held", metadata={"finalizers": ["example.com/held"]})
            await stage.until_ready("web", "held")
            await trio.sleep(10)
            stage.delete_pod("web")
            stage.delete_pod("held")
            await stage.until_gone("web")
            await trio.sleep(20)
            assert [one.attributes["k8s.pod.name"] for one in collector.named("podEnd")] == ["web"]
            stage.admin.patch("pods", "held", body={"metadata": {"finalizers": None}})
            await stage.until_gone("held")
            await trio.sleep(1)
    web, held = collector.named("podEnd")
    released = collector.children(web)[-1]
    assert released.name == "syncTerminatedPod"
    assert released.ended <= web.ended < released.ended + 1, "the object is deleted after that"
    assert held.ended - held.began > 20


@pytest.mark.parametrize("per_million", [0, 500_000])
async def test_of_a_pod_all_is_recorded_or_nothing(autojump_clock: trio.testing.MockClock, per_million: int) -> None:
    pods = [static_pod(f"pod{n}", uid=f"{n:08x}-0b0a-4908-8706-05040{n * 987_654_321:011x}"[:36]) for n in range(20)]
    async with staged(per_million=per_million) as stage, stage.agent():
        stage.source.put(*pods)
        await trio.sleep(50)
        stage.source.remove(*pods)
        await trio.sleep(60)
    recorded = {one.trace for one in stage.collector.spans if one.name == "podStart"}
    expected = {f"{one.trace_id:032x}" for pod in pods if (one := pod_context(pod.metadata.uid, per_million)).sampled}
    assert recorded == expected
    assert {one.trace for one in stage.collector.named("podEnd")} == expected
    assert (len(expected) > 3) == (per_million > 0)
    if not per_million:
        assert stage.collector.spans == []


async def test_garbage_collection_and_its_calls(autojump_clock: trio.testing.MockClock) -> None:
    collector = await lived()
    collection = collector.named("Containers/GarbageCollect")[-1]
    assert collection.scope == "k8s.io/kubernetes/pkg/kubelet/kuberuntime"
    assert collection.parent == ""
    assert {one.name for one in collector.children(collection)} >= {f"{CRI}/ListContainers", f"{CRI}/ListPodSandbox"}


async def test_a_collector_that_hangs_slows_no_pod(autojump_clock: trio.testing.MockClock) -> None:
    took = {}
    for hangs in (False, True):
        async with staged() as stage, stage.agent() as node:
            stage.collector.hangs = hangs
            await trio.sleep(20)
            began = trio.current_time()
            stage.source.put(static_pod("web", uid=UID, containers=[PROBED]))
            with node.agent.statuses.subscribe(UID) as changes:
                async for change in changes:
                    if any(one.type == "Ready" and one.status == "True" for one in change.status.conditions):
                        break
            took[hangs] = trio.current_time() - began
    assert took[True] == pytest.approx(took[False], abs=0.5)


# --- Without traces ---------------------------------------------------------------------------------------------------


async def test_without_traces_nothing_is_between_the_parts(autojump_clock: trio.testing.MockClock) -> None:
    async with simulated_node(SimulatedRuntime(seed=1)) as node:
        context = node.agent.workers._context
        assert context.open_pod.__qualname__ == "SyncContext.open_pod"  # type: ignore[attr-defined]
        assert type(node.agent.runtime_client) is RuntimeClient
        assert type(node.agent.runtime_client._channel).__name__ == "Channel"


def test_without_traces_nothing_of_them_is_imported() -> None:
    """Not by an agent that has started, served a scrape and run a pod."""
    program = """
import sys, trio
from trio.testing import MockClock
from tests.agent.sim_node import static_pod
import trikubelet.agent.run, trikubelet.agent.server
from trikubelet.agent.metrics import agent_metrics
from trikubelet.metrics.health_checks import HealthChecks
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import simulated_node

async def main():
    async with simulated_node(SimulatedRuntime(seed=1)) as node:
        node.source().put(static_pod("web"))
        await trio.sleep(10)
        agent_metrics(node.agent, HealthChecks(dict))

trio.run(main, clock=MockClock(autojump_threshold=0))
print([name for name in sys.modules if name.startswith(("trikubelet.tracing", "trikubelet.rpc.otlp", "opentelemetry"))
       or name == "trikubelet.agent.tracing"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
