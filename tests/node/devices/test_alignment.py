"""Devices of the NUMA nodes that were agreed on, from the offer to what plugins are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError, Status

from tests.device_plugin import Brick, ToyPlugin
from tests.node.devices.situations import R1, R2, container, make_pod
from tests.node.devices.stage import Stage, device_stage
from trikubelet.admission.types import AllocationError
from trikubelet.allocation.topology.admit import admit
from trikubelet.allocation.topology.hints import TopologyHint
from trikubelet.allocation.topology.policy import SINGLE_NUMA_NODE, TopologyPolicy
from trikubelet.node.devices.topology import DeviceOffers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod


def on(*places: int) -> list[Brick]:
    """`a`, `b` and so on, each on its node."""
    return [Brick(name, numa_nodes=(place,)) for name, place in zip("abcdef", places, strict=False)]


def agree(stage: Stage, pod: Pod) -> Mapping[str, Mapping[str, int]]:
    """With devices alone, on a machine with two nodes. Raises `topology.hints.AllocationError`."""
    offers = stage.manager.offers(pod)
    (after,) = admit(TopologyPolicy(SINGLE_NUMA_NODE, stage.numa_nodes), "container", [offers], pod)
    assert isinstance(after, DeviceOffers)
    return after.affinities


async def test_a_container_gets_devices_of_the_nodes_that_were_agreed_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, on(0, 1, 0, 1))
        await stage.register(plugin)
        pod = make_pod("p", container(r1=2))
        await stage.manager.allocate(pod, {"p": {"main": 0b10}, "q": {"main": 0b01}})
        assert plugin.asked("Allocate") == [("b", "d")]
        assert [device.numa_nodes for device in stage.manager.devices("p", "main")] == [(1,), (1,)]


async def test_a_plugin_is_asked_among_those_and_overruled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        asked = []

        def last(available: Sequence[str], included: Sequence[str], size: int) -> Sequence[str]:
            asked.append((tuple(available), tuple(included), size))
            return [*included, "f", available[-1]]

        await stage.register(ToyPlugin(R1, on(0, 1, 0, 1, 0, 1), preferring=last))
        stage.active |= {"p", "q"}
        await stage.manager.allocate(make_pod("p", container(r1=1)), {"p": {"main": 0b01}})
        await stage.manager.allocate(make_pod("q", container(r1=3)), {"q": {"main": 0b01}})
        assert asked == [(("a", "c", "e"), (), 1), (("a", "b", "c", "d", "f"), ("a", "c"), 3)]
        assert stage.has("p") == ["e"]
        assert stage.has("q") == ["a", "c", "f"]


async def test_what_is_agreed_on_is_what_is_given(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, on(0, 1, 1)))
        for uid, has in (("p", ["b", "c"]), ("q", ["a"])):
            pod = make_pod(uid, container(r1=len(has)))
            affinities = agree(stage, pod)
            stage.active.add(uid)
            await stage.manager.allocate(pod, affinities)
            assert stage.has(uid) == has


async def test_an_offer_leaves_the_devices_of_ended_pods_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, on(0)))
        await stage.admit(make_pod("p", container(r1=1)))
        pod = make_pod("q", container(r1=1))
        before = stage.manager.offers(pod)
        stage.active.clear()
        assert stage.manager.offers(pod).hints(pod, pod.spec.containers[0])[R1]
        assert not before.hints(pod, pod.spec.containers[0])[R1], "it is as things were"
        again = make_pod("p", container(r1=1))
        await stage.admit(again)
        stage.active.clear()
        assert stage.manager.offers(again).is_settled(again, again.spec.containers[0]), "it need not be active yet"


async def test_a_pod_that_runs_is_settled_for_a_new_agent(tmp_path: Path, autojump_clock: MockClock) -> None:
    pod = make_pod("p", container(r1=1))
    main = pod.spec.containers[0]
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, on(0, 1)))
        await stage.manager.allocate(pod, {"p": {"main": 0b10}})
    (stage.folder / "device_grants_state").unlink()
    async with device_stage(tmp_path) as stage:
        stage.sources_ready = False
        await stage.register(ToyPlugin(R1, on(0, 1)))
        assert not stage.manager.offers(pod).is_settled(pod, main)
        stage.running.add(("p", "main"))
        assert stage.manager.offers(pod).is_settled(pod, main)
        assert agree(stage, pod) == {}
        stage.sources_ready = True
        assert not stage.manager.offers(pod).is_settled(pod, main)


async def test_a_pod_that_was_agreed_on_gets_all_or_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, on(0, 1)), "one.sock")
        two = ToyPlugin(R2, on(1))
        await stage.register(two, "two.sock")
        two.failing["Allocate"] = GRPCError(Status.INTERNAL, "no more bricks")
        pod = make_pod("p", container("main", r1=1, r2=1))
        affinities = agree(stage, pod)
        assert affinities == {"p": {"main": 0b10}}
        with pytest.raises(AllocationError, match="no more bricks"):
            await stage.manager.allocate(pod, affinities)
        assert stage.has("p") == []
        assert agree(stage, pod) == affinities


async def test_what_was_agreed_on_is_no_other_pods_to_have(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Both are agreed on before the first one's plugin is asked."""
    async with device_stage(tmp_path) as stage:
        # Left alone, the plugin would take from the second pod what it was promised.
        await stage.register(ToyPlugin(R1, on(0, 1, 1), preferring=lambda available, included, size: ["a"]))
        first, second, third = (make_pod(uid, container(r1=1)) for uid in ("p", "q", "r"))
        agreed = {}
        for pod, node in ((first, 0b01), (second, 0b10), (third, 0b10)):
            stage.active.add(pod.metadata.uid)
            offers = stage.manager.offers(pod).allocate(pod, pod.spec.containers[0], TopologyHint(node, preferred=True))
            stage.manager.promise(pod, offers)
            agreed[pod.metadata.uid] = offers.affinities
        for pod in (third, second, first):
            await stage.manager.allocate(pod, agreed[pod.metadata.uid])
        assert [stage.has(uid) for uid in ("p", "q", "r")] == [["a"], ["b"], ["c"]]


