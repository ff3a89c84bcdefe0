"""From quantities to what the kernel gets."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from trikubelet.api import Container, ObjectMeta, Pod, PodSpec, Quantity, ResourceRequirements
from trikubelet.cgroups.settings import CgroupOptions, cpu_quota, cpu_shares, pod_settings
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.resources import (
    container_resources,
    linux_resources,
    may_swap,
    oom_score_adjust,
    overhead_resources,
    sandbox_resources,
)
from trikubelet.runtime.options import RuntimeOptions

V1 = RuntimeOptions(root_dir=Path("/"), machine=MachineFacts(4_000_000_000, cgroup_v2=False))
V2 = attrs.evolve(V1, machine=MachineFacts(4_000_000_000, cgroup_v2=True))


def amounts(**given: str) -> dict[str, Quantity]:
    return {name: Quantity(text) for name, text in given.items()}


def container(name: str = "c", *, sidecar: bool = False, requests: str = "", limits: str = "") -> Container:
    """`requests` and `limits` as `cpu/memory`; a missing part is left out."""

    def read(text: str) -> dict[str, Quantity]:
        cpu, _, memory = text.partition("/")
        return amounts(**{key: value for key, value in (("cpu", cpu), ("memory", memory)) if value})

    resources = ResourceRequirements(requests=read(requests), limits=read(limits))
    return Container(name=name, resources=resources, restart_policy="Always" if sidecar else None)


def pod(*containers: Container, init: tuple[Container, ...] = (), own: ResourceRequirements | None = None) -> Pod:
    return Pod(spec=PodSpec(containers=containers, init_containers=init, resources=own))


@pytest.mark.parametrize(
    ("request_", "limit", "memory", "shares", "quota", "bytes_"),
    [
        ("1", "2", "128Mi", 1024, 200_000, 134_217_728),
        ("2", "8", "0", 2048, 800_000, 0),
        (None, "2", "0", 2048, 200_000, 0),
        ("0", "2", "0", 2, 200_000, 0),
    ],
)
def test_quantities_become_shares_quota_and_limit(
    request_: str | None, limit: str, memory: str, shares: int, quota: int, bytes_: int
) -> None:
    wanted = None if request_ is None else Quantity(request_)
    expected = v1.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=quota, cpu_shares=shares, memory_limit_in_bytes=bytes_
    )
    assert linux_resources(wanted, Quantity(limit), Quantity(memory), V1) == expected
    expected.unified = {"memory.oom.group": "1"}
    assert linux_resources(wanted, Quantity(limit), Quantity(memory), V2) == expected


def test_one_process_may_be_killed_alone_when_configured_so() -> None:
    options = attrs.evolve(V2, single_process_oom_kill=True)
    assert linux_resources(None, Quantity("1"), Quantity(0), options).unified == {}


def test_no_quota_is_set_when_switched_off() -> None:
    resources = linux_resources(None, Quantity("1"), Quantity(0), attrs.evolve(V1, cpu_cfs_quota=False))
    assert (resources.cpu_quota, resources.cpu_period) == (0, 0)


@pytest.mark.parametrize(("milli", "shares"), [(0, 2), (1, 2), (2, 2), (100, 102), (1000, 1024), (300_000, 262_144)])
def test_shares_are_within_what_the_kernel_takes(milli: int, shares: int) -> None:
    assert cpu_shares(milli) == shares


@pytest.mark.parametrize(("milli", "quota"), [(0, 0), (5, 1000), (10, 1000), (20, 2000), (1500, 150_000)])
def test_quotas_are_at_least_a_millisecond(milli: int, quota: int) -> None:
    assert cpu_quota(milli, 100_000) == quota


@pytest.mark.parametrize(
    ("situation", "score"),
    [
        (pod(container()), 1000),
        (pod(container(requests="1/1G", limits="1/1G")), -997),
        (pod(container(requests="/1G")), 750),
        (pod(container(requests="1/")), 999),
        (pod(container(requests="/4G")), 3),
        (attrs.evolve(pod(container()), spec=PodSpec(priority_class_name="system-node-critical")), -997),
    ],
)
def test_who_asks_for_more_memory_dies_later(situation: Pod, score: int) -> None:
    first = next(iter(situation.spec.containers), container())
    assert oom_score_adjust(situation, first, 4_000_000_000) == score


def test_a_sidecar_does_not_die_before_the_main_containers() -> None:
    sidecar = container("s", sidecar=True, requests="/400M")
    situation = pod(container("a", requests="/2G"), container("b", requests="/1G"), init=(sidecar,))
    assert oom_score_adjust(situation, sidecar, 4_000_000_000) == 750
    assert oom_score_adjust(situation, situation.spec.containers[0], 4_000_000_000) == 500


def test_memory_that_only_the_pod_requests_is_shared_out() -> None:
    own = ResourceRequirements(requests=amounts(memory="2G"), limits=amounts(memory="3G"))
    situation = pod(container("a", requests="/1G"), container("b"), own=own)
    assert oom_score_adjust(situation, situation.spec.containers[1], 4_000_000_000) == 875


def test_the_sandbox_gets_the_pods_sum_and_its_overhead() -> None:
    situation = pod(container(requests="2/128Mi", limits="4/256Mi"))
    situation = attrs.evolve(situation, spec=attrs.evolve(situation.spec, overhead=amounts(cpu="1", memory="128Mi")))
    assert sandbox_resources(situation, V1) == v1.LinuxContainerResources(
        memory_limit_in_bytes=268_435_456, cpu_period=100_000, cpu_quota=400_000, cpu_shares=2048
    )
    assert overhead_resources(situation, V1) == v1.LinuxContainerResources(
        memory_limit_in_bytes=134_217_728, cpu_period=100_000, cpu_quota=100_000, cpu_shares=1024
    )


def test_limits_beyond_all_machines_are_the_most_that_the_kernel_takes() -> None:
    boundless = pod(container(requests="1m/1Mi", limits="1e18/1e30"))
    made = container_resources(boundless, boundless.spec.containers[0], V2)
    assert (made.cpu_quota, made.memory_limit_in_bytes) == (2**44 - 1, 2**63 - 1)
    group = pod_settings(boundless, CgroupOptions())
    assert (group.cpu_quota, group.memory) == (2**44 - 1, 2**63 - 1)
    assert v1.LinuxContainerResources().parse(bytes(made)) == made


def test_a_pod_without_overhead_or_cpu_gets_the_least_shares() -> None:
    situation = pod(container(requests="/128Mi", limits="/256Mi"))
    assert sandbox_resources(situation, V1).cpu_shares == 2
    assert overhead_resources(situation, V1) == v1.LinuxContainerResources()


def test_every_page_size_has_a_limit() -> None:
    options = attrs.evolve(V1, machine=attrs.evolve(V1.machine, hugepage_sizes=("2MB", "1GB")))
    resources = ResourceRequirements(limits={"hugepages-2Mi": Quantity("4Mi")})
    one = Container(name="c", resources=resources)
    limits = container_resources(pod(one), one, options).hugepage_limits
    assert [(limit.page_size, limit.limit) for limit in limits] == [("2MB", 4 * 2**20), ("1GB", 0)]


def test_the_pods_limit_counts_for_a_container_without_one() -> None:
    own = ResourceRequirements(limits=amounts(cpu="3", memory="1Gi"))
    one, other = container("a"), container("b", limits="1/")
    situation = pod(one, other, own=own)
    assert container_resources(situation, one, V1).cpu_quota == 300_000
    assert container_resources(situation, other, V1).cpu_quota == 100_000
    assert container_resources(situation, other, V1).memory_limit_in_bytes == 2**30


def test_the_machines_facts_are_read_from_proc_and_sys(tmp_path: Path) -> None:
    for directory in (
        "proc",
        "sys/fs/cgroup",
        "sys/kernel/mm/hugepages/hugepages-2048kB",
        "sys/devices/system/cpu/cpu0/thermal_throttle",
    ):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:        2048 kB\nMemFree: 1 kB\n")
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    assert MachineFacts.read(tmp_path) == MachineFacts(
        2 * 2**20, True, ("2MB",), ("/sys/devices/system/cpu/cpu0/thermal_throttle",)
    )


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_the_kernel_can_do_is_read_too(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 4 kB\nSwapCached: 0 kB\nSwapTotal: 3 kB\n",
            "proc/sys/kernel/osrelease": "5.15.0-75-generic\n",
            "proc/self/attr/current": "system_u:system_r:init_t:s0\0",
            "proc/self/cgroup": "0::/system.slice/agent.service\n",
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
            "sys/fs/cgroup/system.slice/agent.service/memory.swap.max": "max\n",
            "sys/fs/selinux/enforce": "1",
            "sys/kernel/security/apparmor/profiles": "",
            "sys/module/apparmor/parameters/enabled": "Y\n",
        },
    )
    assert MachineFacts.read(tmp_path) == MachineFacts(
        4096, swap_capacity=3072, swap_controller=True, selinux=True, apparmor=True, kernel=(5, 15)
    )


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": ""}, "swap_controller"),
        ({"sys/kernel/security/apparmor/x": "", "sys/module/apparmor/parameters/enabled": "N\n"}, "apparmor"),
        ({"sys/module/apparmor/parameters/enabled": "Y\n"}, "apparmor"),
        ({"sys/fs/selinux/enforce": "0", "proc/self/attr/current": "kernel\0"}, "selinux"),
        ({"proc/sys/kernel/osrelease": "odd\n"}, "kernel"),
    ],
)
def test_what_is_missing_or_switched_off_is_not_there(tmp_path: Path, files: dict[str, str], fact: str) -> None:
    put(tmp_path, {"proc/meminfo": "MemTotal: 4 kB\n", **files})
    assert not getattr(MachineFacts.read(tmp_path), fact)


def test_swap_is_counted_on_cgroup_v1_where_the_kernel_was_told_to(tmp_path: Path) -> None:
    put(tmp_path, {"proc/meminfo": "MemTotal: 4 kB\n", "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": "1"})
    assert MachineFacts.read(tmp_path).swap_controller


# Swap, in the kubelet's cases: a node with 40 GiB of memory and 5 GiB of swap


def swap_of(situation: Pod, index: int = 0, *, behavior: str = "LimitedSwap", v2: bool = True) -> str | int | None:
    machine = MachineFacts(40 * 2**30, cgroup_v2=v2, swap_capacity=5 * 2**30, swap_controller=True)
    options = RuntimeOptions(root_dir=Path("/"), machine=machine, swap_behavior=behavior)
    resources = container_resources(situation, situation.spec.containers[index], options)
    return resources.unified.get("memory.swap.max") if v2 else resources.memory_swap_limit_in_bytes


BURSTABLE = pod(container("a", requests="/1Gi"), container("b", requests="/2Gi", limits="/2Gi"), container("c"))


def test_a_burstable_container_gets_its_share_of_the_swap() -> None:
    assert swap_of(BURSTABLE) == str(2**30 // 8)


@pytest.mark.parametrize(
    ("situation", "index", "behavior"),
    [
        (BURSTABLE, 0, "NoSwap"),
        (BURSTABLE, 0, ""),
        (BURSTABLE, 1, "LimitedSwap"),
        (BURSTABLE, 2, "LimitedSwap"),
        (pod(container()), 0, "LimitedSwap"),
        (pod(container(requests="1/1Gi", limits="1/1Gi")), 0, "LimitedSwap"),
        (pod(container(requests="/41Gi")), 0, "LimitedSwap"),
        (attrs.evolve(BURSTABLE, spec=attrs.evolve(BURSTABLE.spec, priority=2_000_000_000)), 0, "LimitedSwap"),
        (
            attrs.evolve(BURSTABLE, metadata=ObjectMeta(annotations={"kubernetes.io/config.source": "file"})),
            0,
            "LimitedSwap",
        ),
    ],
)
def test_others_get_no_swap(situation: Pod, index: int, behavior: str) -> None:
    assert swap_of(situation, index, behavior=behavior) == "0"


def test_swap_is_limited_by_what_may_swap_at_all() -> None:
    machine = MachineFacts(40 * 2**30, swap_capacity=5 * 2**30, swap_controller=True)
    options = RuntimeOptions(root_dir=Path("/"), machine=machine, swap_behavior="LimitedSwap")
    assert [may_swap(BURSTABLE, one, options) for one in BURSTABLE.spec.containers] == [True, False, False]
    first = BURSTABLE.spec.containers[0]
    assert not may_swap(BURSTABLE, first, attrs.evolve(options, swap_behavior="NoSwap"))
    for lacking in (attrs.evolve(machine, cgroup_v2=False), attrs.evolve(machine, swap_controller=False)):
        assert not may_swap(BURSTABLE, first, attrs.evolve(options, machine=lacking))


@pytest.mark.parametrize("behavior", ["NoSwap", "LimitedSwap"])
def test_on_cgroup_v1_memory_with_swap_is_as_much_as_memory(behavior: str) -> None:
    limited = pod(container(requests="/1Gi", limits="/2Gi"))
    assert swap_of(limited, behavior=behavior, v2=False) == 2 * 2**30
    assert swap_of(BURSTABLE, behavior=behavior, v2=False) == 0


def test_nothing_is_said_where_the_kernel_does_not_count_swap() -> None:
    options = attrs.evolve(V2, swap_behavior="LimitedSwap", single_process_oom_kill=True)
    assert container_resources(BURSTABLE, BURSTABLE.spec.containers[0], options).unified == {}


def test_swap_and_the_killing_of_whole_cgroups_go_together() -> None:
    options = attrs.evolve(V2, machine=attrs.evolve(V2.machine, swap_controller=True))
    assert container_resources(BURSTABLE, BURSTABLE.spec.containers[0], options).unified == {
        "memory.oom.group": "1",
        "memory.swap.max": "0",
    }
