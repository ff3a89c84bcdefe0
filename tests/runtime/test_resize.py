"""Resizing pods against the simulated runtime: what is told to whom, in which order, and what a failure leaves.

The tables are facts of the kubelet's `TestDoPodResizeAction`, `TestUpdatePodContainerResources` and
`TestValidatePodResizeAction`; that of `TestCmpActuatedAllocated` is in `test_resize_plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from tests.runtime.resize_stage import ACTUATED, FakeCgroups
from trikubelet.api import Quantity, ResourceRequirements
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.settings import (
    NO_LIMIT,
    CgroupOptions,
    CgroupSettings,
    cpu_quota,
    cpu_shares,
    pod_settings,
)
from trikubelet.container.model import ContainerID
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.runtime.actuated import ActuatedResources
from trikubelet.runtime.resize import (
    MemoryUse,
    PodResizer,
    Resizing,
    decrease_problem,
    decreasing_memory_limits,
)
from trikubelet.runtime.resize_plan import Amounts, ContainerToResize, PodResize, amounts
from trikubelet.runtime.results import SyncAction
from trikubelet.sim.memory import memory_allocations

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus


def resources(amounts: Amounts) -> ResourceRequirements:
    return ResourceRequirements(
        requests={"cpu": Quantity.from_milli(amounts.cpu_request), "memory": Quantity(amounts.memory_request)},
        limits={"cpu": Quantity.from_milli(amounts.cpu_limit), "memory": Quantity(amounts.memory_limit)},
    )


def four(cpu_request: int = 0, cpu_limit: int = 0, memory_request: int = 0, memory_limit: int = 0) -> Amounts:
    return Amounts(cpu_request, cpu_limit, memory_request, memory_limit)


UNIMPLEMENTED = {"status": Status.UNIMPLEMENTED, "message": "not supported"}
NOT_YET = {"status": Status.UNKNOWN, "message": "not implemented yet"}
REFUSED = (
    "failed to notify runtime for UpdatePodSandboxResources (resource=cpu); resize rejected: updatePodSandboxResources "
    'failed for sanboxID "{sandbox}": rpc error: code = Unknown desc = runtime sandbox update failed'
)


@attrs.frozen
class Act:
    """The first of three containers changes."""

    current: Amounts
    wanted: Amounts
    updated: str = ""
    """Resources of the container that the plan updates."""
    writes: int = 0
    """Of the pod's cgroup."""
    others_have_limits: bool = False
    fails: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    cgroup_fails: bool = False
    problem: str = ""
    current_pod: Amounts | None = None
    wanted_pod: Amounts | None = None


TABLE = {
    "everything grows, with computed pod limits": Act(
        four(100, 100, 100, 100), four(200, 200, 200, 200), "cpu memory", 3, others_have_limits=True
    ),
    "the runtime refuses the container": Act(
        four(100, 100, 100, 100),
        four(200, 200, 200, 200),
        "cpu memory",
        1,
        others_have_limits=True,
        fails={"UpdateContainerResources": {"message": "error updating container resources"}},
        problem="rpc error: code = Unknown desc = error updating container resources",
    ),
    "everything grows, and others have no limits": Act(
        four(100, 100, 100, 100), four(200, 200, 200, 200), "cpu memory", 1
    ),
    "requests grow": Act(four(100, 200, 100, 200), four(150, 200, 150, 200), "cpu", 1),
    "a memory request, without limits": Act(four(100, 0, 100), four(100, 0, 200)),
    "a cpu request, without limits": Act(four(100, 0, 100), four(200, 0, 100), "cpu", 1),
    "limits are added": Act(four(100, 0, 100), four(100, 100, 100, 100), "cpu memory", 0),
    "limits are added, and the pod gets some": Act(
        four(100, 0, 100), four(100, 100, 100, 100), "cpu memory", 2, others_have_limits=True
    ),
    "the runtime refuses the sandbox": Act(
        four(100, 100),
        four(200, 200),
        "cpu",
        0,
        fails={"UpdatePodSandboxResources": {"message": "runtime sandbox update failed"}},
        problem=REFUSED,
    ),
    "the cgroup cannot be written": Act(
        four(100, 100), four(200, 200), "cpu", 1, cgroup_fails=True, problem="cgroup pod: cgroup update failed"
    ),
    "the runtime does not know sandboxes' resources": Act(
        four(100, 100), four(200, 200), "cpu", 1, fails={"UpdatePodSandboxResources": UNIMPLEMENTED}
    ),
    "the runtime says so in another way": Act(
        four(100, 100), four(200, 200), "cpu", 1, fails={"UpdatePodSandboxResources": NOT_YET}
    ),
    "the pod's memory request": Act(
        four(100, 100, 100, 100),
        four(100, 100, 100, 100),
        current_pod=four(100, 100, 100, 100),
        wanted_pod=four(100, 100, 200, 100),
    ),
    "the pod's memory limit": Act(
        four(100, 100, 100, 100),
        four(100, 100, 100, 100),
        "",
        1,
        current_pod=four(100, 100, 100, 100),
        wanted_pod=four(100, 100, 100, 200),
    ),
    "the pod's cpu request": Act(
        four(100, 100), four(100, 100), "", 1, current_pod=four(100, 100), wanted_pod=four(200, 100)
    ),
    "the pod's cpu limit": Act(
        four(100, 100), four(100, 100), "", 1, current_pod=four(100, 100), wanted_pod=four(100, 200)
    ),
    "the pod's cpu limit and a container's": Act(
        four(100, 100), four(100, 200), "cpu", 1, current_pod=four(100, 100), wanted_pod=four(100, 300)
    ),
    "the pod's memory request and a container's": Act(
        four(0, 0, 100, 200),
        four(0, 0, 150, 200),
        "memory",
        0,
        current_pod=four(0, 0, 100, 200),
        wanted_pod=four(0, 0, 200, 200),
    ),
    "the pod's cpu request and a container's": Act(
        four(100, 200), four(150, 200), "cpu", 1, current_pod=four(100, 200), wanted_pod=four(200, 200)
    ),
    "the pod's memory limit and a container's": Act(
        four(memory_limit=200),
        four(memory_limit=250),
        "memory",
        1,
        current_pod=four(memory_limit=200),
        wanted_pod=four(memory_limit=300),
    ),
}