async def test_nor_is_it_another_containers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        devices = [Brick("a", numa_nodes=(0,)), Brick("b", numa_nodes=(0, 1)), Brick("c", numa_nodes=(1,))]
        plugin = ToyPlugin(R1, devices, preferring=lambda available, included, size: ["b", "c"])
        await stage.register(plugin)
        pod = make_pod("p", container("one", r1=1), container("two", r1=2), init=[container("init", r1=1)])
        stage.active.add("p")
        offers = stage.manager.offers(pod)
        for one, node in zip((*pod.spec.init_containers, *pod.spec.containers), (0b01, 0b01, 0b10), strict=True):
            offers = offers.allocate(pod, one, TopologyHint(node, preferred=True))
        stage.manager.promise(pod, offers)
        await stage.manager.allocate(pod, offers.affinities)
        assert [stage.has("p", name) for name in ("init", "one", "two")] == [["a"], ["a"], ["b", "c"]]
        other = make_pod("q", container(r1=1))
        assert "Available: 0" in str(stage.manager.problem(other))


async def test_a_pod_is_refused_for_what_is_promised(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        plugin = ToyPlugin(R1, on(0, 1))
        await stage.register(plugin)
        first, second = make_pod("p", container(r1=1)), make_pod("q", container(r1=2))
        stage.active.add("p")
        offers = stage.manager.offers(first)
        agreed = offers.allocate(first, first.spec.containers[0], TopologyHint(0b01, preferred=True))
        stage.manager.promise(first, agreed)
        assert not stage.manager.offers(second).hints(second, second.spec.containers[0])[R1]
        assert stage.manager.problem(second) is not None
        assert stage.manager.problem(first) is None, "it is its own"
        assert stage.manager.offers(first).hints(first, first.spec.containers[0])[R1]
        assert [one.taken for one in stage.manager.statistics()] == [0], "nobody has it yet"
        plugin.failing["Allocate"] = GRPCError(Status.INTERNAL)
        with pytest.raises(AllocationError):
            await stage.manager.allocate(first, agreed.affinities)
        assert stage.manager.problem(second) is None


@pytest.mark.parametrize("ends", ["forgotten", "not active"])
async def test_the_end_of_a_pod_ends_its_promise(ends: str, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with device_stage(tmp_path) as stage:
        await stage.register(ToyPlugin(R1, on(0)))
        first, second = make_pod("p", container(r1=1)), make_pod("q", container(r1=1))
        stage.active.add("p")
        agreed = stage.manager.offers(first).allocate(first, first.spec.containers[0], TopologyHint(0b01))
        stage.manager.promise(first, agreed)
        assert stage.manager.problem(second) is not None
        if ends == "forgotten":
            stage.manager.forget("p")
        else:
            stage.active.clear()
        assert stage.manager.problem(second) is None
