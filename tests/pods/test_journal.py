"""The journal of a simulated node: what happened to its pods, in order, and who asked for their ends."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from trikubelet.api.timestamps import parse_time
from trikubelet.pods import journal as module
from trikubelet.pods.journal import Kind
from trikubelet.sim import Program
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.pods.journal import Entry


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def told(node: SimNode, pod: Pod, kind: Kind) -> list[str]:
    entries = node.agent.journal.entries(pod.metadata.uid)
    return [f"{entry.container} {entry.what}".strip() for entry in entries if entry.kind is kind]


def last(node: SimNode, pod: Pod, what: str) -> Entry:
    return [entry for entry in node.agent.journal.entries(pod.metadata.uid) if entry.what == what][-1]


async def test_a_life_is_told_in_order_with_who_asked_for_its_end(mock_clock: MockClock) -> None:
    pod = static_pod("web", terminationGracePeriodSeconds=20)
    async with sim_node() as node:
        node.sim.program(Program.runs_forever(sigterm=5.0), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        await node.until_gone(pod)
        await trio.sleep(1)
        assert told(node, pod, Kind.PHASE) == [
            "WaitingToStart",
            "Syncing",
            "TerminationRequested",
            "Terminating",
            "Terminated",
            "Finished",
            "Gone",
        ]
        assert told(node, pod, Kind.CONTAINER) == ["main Started", "main Ended"]
        assert told(node, pod, Kind.READY) == ["Ready", "NotReady"]
        assert told(node, pod, Kind.STATUS) == ["Pending", "Running"]
        assert {"main Created", "main Started", "main Killing"} <= set(told(node, pod, Kind.EVENT))
        ended, terminating = last(node, pod, "Ended").as_json(), last(node, pod, "Terminating").as_json()
        assert ended["exitCode"] == 143
        assert terminating["askedBy"] == ["manifest removed"]
        assert terminating["grace"] == 20
        assert ended["at"] < terminating["until"]
        numbers = [entry.number for entry in node.agent.journal.entries(pod.metadata.uid)]
        assert numbers == sorted(set(numbers))


async def test_a_pod_that_is_gone_stays_for_a_while_and_then_no_more(mock_clock: MockClock) -> None:
    pod, other = static_pod("web"), static_pod("other")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        await node.until_gone(pod)
        assert node.agent.journal.find("default/web-node") == [pod.metadata.uid]
        await trio.sleep(module.KEPT_WHEN_FORGOTTEN + 1)
        node.source.put(other)
        await node.until_running(other)
        assert node.agent.journal.find("default/web-node") == []
        assert node.agent.journal.entries(pod.metadata.uid) == []


async def test_a_pod_that_is_replaced_is_told_so_and_one_with_less_time_is_told_again(mock_clock: MockClock) -> None:
    old, new = static_pod("web", terminationGracePeriodSeconds=50), static_pod("web", uid="second")
    async with sim_node() as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(old)
        await node.until_running(old)
        node.source.pods.pop(old.metadata.uid)
        node.source.put(new)
        await trio.sleep(5)
        before = last(node, old, "Terminating").as_json()
        with trio.move_on_after(20):
            await node.agent.workers.kill_pod(old, asked_by="evicted: too much", grace_period_override=10)
        after = last(node, old, "Terminating").as_json()
        assert before["askedBy"] == ["replaced by a newer version of its manifest"]
        assert after["askedBy"] == [*before["askedBy"], "evicted: too much"]
        assert after["until"] < before["until"]


async def test_a_viewer_sees_a_snapshot_then_each_entry_and_costs_nothing_when_it_is_gone(
    mock_clock: MockClock,
) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        journal = node.agent.journal
        with journal.view() as viewer:
            first = await viewer.receive()
            assert (first["type"], first["pods"]) == ("SNAPSHOT", [])
            node.source.put(pod)
            await node.until_running(pod)
            seen = [await viewer.receive() for _ in range(len(viewer))]
            assert {line["type"] for line in seen} == {"ENTRY"}
            assert [line["n"] for line in seen] == list(range(first["n"] + 1, first["n"] + 1 + len(seen)))
            assert {"phase", "event", "container", "status", "ready"} == {line["kind"] for line in seen}
            with trio.move_on_after(1000) as nothing_new:
                await viewer.receive()
            assert nothing_new.cancelled_caught, "a node at which nothing happens tells nothing"
        kept = len(viewer)
        node.source.remove(pod)
        await node.until_gone(pod)
        assert len(viewer) == kept


def stages_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages that a viewer drew who was told these lines of one pod."""
    drawn = [begun for pod in lines[0]["pods"] for begun in pod["stages"]]
    return drawn + [line["stage"] for line in lines[1:] if "stage" in line]