def three(first: Amounts, others: Amounts | None, whole: Amounts | None) -> Pod:
    rest = {} if others is None else {"resources": resources(others)}
    containers = (
        make_container("a", resources=resources(first)),
        make_container("b", **rest),
        make_container("c", **rest),
    )
    return make_pod(*containers, resources=None if whole is None else resources(whole))


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
async def test_a_pod_is_resized_step_by_step(autojump_clock: MockClock, node: Node, case: Act) -> None:
    others = four(100, 100, 100 * 10**6, 100 * 10**6) if case.others_have_limits else None
    before, pod = three(case.current, others, case.current_pod), three(case.wanted, others, case.wanted_pod)
    await node.sync(before)
    status = await node.status(before)
    sandbox = status.sandbox_statuses[0].id
    # As the kubelet's table has it: what the first container has is all that the pod's cgroup says of memory.
    more = 200 if case.others_have_limits else 0
    limit = case.current.cpu_limit
    cgroups = FakeCgroups(
        CgroupSettings(
            cpu_shares=cpu_shares(case.current.cpu_request + more),
            cpu_quota=cpu_quota(limit + more, 100_000) if limit else NO_LIMIT,
            cpu_period=100_000,
            memory=case.current.memory_limit or NO_LIMIT,
        )
    )
    if case.cgroup_fails:
        cgroups.refuses = CgroupError("pod", "cgroup update failed")
    actuated = ActuatedResources(memory_allocations({}, ACTUATED))
    actuated.sandbox_made(before)

    async def usage(pod: Pod, status: PodRuntimeStatus) -> MemoryUse:
        return MemoryUse(20, {"a": 10})

    resizer = PodResizer(RuntimeClient(node.channel), node.options, Resizing(actuated, cgroups, CgroupOptions(), usage))
    for call, failure in case.fails.items():
        node.sim.faults.fail_next(call, times=9, **failure)
    change = (ContainerToResize(status.container_statuses[-1].id, pod.spec.containers[0], case.wanted, case.current),)
    plan = PodResize(
        memory=change if "memory" in case.updated else (),
        cpu=change if "cpu" in case.updated else (),
        pod_level=case.wanted_pod is not None,
    )
    node.sim.calls.clear()
    result = await resizer.resize(pod, status, sandbox, plan)
    assert (result.action, result.target) == (SyncAction.RESIZE_POD, "web_default(uid-web)")
    assert result.message == case.problem.format(sandbox=sandbox)
    assert result.reason == ("ResizePodInPlaceError" if case.problem else "")
    assert len(cgroups.written) == case.writes
    told = [call.rpc for call in node.sim.calls.of()]
    if case.cgroup_fails:
        assert told == ["UpdatePodSandboxResources"] * 2  # the second takes the first back
    if not case.problem and case.wanted_pod is not None:
        record = actuated.of_pod("uid-web").resources
        assert record is not None
        assert record.pod == pod.spec.resources


