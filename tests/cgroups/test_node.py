from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.cgroups.fake_driver import FakeDriver
from tests.cgroups.pods import MI, best_effort
from tests.cgroups.programs import HOLDS, running
from trikubelet.api import Quantity
from trikubelet.cgroups.errors import CgroupError, CgroupNotAllowedError
from trikubelet.cgroups.names import SYSTEMD
from trikubelet.cgroups.node import (
    RETRY,
    NodeAllocatableError,
    NodeCgroupOptions,
    NodeCgroups,
    enforceable,
    open_pod_cgroups,
)
from trikubelet.cgroups.pods import NoPodCgroups, PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions, CgroupSettings
from trikubelet.clock import TrioClock
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.cgroups.files_v1 import V1Files
    from trikubelet.cgroups.interface import CgroupDriver
    from trikubelet.cgroups.names import CgroupName

POD = best_effort("u-1")


def quantities(cpu: str = "", memory: str = "", **more: str) -> dict[str, Quantity]:
    return {name: Quantity(text) for name, text in (("cpu", cpu), ("memory", memory), *more.items()) if text}


CAPACITY = quantities("10", "10Gi", pid="32768")


class Setup:
    def __init__(self, options: NodeCgroupOptions, driver: CgroupDriver) -> None:
        self.recorder = EventRecorder(TrioClock())
        self.node = NodeCgroups(driver, options, self.recorder)
        self.keeper = PodCgroupManager(driver, options.pods_root, CgroupOptions(), active_pods=lambda: ())

    def events(self) -> list[tuple[str, str, str]]:
        return [(event.type.value, event.reason, event.message) for event in self.recorder.node_events()]


@pytest.mark.parametrize(
    ("kube", "system", "capacity", "expected"),
    [
        (("100m", "100Mi"), ("50m", "50Mi"), ("10", "10Gi"), ("9850m", "10090Mi")),
        (("", ""), ("", ""), ("10", "10Gi"), ("10", "10Gi")),
        (("", "100Mi"), ("50m", "50Mi"), ("10", "10Gi"), ("9950m", "10090Mi")),
        (("50m", "100Mi"), ("", "50Mi"), ("10", "10Gi"), ("9950m", "10090Mi")),
        (("", "100Mi"), ("", "50Mi"), ("10", ""), ("10", "")),
        (("6", "6Gi"), ("6", "6Gi"), ("10", "10Gi"), ("0", "0")),
    ],
)
def test_pods_may_use_what_is_not_reserved(
    kube: tuple[str, str], system: tuple[str, str], capacity: tuple[str, str], expected: tuple[str, str]
) -> None:
    assert enforceable(quantities(*capacity), quantities(*kube), quantities(*system)) == quantities(*expected)


def test_all_pods_are_limited_to_the_capacity_where_nothing_is_to_be_enforced() -> None:
    reserved = quantities("1", "1Gi", pid="768")
    for enforce, cpu, memory, pids in (
        (frozenset({"pods"}), 9216, 9, 32_000),
        (frozenset[str](), 10_240, 10, 32_768),
    ):
        options = NodeCgroupOptions(capacity=CAPACITY, kube_reserved=reserved, enforce=enforce, cpus="0-9")
        assert Setup(options, FakeDriver()).node.pod_limits() == CgroupSettings(
            cpu_shares=cpu, memory=memory * 1024 * MI, pids=pids, cpus="0-9", hugepages={}
        )


async def test_the_group_of_all_pods_is_made_once() -> None:
    driver = FakeDriver()
    setup = Setup(NodeCgroupOptions(capacity=CAPACITY), driver)
    await setup.node.prepare()
    await setup.node.prepare()
    assert driver.steps_on("create") == [("kubepods",)]


async def test_a_cgroup_root_has_to_exist() -> None:
    setup = Setup(NodeCgroupOptions(cgroup_root=("a", "b")), FakeDriver())
    with pytest.raises(CgroupError, match=r'\["a" "b"\].*invalid configuration.*/sys/fs/cgroup/memory/a/b'):
        await setup.node.prepare()
    await Setup(NodeCgroupOptions(cgroup_root=("a", "b")), FakeDriver(("a", "b"))).node.prepare()


