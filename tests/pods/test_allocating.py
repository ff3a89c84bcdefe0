"""Pods that wait for devices: they are held, and get them in their order."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio

from tests.pods.factories import make_pod
from tests.pods.test_admitting import Desk, running
from trikubelet.admission.types import Admitted, AllocationError, Preempt, Rejected
from trikubelet.allocation.cpus.static_policy import StaticPolicy
from trikubelet.allocation.cpus.topology import CpuTopology
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.api import Quantity, ResourceRequirements
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode
from trikubelet.pods.admitting import Admitting

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.allocation.topology.admit import ResourceManager
    from trikubelet.api import Pod
    from trikubelet.kube_client.node_view import NodeView
    from trikubelet.pods.admitting import AdmittingEvent
    from trikubelet.pods.preempting import Preempting

A, B, C, OTHER = (make_pod(name) for name in ("a", "b", "c", "other"))


@attrs.define
class Devices:
    """Two pods' worth of one resource, each device asked for by itself; and plenty of another."""

    wants: dict[str, frozenset[str]]
    free: Counter[str] = attrs.field(factory=lambda: Counter({"brick": 4, "plate": 100}))
    given: dict[str, Counter[str]] = attrs.field(factory=dict)
    call_takes: float = 1
    hanging: set[str] = attrs.field(factory=set)
    """UIDs of pods whose plugin does not answer."""

    def lacking(self, pod: Pod) -> frozenset[str]:
        uid = pod.metadata.uid
        return frozenset() if uid in self.given else self.wants.get(uid, frozenset())

    def offers(self, pod: Pod) -> NothingToGive:
        return NothingToGive()

    def promise(self, pod: Pod, agreed: ResourceManager) -> None:
        """There is enough for all."""

    async def allocate(self, pod: Pod, agreed: ResourceManager | None) -> None:
        uid = pod.metadata.uid
        taken: Counter[str] = Counter()
        try:
            for resource in [*self.wants[uid]] * 2:
                if not self.free[resource]:
                    raise AllocationError(f"requested number of devices unavailable for {resource}")
                self.free[resource] -= 1
                taken[resource] += 1
                await trio.sleep(float("inf") if uid in self.hanging else self.call_takes)
        except BaseException:
            self.free += taken
            raise
        self.given[uid] = taken


def desk_with(devices: Devices) -> partial[Desk]:
    return partial(Desk, devices=devices)


BRICKS, PLATES = frozenset({"brick"}), frozenset({"plate"})


async def test_a_pod_is_held_until_it_has_its_devices(autojump_clock: MockClock) -> None:
    devices = Devices({"a": BRICKS})
    async with running(Admitted(), Admitted(), make=desk_with(devices)) as desk:
        desk.ask(A)
        desk.ask(OTHER)
        assert [*desk.admitting.held] == ["a"]
        assert desk.final == [("other", None)], "it wants none"
        await trio.sleep(3)
        assert (desk.final, [*desk.admitting.held]) == ([("other", None), ("a", None)], [])
        desk.verdicts.append(Admitted())
        desk.ask(A)
        assert desk.final[-1] == ("a", None), "it has them"


async def test_pods_get_devices_in_their_order_all_or_nothing(autojump_clock: MockClock) -> None:
    """Together they would each take a part, and two would be refused for want of the rest."""
    devices = Devices({"a": BRICKS, "b": BRICKS, "c": BRICKS, "other": PLATES})
    async with running(*[Admitted()] * 4, make=desk_with(devices)) as desk:
        for pod in (A, B, C, OTHER):
            desk.ask(pod)
        await trio.sleep(2.5)
        assert desk.final == [("a", None), ("other", None)] or desk.final == [("other", None), ("a", None)]
        await trio.sleep(10)
        assert desk.final[2:] == [("b", None), ("c", "UnexpectedAdmissionError")]
        assert not desk.admitting.held


async def test_a_plugin_that_hangs_holds_up_those_who_want_its_devices(autojump_clock: MockClock) -> None:
    devices = Devices({"a": BRICKS, "b": BRICKS, "other": PLATES}, hanging={"a"})
    async with running(*[Admitted()] * 3, make=desk_with(devices)) as desk:
        for pod in (A, B, OTHER):
            desk.ask(pod)
        await trio.sleep(100)
        assert (desk.final, [*desk.admitting.held]) == ([("other", None)], ["a", "b"])
        desk.admitting.forget("a")
        await trio.sleep(3)
        assert desk.final == [("other", None), ("b", None)]
        assert devices.free["brick"] == 2, "what the first was given is free"


