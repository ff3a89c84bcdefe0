"""The driver `systemd`: what systemd is told, by tables of opencontainers/cgroups, and slices on a message bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
import trio

from tests.cgroups.fake_v2 import FakeKernel
from tests.cgroups.pods import MI, burstable, guaranteed
from tests.cgroups.systemd1 import systemd1
from tests.private_bus import Handler, PrivateBus, bus, service
from trikubelet.agent.resources import _driver
from trikubelet.api import Quantity
from trikubelet.cgroups import systemd
from trikubelet.cgroups.errors import CgroupError, CgroupNameError, MemoryInUseError
from trikubelet.cgroups.files_v2 import V2Files
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.names import SYSTEMD
from trikubelet.cgroups.node import NodeCgroupOptions, NodeCgroups, open_pod_cgroups
from trikubelet.cgroups.ownership import Ownership
from trikubelet.cgroups.pods import PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions, CgroupReading, CgroupSettings
from trikubelet.cgroups.systemd import MANAGER, SystemdSlices
from trikubelet.cgroups.systemd_properties import (
    INFINITY,
    limit_properties,
    processor_bits,
    slice_properties,
    systemd_version,
)
from trikubelet.clock import TrioClock
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.cgroups.names import CgroupName

__all__ = ["bus"]

POD = ("kubepods", "burstable", "pod12-34")
UNIT = "kubepods-burstable-pod12_34.slice"
FOLDER = f"kubepods.slice/kubepods-burstable.slice/{UNIT}"


@pytest.mark.parametrize(
    ("version", "settings", "properties"),
    [
        (2, CgroupSettings(), {}),
        (1, CgroupSettings(cpu_shares=512), {"CPUShares": 512}),
        (2, CgroupSettings(cpu_shares=512), {"CPUWeight": 20}),
        (2, CgroupSettings(cpu_shares=2), {"CPUWeight": 1}),
        (1, CgroupSettings(memory=MI), {"MemoryLimit": MI}),
        (2, CgroupSettings(memory=MI), {"MemoryMax": MI}),
        (2, CgroupSettings(memory=-1), {"MemoryMax": INFINITY}),
        (2, CgroupSettings(pids=100), {"TasksMax": 100}),
        (2, CgroupSettings(pids=-1), {"TasksMax": INFINITY}),
        (2, CgroupSettings(cpus="0-1,9"), {"AllowedCPUs": b"\x03\x02"}),
        (
            2,
            CgroupSettings(unified={"memory.min": "4096", "memory.high": "max", "memory.oom.group": "1"}),
            {"MemoryMin": 4096, "MemoryHigh": INFINITY},
        ),
        (1, CgroupSettings(unified={"memory.min": "4096"}), {}),
    ],
)
def test_limits_as_properties(version: Literal[1, 2], settings: CgroupSettings, properties: dict[str, Any]) -> None:
    found, exact = limit_properties(settings, version, 252)
    assert {name: value for name, (_, value) in found} == properties
    assert exact == settings


@pytest.mark.parametrize(
    ("quota", "period", "each_second", "quota_then"),
    [
        (50_000, 100_000, 500_000, 50_000),
        (1_000, 100_000, 10_000, 1_000),
        (-1, 100_000, INFINITY, -1),
        (0, 100_000, INFINITY, 0),
        (100_500, 100_000, 1_010_000, 101_000),
        (33_333, 100_000, 340_000, 34_000),
        (5_001, 10_000, 510_000, 5_100),
        (200_000, None, 2_000_000, 200_000),
    ],
)
def test_quotas_are_whole_percents_and_the_file_says_the_same(
    quota: int, period: int | None, each_second: int, quota_then: int
) -> None:
    settings = CgroupSettings(cpu_quota=quota, cpu_period=period)
    found, exact = limit_properties(settings, 2, 252)
    values = {name: value for name, (_, value) in found}
    assert values.pop("CPUQuotaPerSecUSec") == each_second
    assert values == ({} if period is None else {"CPUQuotaPeriodUSec": period})
    assert exact.cpu_quota == quota_then


def test_an_old_systemd_is_not_told_what_it_does_not_know() -> None:
    settings = CgroupSettings(cpu_quota=50_000, cpu_period=100_000, cpus="0-1")
    assert [name for name, _ in limit_properties(settings, 2, 241)[0]] == ["CPUQuotaPerSecUSec"]
    assert "AllowedCPUs" not in [name for name, _ in limit_properties(settings, 2, 243)[0]]


def test_every_slice_is_accounted_and_wants_the_one_above() -> None:
    values = {name: value for name, (_, value) in slice_properties("a-b.slice", "a.slice", 2)}
    assert values == {
        "Description": "libcontainer container a-b.slice",
        "Wants": ["a.slice"],
        "MemoryAccounting": True,
        "CPUAccounting": True,
        "IOAccounting": True,
        "TasksAccounting": True,
        "DefaultDependencies": False,
    }
    assert "BlockIOAccounting" in dict(slice_properties("a.slice", "-.slice", 1))


@pytest.mark.parametrize(
    ("text", "version"),
    [('"v245.4-1.fc32"', 245), ("245", 245), ("v245-1.fc32", 245), ("252.39-1~deb12u1", 252), ("none", 0), ("", 0)],
)
def test_versions(text: str, version: int) -> None:
    assert systemd_version(text) == version


@pytest.mark.parametrize(
    ("cpus", "bits"),
    [("0", b"\x01"), ("0-3", b"\x0f"), ("8", b"\x00\x01"), ("0-1, 7,16", b"\x83\x00\x01"), ("4-7,,", b"\xf0")],
)
def test_processors_as_bits(cpus: str, bits: bytes) -> None:
    assert processor_bits(cpus) == bits


@pytest.mark.parametrize("cpus", ["", ",", "a", "3-1", "-1", "1-", "1-b"])
def test_processors_that_cannot_be_read(cpus: str) -> None:
    with pytest.raises(CgroupNameError, match="expected processors"):
        processor_bits(cpus)


class Tree:
    """A driver on a tree of files, in which systemd makes folders."""

    def __init__(self, bus: PrivateBus, root: Path) -> None:
        self.root = root
        self.kernel = FakeKernel(root)
        files = V2Files(Hierarchies(2, {}, root, (2 * MI,)), naming=SYSTEMD, kernel=self.kernel)
        self.driver = SystemdSlices(files, bus.address)

    def said(self, file: str) -> str:
        return (self.root / FOLDER / file).read_text().strip()


@pytest.fixture
def tree(bus: PrivateBus, tmp_path: Path) -> Tree:
    root = tmp_path / "cgroup"
    root.mkdir()
    return Tree(bus, root)


async def test_the_life_of_a_slice(bus: PrivateBus, tree: Tree) -> None:
    driver = tree.driver
    assert driver.literal(POD) == f"/{FOLDER}"
    assert driver.name_of(f"/{FOLDER}") == POD
    async with systemd1(bus.address, tree.root, tree.kernel) as theirs:
        assert not await driver.exists(POD)
        settings = CgroupSettings(cpu_shares=512, cpu_quota=33_333, cpu_period=100_000, memory=64 * MI, pids=100)
        await driver.create(POD, settings)
        assert await driver.exists(POD)
        assert theirs.calls == [("StartTransientUnit", UNIT)]
        assert theirs.units[UNIT]["Wants"] == ["kubepods-burstable.slice"]
        limits = {"CPUWeight": 20, "CPUQuotaPerSecUSec": 340_000, "MemoryMax": 64 * MI, "TasksMax": 100}
        assert theirs.units[UNIT].items() >= limits.items()
        assert (tree.said("cpu.max"), tree.said("memory.max")) == ("34000 100000", str(64 * MI))
        assert await driver.children(POD[:-1]) == [POD]

        theirs.calls.clear()
        await driver.update(POD, CgroupSettings(memory=32 * MI, hugepages={2 * MI: 4 * MI}))
        assert theirs.calls == [("SetUnitProperties", UNIT)]
        assert theirs.units[UNIT]["MemoryMax"] == 32 * MI
        assert tree.said("hugetlb.2MB.max") == str(4 * MI), "systemd has no property for it"
        assert (await driver.read(POD)).memory_limit == 32 * MI

        theirs.calls.clear()
        await driver.remove(POD)
        assert theirs.calls == [("StopUnit", UNIT), ("ResetFailedUnit", UNIT)]
        assert not (tree.root / FOLDER).exists()
        await driver.remove(POD)  # one that is gone is no error


async def test_a_slice_that_is_there_is_set_and_completed(bus: PrivateBus, tree: Tree) -> None:
    async with systemd1(bus.address, tree.root, tree.kernel) as theirs:
        await tree.driver.create(POD, CgroupSettings(memory=64 * MI))
        await tree.driver.create(POD, CgroupSettings(memory=32 * MI))
        assert theirs.calls[1:] == [("StartTransientUnit", UNIT), ("SetUnitProperties", UNIT)]
        assert theirs.units[UNIT]["MemoryMax"] == 32 * MI
        assert tree.said("memory.max") == str(32 * MI)


async def test_what_others_left_in_a_slice_is_deleted_with_it(bus: PrivateBus, tree: Tree) -> None:
    async with systemd1(bus.address, tree.root, tree.kernel):
        await tree.driver.create(POD, CgroupSettings())
        tree.kernel.make(str(tree.root / FOLDER / "cri-containerd-abc.scope"))
        assert await tree.driver.children(POD) == [], "a scope is no group of ours"
        await tree.driver.remove(POD)
        assert not (tree.root / FOLDER).exists()


async def test_pods_live_in_slices(bus: PrivateBus, tree: Tree) -> None:
    options = NodeCgroupOptions(capacity={"cpu": Quantity("4"), "memory": Quantity("1Gi")}, cpus="0-3")
    node = NodeCgroups(tree.driver, options, EventRecorder(TrioClock()))
    pods = [burstable("12-34"), guaranteed("g")]
    keeper = PodCgroupManager(tree.driver, options.pods_root, CgroupOptions(), active_pods=lambda: pods)
    async with systemd1(bus.address, tree.root, tree.kernel) as theirs:
        assert await open_pod_cgroups(node, keeper, required=True) is keeper
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
        assert theirs.units["kubepods.slice"]["MemoryMax"] == 1024 * MI
        assert theirs.units["kubepods.slice"]["AllowedCPUs"] == b"\x0f"
        for pod in pods:
            assert await keeper.ensure(pod)
        assert keeper.parent_of(pods[0]) == f"/{FOLDER}"
        assert set(theirs.units) == {
            "kubepods.slice",
            "kubepods-burstable.slice",
            "kubepods-besteffort.slice",
            "kubepods-podg.slice",
            UNIT,
        }
        assert await keeper.found() == {"12-34": POD, "g": ("kubepods", "podg")}
        for pod in pods:
            await keeper.release(pod.metadata.uid)
        assert set(theirs.units) == {"kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice"}
        assert await keeper.found() == {}


async def test_an_agent_has_a_slice_of_its_own_and_removes_it_when_it_is_empty(bus: PrivateBus, tree: Tree) -> None:
    options = NodeCgroupOptions(cgroup_root=("trikubelet",), own_root_of="/root/folder")
    node = NodeCgroups(tree.driver, options, EventRecorder(TrioClock()))
    pods = [burstable("12-34")]
    keeper = PodCgroupManager(
        tree.driver,
        options.pods_root,
        CgroupOptions(),
        active_pods=lambda: pods,
        ownership=Ownership(mark="/root/folder", alone=True),
    )
    foreign = ("trikubelet", "kubepods", "pod11-11")
    async with systemd1(bus.address, tree.root, tree.kernel) as theirs:
        assert await open_pod_cgroups(node, keeper, required=True) is keeper
        await keeper.ensure(pods[0])
        assert keeper.parent_of(pods[0]).endswith("/trikubelet-kubepods-burstable-pod12_34.slice")
        await tree.driver.make(foreign, CgroupSettings(), "/another")
        assert await tree.driver.marks(((*foreign[:2],), foreign)) == {
            foreign[:2]: frozenset(),
            foreign: frozenset({"/another"}),
        }
        assert list(await keeper.found()) == ["12-34"]
        await keeper.release("12-34")
        await keeper.release("11-11")
        await node.leave()
        stopped = {unit for call, unit in theirs.calls if call == "StopUnit"}
        assert stopped == {
            "trikubelet-kubepods-burstable-pod12_34.slice",
            "trikubelet-kubepods-burstable.slice",
            "trikubelet-kubepods-besteffort.slice",
        }
        await tree.driver.remove(foreign)
        await node.leave()
        assert not theirs.units
        assert tree.kernel.folders(str(tree.root)) == []


def test_the_driver_that_the_runtime_uses_is_the_one_that_is_made() -> None:
    hierarchies = Hierarchies(2, {}, None, ())
    assert isinstance(_driver("systemd", hierarchies), SystemdSlices)
    assert isinstance(_driver("cgroupfs", hierarchies), V2Files)


async def test_many_slices_at_once(bus: PrivateBus, tree: Tree) -> None:
    names = [("kubepods", f"pod{number}") for number in range(20)]

    async def live(name: CgroupName) -> None:
        await tree.driver.create(name, CgroupSettings(memory=MI))
        await tree.driver.remove(name)

    async with systemd1(bus.address, tree.root, tree.kernel) as theirs:
        await live(names[0])  # turns the controllers on, which a tree of files cannot do while groups come and go
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(live, name)
        assert not theirs.units
        assert await tree.driver.children(("kubepods",)) == []


async def test_a_job_that_fails_or_never_ends(bus: PrivateBus, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    async with systemd1(bus.address, tree.root, tree.kernel, result="failed") as theirs:
        with pytest.raises(CgroupError, match=f"StartTransientUnit for {UNIT} ended with failed"):
            await tree.driver.create(POD, CgroupSettings())
        assert theirs.calls[-1] == ("ResetFailedUnit", UNIT)
        assert not (tree.root / FOLDER).exists()
        monkeypatch.setattr(systemd, "JOB_WITHIN", 0.05)
        theirs.result = None
        with pytest.raises(CgroupError, match="ended with nothing within"):
            await tree.driver.create(POD, CgroupSettings())


@pytest.mark.parametrize(
    ("answer", "signal", "text"),
    [
        (("", ()), None, r"StartTransientUnit was answered with values of the types '', expected 'o'"),
        (("o", ("/a/job",)), ("u", 7), r"expected number, path, unit and result of a job with JobRemoved, got \(7,\)"),
    ],
)
async def test_a_systemd_that_answers_otherwise(
    bus: PrivateBus, tree: Tree, answer: Any, signal: tuple[Any, ...] | None, text: str
) -> None:
    async def start(*_arguments: Any) -> Any:
        if signal is not None:
            await theirs.emit("JobRemoved", *signal)
        return answer

    methods: dict[str, Handler] = {"StartTransientUnit": start}
    async with service(bus.address, MANAGER, methods, lambda _: ("s", "252")) as theirs:
        with pytest.raises(CgroupError, match=text):
            await tree.driver.create(POD, CgroupSettings())


async def test_without_a_bus_systemd_or_a_unit(bus: PrivateBus, tree: Tree) -> None:
    with pytest.raises(CgroupError, match=r"systemd refuses: .*ServiceUnknown"):
        await tree.driver.create(POD, CgroupSettings())
    async with systemd1(bus.address, tree.root, tree.kernel):
        with pytest.raises(CgroupError, match="NoSuchUnit") as caught:
            await tree.driver.update(POD, CgroupSettings(memory=MI))
        assert caught.value.missing
    bus.stop()
    with pytest.raises(CgroupError, match="systemd cannot be asked: cannot connect to the message bus"):
        await tree.driver.remove(POD)
    with pytest.raises(CgroupNameError):
        await tree.driver.remove(())


async def test_a_bus_that_was_started_anew_is_noticed_by_nobody(bus: PrivateBus, tree: Tree) -> None:
    async with systemd1(bus.address, tree.root, tree.kernel) as first:
        await tree.driver.create(POD, CgroupSettings())
        bus.restart()
        async with systemd1(bus.address, tree.root, tree.kernel, units=first.units):
            await tree.driver.remove(POD)


class RefusingFiles(V2Files):
    """As files of cgroup v1 are, of which the kernel cannot take enough memory back."""

    @property
    def version(self) -> Literal[1, 2]:
        return 1

    async def read(self, name: CgroupName) -> CgroupReading:
        return CgroupReading(memory_limit=64 * MI)

    async def update(self, name: CgroupName, settings: CgroupSettings) -> None:
        raise MemoryInUseError(self.literal(name), limit=settings.memory or 0, usage=48 * MI)


async def test_a_limit_that_the_kernel_refuses_is_taken_back_from_systemd(bus: PrivateBus, tree: Tree) -> None:
    files = RefusingFiles(Hierarchies(2, {}, tree.root, ()), naming=SYSTEMD, kernel=tree.kernel)
    driver = SystemdSlices(files, bus.address)
    async with systemd1(bus.address, tree.root, tree.kernel) as theirs:
        await tree.driver.create(POD, CgroupSettings())
        with pytest.raises(MemoryInUseError):
            await driver.update(POD, CgroupSettings(memory=32 * MI))
        assert theirs.units[UNIT]["MemoryLimit"] == 64 * MI