async def test_one_who_comes_late_is_told_the_same_stages(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.program(Program.crashes(100, after=1.0, exit_code=7), container="main")
        node.source.put(pod)
        told: list[dict[str, Any]] = []
        with node.agent.journal.view() as early:
            while trio.current_time() < 900:
                with trio.move_on_after(1):
                    told.append(await early.receive())
            with node.agent.journal.view() as late:
                begun = stages_of([await late.receive()])
        assert begun == stages_of(told)
    times = [(each["what"], parse_time(each["at"])) for each in begun]
    ends = [line for line in told[1:] if (line["kind"], line["what"]) == ("container", "Ended")]
    assert len(ends) == [what for what, _ in times].count("down") >= 7
    down = sum(
        (until - since).total_seconds()
        for (what, since), (_, until) in pairwise(times)
        if what == "down" and since is not None and until is not None
    )
    assert down > 600, "nearly all of the time"


async def test_a_container_that_ran_and_is_gone_has_ended(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(5)
        [container] = node.sim.machine.containers.values()
        node.sim.program(Program.crashes(100, after=1, exit_code=1), container="main")
        await node.sim.machine.remove_container(container)
        await trio.sleep(120)
        ends = [entry.facts for entry in node.agent.journal.entries(pod.metadata.uid) if entry.what == "Ended"]
        assert ends[0]["id"] == container.id[:12]
        assert (ends[0]["exitCode"], ends[0]["reason"]) == (137, "ContainerStatusUnknown")
        [told] = node.agent.journal.snapshot()["pods"]
        assert told["stages"][-1]["what"] == "down", "it waits for a back-off"


async def test_the_stages_of_all_pods_have_a_limit(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGES_KEPT", 20)
    restless, calm = static_pod("restless"), static_pod("calm")
    async with sim_node() as node:
        node.sim.program(Program.crashes(1000, after=1.0, exit_code=7), pod="restless-node")
        node.source.put(restless, calm)
        await trio.sleep(1500)
        of = {pod["uid"]: pod["stages"] for pod in node.agent.journal.snapshot()["pods"]}
        assert 6 < len(of[restless.metadata.uid]) <= 20
        assert of[restless.metadata.uid][-1]["what"] in ("down", "running", "ready", "starting")
        assert [begun["what"] for begun in of[calm.metadata.uid]][-1] == "ready"
        assert len(of[calm.metadata.uid]) > 2, "a pod that is calm loses nothing"
        node.source.remove(restless, calm)
        await node.until_gone(restless)
        await node.until_gone(calm)
        await trio.sleep(module.KEPT_WHEN_FORGOTTEN + 1)
        assert node.agent.journal.snapshot()["pods"] == []
        assert node.agent.journal._stages == 0


async def test_a_slow_viewer_gets_a_fresh_snapshot_and_a_quick_one_beside_it_all(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE", 10)
    pod = static_pod("web")
    async with sim_node() as node:
        with node.agent.journal.view() as slow, node.agent.journal.view() as quick:
            await slow.receive()
            await quick.receive()
            seen: list[dict[str, Any]] = []
            for number in range(25):
                node.agent.recorder.pod_event(pod, EventType.NORMAL, "Tick", str(number))
                assert len(slow) <= 10
                seen.append(await quick.receive())
            assert [line["message"] for line in seen] == [str(number) for number in range(25)]
            fresh = await slow.receive()
            assert (fresh["type"], fresh["n"]) == ("SNAPSHOT", seen[-1]["n"])
            assert len(slow) == 0
            node.agent.recorder.pod_event(pod, EventType.NORMAL, "Tick", "again")
            assert (await slow.receive())["message"] == "again"


async def test_a_container_that_restarts_for_ever_drives_no_phase_out(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        for number in range(3 * module.ENTRIES_PER_POD):
            node.agent.recorder.pod_event(pod, EventType.WARNING, "BackOff", str(number), container="main")
        entries = node.agent.journal.entries(pod.metadata.uid)
        assert len(entries) <= module.ENTRIES_PER_POD + module.PHASES_PER_POD
        assert [entry.what for entry in entries][:2] == ["WaitingToStart", "Syncing"]
        assert entries[-1].as_json()["container"] == "main"


async def test_an_event_that_comes_again_and_again_is_kept_once(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        before = len(node.agent.journal.entries(pod.metadata.uid))
        with node.agent.journal.view() as viewer:
            await viewer.receive()
            for _ in range(100):
                node.agent.recorder.pod_event(pod, EventType.WARNING, "BackOff", "again", container="main")
            assert len(viewer) == 100, "who looks hears of each"
        entries = node.agent.journal.entries(pod.metadata.uid)
        assert len(entries) == before + 1
        told = entries[-1].as_json()
        assert told["count"] == 100
        assert told["firstSeen"] <= told["at"]


async def test_only_so_many_pods_are_kept(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PODS_KEPT", 5)
    pod = static_pod("web")
    async with sim_node() as node:
        for number in range(20):
            metadata = attrs.evolve(pod.metadata, uid=f"uid-{number}", name=f"pod-{number}")
            node.agent.recorder.pod_event(attrs.evolve(pod, metadata=metadata), EventType.NORMAL, "Seen", "it")
        snapshot = node.agent.journal.snapshot()
        assert [shown["uid"] for shown in snapshot["pods"]][-1] == "uid-19"
        assert len(snapshot["pods"]) <= 5