async def test_a_pod_may_go_while_it_waits_for_its_turn(autojump_clock: MockClock) -> None:
    devices = Devices({"a": BRICKS, "b": BRICKS, "c": BRICKS})
    async with running(*[Admitted()] * 3, make=desk_with(devices)) as desk:
        for pod in (A, B, C):
            desk.ask(pod)
        desk.admitting.forget("b")
        await trio.sleep(10)
        assert desk.final == [("a", None), ("c", None)]
        assert "b" not in devices.given


class BusyDesk(Desk):
    """Its loop takes long to come to an event."""

    async def handle(self, event: AdmittingEvent) -> None:
        await trio.sleep(10)
        await super().handle(event)


async def test_a_pod_may_go_as_it_gets_its_devices(autojump_clock: MockClock) -> None:
    """The loop has yet to hear of them."""
    devices = Devices({"a": BRICKS})
    async with running(Admitted(), make=partial(BusyDesk, devices=devices)) as desk:
        desk.ask(A)
        await trio.sleep(5)
        assert "a" in devices.given
        desk.admitting.forget("a")
        await trio.sleep(20)
        assert desk.final == []


async def test_room_is_made_first(autojump_clock: MockClock) -> None:
    devices = Devices({"a": BRICKS})
    async with running(Preempt((OTHER,)), make=desk_with(devices)) as desk:
        desk.pods = [OTHER]
        desk.ask(A)
        await trio.sleep(29)
        assert (desk.final, devices.given) == ([], {})
        await trio.sleep(5)
        assert desk.final == [("a", None)]


async def test_the_newest_version_is_admitted(autojump_clock: MockClock) -> None:
    newer = attrs.evolve(A, metadata=attrs.evolve(A.metadata, resource_version="2"))
    async with running(Admitted(), make=desk_with(Devices({"a": BRICKS}))) as desk:
        desk.ask(A)
        desk.admitting.update(newer)
        await trio.sleep(3)
        assert desk.admitted == [newer]


def whole(name: str, cpus: str = "2") -> Pod:
    """It gets CPUs of its own."""
    amounts = {"cpu": Quantity(cpus), "memory": Quantity("1Mi")}
    pod = make_pod(name)
    (container,) = pod.spec.containers
    resources = ResourceRequirements(requests=amounts, limits=amounts)
    containers = (attrs.evolve(container, resources=resources),)
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, containers=containers))


@attrs.define
class ManagedDesk(Desk):
    """With CPUs to give: two, since one of three is reserved."""

    def __attrs_post_init__(self) -> None:
        machine = MachineTopology((NumaNode(0, tuple(Core(0, (cpu,)) for cpu in range(3))),))
        policy = StaticPolicy(CpuTopology.of(machine), reserved=1)
        self.managers = ResourceManagers(
            ManagerSettings(cpus=policy),
            None,
            needed=lambda uid: any(one.metadata.uid == uid for one in self.pods),
            sources_ready=lambda: True,
        )
        self.admitting = Admitting(
            self,
            cast("NodeView", self),
            cast("Preempting", self),
            allocated=lambda pod: pod,
            devices=self.devices,
            managers=self.managers,
        )

    managers: ResourceManagers = attrs.field(init=False)

    def cpus_of(self, pod: Pod) -> int:
        return self.managers.exclusive_cpus(pod.metadata.uid, pod.spec.containers[0].name)


async def test_a_pod_has_its_cpus_as_soon_as_nothing_speaks_against_it(autojump_clock: MockClock) -> None:
    first, second = whole("first"), whole("second")
    async with running(Admitted(), Rejected("NodeName", ""), Admitted(), make=ManagedDesk) as desk:
        assert isinstance(desk, ManagedDesk)
        desk.pods = [first, second]
        desk.ask(first)
        assert desk.cpus_of(first) == 0b110
        desk.ask(second)
        assert (desk.final[-1], desk.cpus_of(second)) == (("second", "NodeName"), 0)
        desk.ask(second)
        assert desk.final[-1] == ("second", "UnexpectedAdmissionError"), "there are none left"
        assert not desk.admitting.held


@pytest.mark.parametrize("refused", [True, False])
async def test_what_a_pod_was_given_goes_back_when_it_does_not_get_its_devices(
    autojump_clock: MockClock, refused: bool
) -> None:
    pod = whole("a")
    devices = Devices({"a": BRICKS}, free=Counter(brick=1 if refused else 2), hanging=set() if refused else {"a"})
    async with running(Admitted(), make=partial(ManagedDesk, devices=devices)) as desk:
        assert isinstance(desk, ManagedDesk)
        desk.pods = [pod]
        desk.ask(pod)
        assert desk.cpus_of(pod) == 0b110
        await trio.sleep(3)
        if refused:
            assert desk.final == [("a", "UnexpectedAdmissionError")]
        else:
            assert desk.cpus_of(pod) == 0b110, "its plugin hangs"
            desk.admitting.forget("a")
        assert desk.cpus_of(pod) == 0
