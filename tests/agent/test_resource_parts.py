"""Which cgroups an agent gets from a configuration and a machine, and what keeps it from starting."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from grpclib.const import Status

from tests.cgroups.fake_driver import FakeDriver
from tests.cgroups.pods import burstable
from trikubelet.agent import resources as agent_resources
from trikubelet.agent.node import node_settings
from trikubelet.agent.options import AgentOptions
from trikubelet.agent.resources import CgroupStartError, ResourceParts
from trikubelet.cgroups.errors import CgroupError, CgroupNotAllowedError
from trikubelet.cgroups.hierarchy import V1_REQUIRED, Hierarchies
from trikubelet.cgroups.lock import hold_root
from trikubelet.cgroups.ownership import Ownership, own_cgroup_root
from trikubelet.cgroups.settings import MEMORY, CgroupSettings, pod_settings
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.linux.machine import Machine
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

KUBEPODS = ("kubepods",)
V1 = Hierarchies(1, {name: Path("/sys/fs/cgroup") / name for name in V1_REQUIRED})
V2 = Hierarchies(2, {}, Path("/nowhere"))
GI = 2**30


class Runtime:
    """Says which driver it uses."""

    def __init__(self, driver: v1.CgroupDriver | None = v1.CgroupDriver.CGROUPFS) -> None:
        self.driver = driver

    async def runtime_config(self) -> v1.RuntimeConfigResponse:
        await trio.lowlevel.checkpoint()
        if self.driver is None:
            raise CRIError("RuntimeConfig", Status.UNAVAILABLE, "not now")
        return v1.RuntimeConfigResponse(linux=v1.LinuxRuntimeConfiguration(cgroup_driver=self.driver))


@attrs.define
class Stage:
    """A machine and what an agent on it would be told."""

    locks: Path
    driver: FakeDriver = attrs.field(factory=FakeDriver)
    runtime: Runtime = attrs.field(factory=Runtime)
    recorder: EventRecorder = attrs.field(factory=lambda: EventRecorder(TrioClock()))
    hierarchies: Hierarchies = V1
    fields: dict[str, Any] = attrs.field(factory=lambda: {"fail_cgroup_v1": False})
    configured: bool = True
    ownership: Ownership = attrs.field(
        default=attrs.Factory(lambda self: Ownership(mark=str(self.locks), alone=True), takes_self=True)
    )

    def parts(self, **fields: Any) -> ResourceParts:
        options = AgentOptions(
            configuration=attrs.evolve(KubeletConfiguration(), **{**self.fields, **fields}),
            configured=self.configured,
            root_dir=self.locks,
            node_name="n",
        )
        return ResourceParts(
            options,
            node_settings(options),
            self.runtime.runtime_config,
            self.recorder,
            has_exclusive_cpus=lambda _pod, _container: False,
            ownership=self.ownership,
            machine=Machine(cpus=4, memory=8 * GI),
        )

    @contextlib.asynccontextmanager
    async def running(self, **fields: Any) -> AsyncIterator[ResourceParts]:
        parts = self.parts(**fields)
        async with trio.open_nursery() as nursery:
            await nursery.start(parts.run, tuple)
            yield parts
            nursery.cancel_scope.cancel()

    async def refusal(self, **fields: Any) -> str:
        """Why an agent does not start."""
        problems: list[BaseException] = []
        try:
            async with self.running(**fields):
                pass
        except* CgroupStartError as group:
            problems += group.exceptions
        assert len(problems) == 1
        return str(problems[0])

    def told(self) -> list[str]:
        return [event.reason for event in self.recorder.node_events()]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, autojump_clock: MockClock) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setattr(agent_resources, "read_hierarchies", lambda: stage.hierarchies)
    monkeypatch.setattr(agent_resources, "file_driver", lambda hierarchies: stage.driver)
    monkeypatch.setattr(agent_resources, "hold_root", partial(hold_root, folder=tmp_path))
    return stage


async def test_the_groups_of_pods_are_there_when_pods_may_come(autojump_clock: MockClock, stage: Stage) -> None:
    pod = burstable("u-1")
    async with stage.running(system_reserved={"memory": "1Gi"}) as parts:
        assert set(stage.driver.groups) == {KUBEPODS, (*KUBEPODS, "burstable"), (*KUBEPODS, "besteffort")}
        assert await parts.cgroups.ensure(pod)
        assert parts.cgroups.parent_of(pod) == "/kubepods/burstable/podu-1"
        await trio.sleep(1)
        assert stage.driver.groups[KUBEPODS].memory == 7 * GI
        assert stage.told() == ["CgroupV1", "NodeAllocatableEnforced"]


async def test_version_1_is_refused_as_by_the_kubelet(stage: Stage) -> None:
    assert "cgroup v1 support is unsupported" in await stage.refusal(fail_cgroup_v1=True)
    assert "failCgroupV1: false" in await stage.refusal(fail_cgroup_v1=True, cgroups_per_qos=False)


async def test_without_a_file_version_1_is_used_with_one_warning(stage: Stage) -> None:
    stage.configured, stage.fields = False, {}
    async with stage.running() as parts:
        assert parts.cgroups.parent_of(burstable("u-1")) != ""
        assert stage.told().count("CgroupV1") == 1


async def test_no_groups_are_made_where_none_are_asked_for(stage: Stage) -> None:
    async with stage.running(cgroups_per_qos=False) as parts:
        assert stage.driver.groups == {}
        assert parts.cgroups.parent_of(burstable("u-1")) == ""
        assert await parts.cgroups.exists(burstable("u-1"))


async def test_without_rights_pods_run_without_groups(stage: Stage) -> None:
    stage.driver.fail("create", KUBEPODS, [CgroupNotAllowedError("/kubepods", "Read-only file system", number=30)])
    async with stage.running() as parts:
        assert parts.cgroups.parent_of(burstable("u-1")) == ""
        assert not await parts.cgroups.ensure(burstable("u-1"))


@pytest.mark.parametrize("configured", [True, False])
async def test_what_cannot_be_had_keeps_only_a_configured_agent_from_starting(stage: Stage, configured: bool) -> None:
    stage.configured = configured
    problems = (
        {"cgroup_root": "/missing"},
        {"enforce_node_allocatable": ("pods", "kube-reserved"), "kube_reserved_cgroup": "/kube"},
    )
    for fields in problems:
        if configured:
            assert "has to exist" in await stage.refusal(**fields)
        else:
            async with stage.running(**fields) as parts:
                assert parts.cgroups.parent_of(burstable("u-1")) == ""
    stage.driver.groups.clear()
    stage.driver.fail("create", (*KUBEPODS, "burstable"), [CgroupError("/kubepods/burstable", "broken")] * 2)
    if configured:
        assert "broken" in await stage.refusal()


@pytest.mark.parametrize("configured", [True, False])
async def test_an_agent_on_the_tree_of_another_does_not_start(stage: Stage, configured: bool) -> None:
    stage.configured = configured
    with hold_root("/kubepods", stage.locks):
        told = await stage.refusal()
        assert f"another agent keeps its pods there (process {os.getpid()})" in told
    async with stage.running() as parts:
        assert parts.cgroups.parent_of(burstable("u-1")) != ""


@pytest.mark.parametrize("configured", [True, False])
async def test_an_agent_by_itself_owns_what_bears_its_mark(stage: Stage, configured: bool) -> None:
    names = {mark: (*KUBEPODS, "burstable", f"pod{mark}-1") for mark in ("own", "others", "none", "old")}
    stage.configured = configured
    stage.driver = FakeDriver(KUBEPODS, *names.values())
    stage.driver.owners = {names["own"]: str(stage.locks), names["others"]: "/var/lib/other"}
    stage.ownership = attrs.evolve(stage.ownership, earlier=frozenset({"old-1"}))
    async with stage.running() as parts:
        assert await parts.cgroups.found() == {"own-1": names["own"], "old-1": names["old"]}
        for uid in ("own-1", "others-1", "none-1", "old-1"):
            await parts.cgroups.release(uid)
            await parts.cgroups.throttle(uid)
        assert {"others-1", "none-1"} == {name[-1].removeprefix("pod") for name in stage.driver.groups if len(name) > 2}
        assert not {("kill", names["others"]), ("kill", names["none"])} & set(stage.driver.steps)
        assert {name for _, name in stage.driver.steps} & {names["others"], names["none"]} == set()
    stage.ownership = attrs.evolve(stage.ownership, alone=False)
    async with stage.running() as parts:  # the agent of a cluster's node, whose pods these are
        assert await parts.cgroups.found() == {"none-1": names["none"]}


async def test_an_agent_by_itself_makes_a_tree_of_its_own_and_removes_it(stage: Stage) -> None:
    root = own_cgroup_root(stage.locks)
    name = (root.strip("/"),)
    pod = burstable("u-1")
    async with stage.running(cgroup_root=root) as parts:
        await parts.cgroups.ensure(pod)
        assert parts.cgroups.parent_of(pod) == f"{root}/kubepods/burstable/podu-1"
        assert set(stage.driver.owners) == {name, (*name, "kubepods", "burstable", "podu-1")}
        assert set(stage.driver.owners.values()) == {str(stage.locks)}
    assert name in stage.driver.groups, "its pods run on"
    async with stage.running(cgroup_root=root) as parts:
        assert list(await parts.cgroups.found()) == ["u-1"]
        await parts.cgroups.release("u-1")
    assert stage.driver.groups == {}


async def test_an_agent_whose_root_folder_moved_removes_its_tree_too(stage: Stage, tmp_path: Path) -> None:
    root, before = own_cgroup_root(stage.locks), tmp_path / "before"
    before.symlink_to(stage.locks)
    pod = burstable("u-1")
    async with stage.running(cgroup_root=root) as parts:
        await parts.cgroups.ensure(pod)
    stage.driver.owners = dict.fromkeys(stage.driver.owners, str(before))
    async with stage.running(cgroup_root=root) as parts:
        assert list(await parts.cgroups.found()) == ["u-1"]
        await parts.cgroups.release("u-1")
    assert stage.driver.groups == {}


async def test_what_somebody_else_has_in_the_agents_own_tree_stays(stage: Stage) -> None:
    root = own_cgroup_root(stage.locks)
    foreign = (root.strip("/"), "kubepods", "burstable", "podabc-1")
    async with stage.running(cgroup_root=root):
        stage.driver.groups[foreign] = CgroupSettings()
    assert set(stage.driver.groups) == {foreign[:depth] for depth in (1, 2, 3, 4)}
    assert not stage.driver.steps_on("kill")


async def test_two_agents_with_root_folders_of_their_own_have_trees_of_their_own(stage: Stage, tmp_path: Path) -> None:
    second = Stage(tmp_path / "second", stage.driver)
    pod = burstable("u-1")
    async with (
        stage.running(cgroup_root=own_cgroup_root(stage.locks)) as parts,
        second.running(cgroup_root=own_cgroup_root(second.locks)) as others,
    ):
        assert await parts.cgroups.ensure(pod)
        assert await others.cgroups.ensure(pod)
        assert parts.cgroups.parent_of(pod) != others.cgroups.parent_of(pod)


async def test_pods_of_an_older_version_stay_where_they_are_until_they_end(stage: Stage) -> None:
    root = own_cgroup_root(stage.locks)
    older, foreign = (*KUBEPODS, "burstable", "podu-1"), (*KUBEPODS, "burstable", "podabc-1")
    stage.driver = FakeDriver(older, foreign)
    stage.ownership = attrs.evolve(stage.ownership, earlier=frozenset({"u-1"}))
    pod, new = burstable("u-1"), burstable("u-2")
    async with stage.running(cgroup_root=root) as parts:
        assert await parts.cgroups.exists(pod)
        assert not await parts.cgroups.ensure(pod)
        assert await parts.cgroups.ensure(new)
        assert parts.cgroups.parent_of(pod) == "/kubepods/burstable/podu-1"
        assert parts.cgroups.parent_of(new) == f"{root}/kubepods/burstable/podu-2"
        assert (await parts.cgroups.found()).keys() == {"u-1", "u-2"}
        await parts.cgroups.set(pod, CgroupSettings(cpu_shares=7))
        assert stage.driver.groups[older].cpu_shares == 7
        await parts.cgroups.release("u-1")
        assert older not in stage.driver.groups
        assert foreign in stage.driver.groups
        assert parts.cgroups.parent_of(pod) == f"{root}/kubepods/burstable/podu-1", (
            "its next life begins in the new place"
        )


async def test_a_runtime_that_does_not_say_its_driver_keeps_the_agent_from_starting(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.runtime.driver = None
    assert "which cgroup driver it uses" in await stage.refusal()


async def test_the_runtimes_driver_names_the_groups(stage: Stage) -> None:
    made: list[Hierarchies] = []

    def systemd(hierarchies: Hierarchies) -> FakeDriver:
        made.append(hierarchies)
        return stage.driver

    stage.runtime.driver = v1.CgroupDriver.SYSTEMD
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trikubelet.cgroups.systemd.systemd_driver", systemd)
        async with stage.running():
            assert made == [V1]


async def test_memory_of_classes_is_kept_with_the_gate_only(stage: Stage) -> None:
    fields = {"qos_reserved": {MEMORY: "50%"}}
    assert stage.parts(**fields).options.qos_reserved_memory is None
    assert stage.parts(**fields, feature_gates={"QOSReserved": True}).options.qos_reserved_memory == 50
    stage.hierarchies = V2
    assert stage.parts(feature_gates={"MemoryQoS": True}).options.memory_qos
    assert not stage.parts().options.memory_qos


def test_memory_is_reserved_by_tiers_where_the_policy_says_so(stage: Stage) -> None:
    pod, gate = burstable("u-1", memory="64Mi"), {"MemoryQoS": True}
    for hierarchies, policy, protected in (
        (V2, "TieredReservation", {"memory.low": str(64 * 2**20)}),
        (V2, "None", {}),
        (V1, "TieredReservation", {}),
    ):
        stage.hierarchies = hierarchies
        options = stage.parts(memory_reservation_policy=policy, feature_gates=gate).options
        assert options.tiered_reservation is (policy == "TieredReservation")
        assert pod_settings(pod, options).unified == protected


@pytest.mark.parametrize("hierarchies", [V1, V2])
def test_the_root_group_is_not_the_systems(stage: Stage, hierarchies: Hierarchies) -> None:
    stage.hierarchies = hierarchies
    with pytest.raises(CgroupStartError, match="systemCgroups: the root group"):
        stage.parts(system_cgroups="/")