async def test_limits_that_are_refused_are_told_and_tried_again_every_minute(autojump_clock: MockClock) -> None:
    driver = FakeDriver(("kubepods",))
    driver.fail("update", ("kubepods",), [CgroupError("/kubepods", "in use")] * 2)
    setup = Setup(NodeCgroupOptions(capacity=CAPACITY), driver)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(setup.node.run)
    assert trio.current_time() - began == 2 * RETRY
    assert driver.groups["kubepods",].memory == 10 * 1024 * MI
    refusal = 'Failed to update Node Allocatable Limits ["kubepods"]: cgroup /kubepods: in use'
    assert setup.events() == [
        ("Warning", "FailedNodeAllocatableEnforcement", refusal),
        ("Normal", "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods"),
    ]
    assert setup.recorder.node_events()[0].count == 2


RESERVED = NodeCgroupOptions(
    kube_reserved=quantities("500m", "100Mi", pid="50"),
    system_reserved=quantities("1", "200Mi"),
    kube_reserved_cgroup="/podruntime",
    system_reserved_cgroup="/system.slice",
)


@pytest.mark.parametrize(
    ("enforce", "kube", "system"),
    [
        ({"pods"}, CgroupSettings(), CgroupSettings()),
        (
            {"kube-reserved", "system-reserved"},
            CgroupSettings(cpu_shares=512, memory=100 * MI, pids=50, hugepages={}),
            CgroupSettings(cpu_shares=1024, memory=200 * MI, hugepages={}),
        ),
        (
            {"kube-reserved-compressible", "system-reserved-compressible"},
            CgroupSettings(cpu_shares=512),
            CgroupSettings(cpu_shares=1024),
        ),
    ],
)
async def test_what_is_reserved_is_limited_as_asked(
    enforce: set[str], kube: CgroupSettings, system: CgroupSettings
) -> None:
    driver = FakeDriver(("podruntime",), ("system",), naming=SYSTEMD)
    setup = Setup(attrs.evolve(RESERVED, enforce=frozenset(enforce)), driver)
    await setup.node.enforce_reserved()
    assert driver.groups == {("podruntime",): kube, ("system",): system}
    messages = [message for _, _, message in setup.events()]
    assert ("Updated limits on kube reserved cgroup /podruntime" in messages) == ("pods" not in enforce)
    assert ("Updated limits on system reserved cgroup /system.slice" in messages) == ("pods" not in enforce)


async def test_reserved_memory_is_protected_where_memory_qos_is_on() -> None:
    driver = FakeDriver(("podruntime",))
    options = attrs.evolve(RESERVED, enforce=frozenset({"kube-reserved"}), memory_qos=True)
    await Setup(options, driver).node.enforce_reserved()
    assert driver.groups["podruntime",].unified == {"memory.min": str(100 * MI)}


@pytest.mark.parametrize(
    ("enforce", "words"),
    [("kube-reserved", "Kube Reserved"), ("kube-reserved-compressible", "Kube Reserved Compressible")],
)
async def test_a_reserved_group_that_is_not_there_stops_the_start(enforce: str, words: str) -> None:
    setup = Setup(attrs.evolve(RESERVED, enforce=frozenset({enforce})), FakeDriver())
    with pytest.raises(NodeAllocatableError):
        await setup.node.enforce_reserved()
    ((type_, reason, message),) = setup.events()
    assert (type_, reason) == ("Warning", "FailedNodeAllocatableEnforcement")
    assert message.startswith(f'Failed to enforce {words} Cgroup Limits on "/podruntime": ')