@pytest.mark.parametrize("sidecars", [False, True])
@pytest.mark.parametrize(
    ("resource", "told"),
    [
        ("cpu", [four(150, 150, 100, 100), four(250, 250, 200, 200), four(350, 350, 300, 300)]),
        ("memory", [four(100, 100, 150, 150), four(200, 200, 250, 250), four(300, 300, 350, 350)]),
    ],
)
async def test_with_one_resource_the_other_is_told_as_it_was(
    autojump_clock: MockClock, node: Node, resource: str, told: list[Amounts], sidecars: bool
) -> None:
    before = [four(amount, amount, amount, amount) for amount in (100, 200, 300)]
    wanted = [four(amount, amount, amount, amount) for amount in (150, 250, 350)]

    def pod_with(sizes: list[Amounts]) -> Pod:
        policy = {"restart_policy": "Always"} if sidecars else {}
        three = tuple(
            make_container(name, resources=resources(one), **policy) for name, one in zip("abc", sizes, strict=True)
        )
        return make_pod(make_container("main"), init_containers=three) if sidecars else make_pod(*three)

    old, pod = pod_with(before), pod_with(wanted)
    for _ in "abc":  # sidecars start one after the other
        await node.sync(old)
    status = await node.status(old)
    ids = {one.name: one.id for one in status.container_statuses}
    changes = [
        ContainerToResize(ids[container.name], container, after, current)
        for container, current, after in zip(
            pod.spec.init_containers or pod.spec.containers, before, wanted, strict=True
        )
    ]
    actuated = ActuatedResources(memory_allocations({}, ACTUATED))
    actuated.sandbox_made(old)

    async def usage(pod: Pod, status: PodRuntimeStatus) -> MemoryUse:
        return MemoryUse(20, {})

    cgroups = FakeCgroups(pod_settings(old, CgroupOptions()))
    resizer = PodResizer(RuntimeClient(node.channel), node.options, Resizing(actuated, cgroups, CgroupOptions(), usage))
    plan = PodResize(cpu=tuple(changes)) if resource == "cpu" else PodResize(memory=tuple(changes))
    result = await resizer.resize(pod, status, status.sandbox_statuses[0].id, plan)
    assert result.message == ""
    record = actuated.of_pod("uid-web").resources
    assert record is not None
    assert [amounts(record.containers[name]) for name in "abc"] == told


# A decrease of memory

CONTAINER_UP = (four(0, 0, 100, 100), four(0, 0, 100, 200))
CONTAINER_DOWN = (four(0, 0, 100, 200), four(0, 0, 100, 100))
CONTAINER_NEW = (four(0, 0, 100), four(0, 0, 100, 100))
CONTAINER_SAME = (four(0, 0, 100, 100), four(0, 0, 100, 100))

DECREASES: dict[str, tuple[tuple[Amounts, Amounts], tuple[int | None, int | None], tuple[int | None, ...], str]] = {
    "a request": ((four(100, 0, 100), four(100, 0, 200)), (None, None), (None, None), ""),
    "a new limit, low usage": (CONTAINER_NEW, (None, None), (10, 10), ""),
    "a new limit, high usage": (
        CONTAINER_NEW,
        (None, None),
        (200, 200),
        'attempting to set container "a" memory limit (100) below current usage (200)',
    ),
    "a new limit, unknown usage": (CONTAINER_NEW, (None, None), (None, 10), 'missing container "a" memory usage'),
    "a new limit, unknown usage of the pod": (CONTAINER_NEW, (None, None), (10, None), ""),
    "a higher limit": (CONTAINER_UP, (None, None), (None, None), ""),
    "a lower limit, low usage": (CONTAINER_DOWN, (None, None), (20, 20), ""),
    "a lower limit, high usage": (
        CONTAINER_DOWN,
        (None, None),
        (150, 150),
        'attempting to set container "a" memory limit (100) below current usage (150)',
    ),
    "a lower limit that is all in use": (
        CONTAINER_DOWN,
        (None, None),
        (100, 100),
        'attempting to set container "a" memory limit (100) below current usage (100)',
    ),
    "a new limit of the pod, low usage": (CONTAINER_SAME, (None, 100), (20, 20), ""),
    "a new limit of the pod, high usage": (
        CONTAINER_SAME,
        (None, 100),
        (20, 200),
        "attempting to set pod memory limit (100) below current usage (200)",
    ),
    "a higher limit of the pod": (CONTAINER_SAME, (100, 200), (20, 20), ""),
    "a lower limit of the pod, low usage": (CONTAINER_SAME, (200, 100), (20, 20), ""),
    "a lower limit of the pod, high usage": (
        CONTAINER_SAME,
        (200, 100),
        (50, 150),
        "attempting to set pod memory limit (100) below current usage (150)",
    ),
    "a lower limit of the pod, unknown usage": (CONTAINER_SAME, (200, 100), (50, None), "missing pod memory usage"),
    "both, high usage": (
        CONTAINER_DOWN,
        (200, 100),
        (150, 150),
        "[attempting to set pod memory limit (100) below current usage (150), "
        'attempting to set container "a" memory limit (100) below current usage (150)]',
    ),
}


@pytest.mark.parametrize(("amounts", "pod_limits", "used", "problem"), DECREASES.values(), ids=DECREASES)
def test_memory_is_not_decreased_to_what_is_in_use(
    amounts: tuple[Amounts, Amounts],
    pod_limits: tuple[int | None, int | None],
    used: tuple[int | None, int | None],
    problem: str,
) -> None:
    change = ContainerToResize(ContainerID("", "id"), make_container("a"), amounts[1], amounts[0])
    pod, limits = decreasing_memory_limits(
        CgroupSettings(memory=pod_limits[1]), CgroupSettings(memory=pod_limits[0]), [change]
    )
    found = decrease_problem(pod, limits, MemoryUse(used[1], {"a": used[0]})) if pod or limits else None
    assert found == (f"cannot decrease memory limits: {problem}" if problem else None)