@pytest.mark.parametrize("step", ["create", "update"])
@pytest.mark.parametrize("required", [True, False])
async def test_without_rights_pods_go_without_groups_and_that_is_said_once(step: str, required: bool) -> None:
    driver = FakeDriver() if step == "create" else FakeDriver(("kubepods",), ("kubepods", "burstable"))
    name = ("kubepods",) if step == "create" else ("kubepods", "burstable")
    refusal = CgroupNotAllowedError("/kubepods", "could not create: Permission denied", number=errno.EACCES)
    driver.fail(step, name, [refusal])
    setup = Setup(NodeCgroupOptions(capacity=CAPACITY), driver)
    with capture_logs() as lines:
        pods = await open_pod_cgroups(setup.node, setup.keeper, required=required)
        for _ in range(3):
            await pods.ensure(POD)
    assert isinstance(pods, NoPodCgroups)
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "Permission denied" in lines[0]["problem"]


async def test_other_failures_stop_the_start_where_groups_were_asked_for() -> None:
    def broken() -> Setup:
        driver = FakeDriver()
        driver.fail("create", ("kubepods",), [CgroupError("/kubepods", "no", number=errno.EBUSY)])
        return Setup(NodeCgroupOptions(capacity=CAPACITY), driver)

    asked, by_default = broken(), broken()
    with pytest.raises(CgroupError):
        await open_pod_cgroups(asked.node, asked.keeper, required=True)
    assert isinstance(await open_pod_cgroups(by_default.node, by_default.keeper, required=False), NoPodCgroups)


async def test_with_rights_pods_get_groups() -> None:
    setup = Setup(NodeCgroupOptions(capacity=CAPACITY), FakeDriver())
    pods = await open_pod_cgroups(setup.node, setup.keeper, required=True)
    assert pods is setup.keeper
    assert await pods.ensure(POD)


@pytest.mark.root
async def test_a_process_without_rights_goes_without_groups(v1: V1Files, own_root: CgroupName) -> None:
    await v1.create(own_root, CgroupSettings())
    setup = Setup(NodeCgroupOptions(cgroup_root=own_root, capacity=CAPACITY), v1)
    make = v1.kernel.make

    libc = ctypes.CDLL(None)

    def as_nobody(path: str) -> bool:
        libc.setfsuid(65534)  # of this thread alone, and with it root's right to write everywhere
        try:
            return make(path)
        finally:
            libc.setfsuid(0)

    v1.kernel.make = as_nobody  # type: ignore[method-assign]
    pods = await open_pod_cgroups(setup.node, setup.keeper, required=True)
    assert isinstance(pods, NoPodCgroups)


@pytest.mark.root
async def test_all_pods_together_are_limited_on_the_kernel(v1: V1Files, own_root: CgroupName) -> None:
    await v1.create(own_root, CgroupSettings())
    options = NodeCgroupOptions(cgroup_root=own_root, capacity=CAPACITY, kube_reserved=quantities("1", "1Gi"))
    setup = Setup(options, v1)
    assert await open_pod_cgroups(setup.node, setup.keeper, required=True) is setup.keeper
    async with trio.open_nursery() as nursery:
        await nursery.start(setup.node.run)
    reading = await v1.read(options.pods_root)
    assert (reading.cpu_shares, reading.memory_limit) == (9216, 9 * 1024 * MI)
    pids = v1.hierarchies.controllers["pids"]
    assert v1.kernel.number(f"{pids}{v1.literal(options.pods_root)}/pids.max") == 32_768


@pytest.mark.root
async def test_pods_that_use_more_than_the_new_limit_live_on_until_there_is_room(
    v1: V1Files, own_root: CgroupName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.cgroups.node.RETRY", 0.05)
    await v1.create(own_root, CgroupSettings())
    options = NodeCgroupOptions(cgroup_root=own_root, capacity=quantities("1", "8Mi"))
    setup = Setup(options, v1)
    await open_pod_cgroups(setup.node, setup.keeper, required=True)
    with running(v1, options.pods_root, HOLDS) as process:
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        async with trio.open_nursery() as nursery:
            await nursery.start(setup.node.run)
            with trio.fail_after(20):
                while not setup.events():
                    await trio.sleep(0.01)
            assert "cannot limit memory to 8388608 bytes" in setup.events()[0][2]
            assert process.poll() is None
            process.kill()
    assert setup.events()[-1][1] == "NodeAllocatableEnforced"
    assert (await v1.read(options.pods_root)).memory_limit == 8 * MI
