"""The outcomes of the kubelet's tables `TestComputePodActionsForPodResize`, `TestIsPodResizeInProgress` and
`TestCmpActuatedAllocated`."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.runtime.situations import Situation, status_of, three_initialized, three_running, three_sidecars
from trikubelet.allocation.model import ALL_RESIZES, PodAllocation, ResizeGates
from trikubelet.api import Container, ContainerResizePolicy, ObjectMeta, Pod, PodSpec, Quantity, ResourceRequirements
from trikubelet.container.model import ContainerID, ContainerState, PodRuntimeStatus, RuntimeResources
from trikubelet.container.probe_results import ProbeResult, ProbeResults
from trikubelet.runtime.plan import compute_pod_actions
from trikubelet.runtime.resize_plan import (
    ActuatedPod,
    Amounts,
    ContainerToResize,
    PodResize,
    amounts,
    is_resize_in_progress,
)

WITHOUT_POD_LEVEL = ResizeGates(pod_level=False)
MIB = 2**20


def resources(
    cpu: str | None = None, memory: str | None = None, *, requests: tuple[str, str] | None = None
) -> ResourceRequirements:
    """Limits, and requests of cpu and memory."""
    limits = {name: Quantity(amount) for name, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
    asked = {} if requests is None else {"cpu": Quantity(requests[0]), "memory": Quantity(requests[1])}
    return ResourceRequirements(limits=limits, requests=asked)


def limits(cpu: int = 0, memory: int = 0) -> Amounts:
    """Thousandths and MiB."""
    return Amounts(cpu_limit=cpu, memory_limit=memory * MIB)


def policies(cpu: str = "NotRequired", memory: str = "NotRequired") -> tuple[ContainerResizePolicy, ...]:
    return (
        ContainerResizePolicy(resource_name="cpu", restart_policy=cpu),
        ContainerResizePolicy(resource_name="memory", restart_policy=memory),
    )


@attrs.frozen
class Case:
    """Three running containers: what they are to have, what they were told, and what becomes of it."""

    wanted: tuple[ResourceRequirements, ResourceRequirements, ResourceRequirements]
    told: dict[str, ResourceRequirements]
    memory: tuple[tuple[str, Amounts, Amounts], ...] = ()
    """Containers in the order in which they are told of memory, with what they get and what they had."""
    cpu: tuple[tuple[str, Amounts, Amounts], ...] = ()
    restarted: str = ""
    pod_level: bool = False
    wanted_pod: ResourceRequirements | None = None
    told_pod: ResourceRequirements | None = None
    policy: tuple[str, tuple[ContainerResizePolicy, ...]] = ("", ())
    gates: ResizeGates = WITHOUT_POD_LEVEL


NONE = resources()
SMALL, BIG = resources("100m", "100Mi"), resources("200m", "200Mi")
REQUESTS_ONLY = (
    resources("200m", "200Mi", requests=("100m", "100Mi")),
    resources("200m", "200Mi", requests=("100m", "200Mi")),
)
REQUESTS_ONLY_AMOUNTS = (
    Amounts(cpu_limit=200, memory_limit=200 * MIB, cpu_request=100, memory_request=100 * MIB),
    Amounts(cpu_limit=200, memory_limit=200 * MIB, cpu_request=100, memory_request=200 * MIB),
)
DOWN = ("foo2", limits(100, 100), limits(200, 200))
UP = ("foo2", limits(200, 200), limits(100, 100))

TABLE = {
    "pod-level resources are not looked at where they cannot be resized": Case(
        wanted=(NONE, SMALL, NONE), told={"foo2": SMALL}, told_pod=BIG
    ),
    "pod-level resources alone": Case(
        wanted=(SMALL, SMALL, SMALL),
        told={"foo1": SMALL, "foo2": SMALL, "foo3": SMALL},
        wanted_pod=BIG,
        told_pod=SMALL,
        pod_level=True,
        gates=ResizeGates(),
    ),
    "a container where pod-level resources cannot be resized": Case(
        wanted=(NONE, SMALL, NONE), told={"foo2": BIG}, told_pod=BIG, memory=(DOWN,), cpu=(DOWN,)
    ),
    "pod-level resources and a container": Case(
        wanted=(SMALL, BIG, SMALL),
        told={"foo1": SMALL, "foo2": SMALL, "foo3": SMALL},
        wanted_pod=resources("600m", "600Mi"),
        told_pod=resources("300m", "300Mi"),
        memory=(UP,),
        cpu=(UP,),
        pod_level=True,
        gates=ResizeGates(),
    ),
    "a container without limits gets the pod's new ones": Case(
        wanted=(SMALL, NONE, SMALL),
        told={"foo1": SMALL, "foo3": SMALL},
        wanted_pod=resources("600m", "600Mi"),
        told_pod=resources("300m", "300Mi"),
        memory=(("foo2", limits(600, 600), limits(300, 300)),),
        cpu=(("foo2", limits(600, 600), limits(300, 300)),),
        pod_level=True,
        gates=ResizeGates(),
    ),
    "a container without limits that has to restart for the pod's new ones": Case(
        wanted=(SMALL, NONE, SMALL),
        told={"foo1": SMALL, "foo2": NONE, "foo3": SMALL},
        wanted_pod=resources("600m", "600Mi"),
        told_pod=resources("300m", "300Mi"),
        policy=("foo2", policies(cpu="RestartContainer")),
        restarted="foo2",
        pod_level=True,
        gates=ResizeGates(),
    ),
    "cpu and memory": Case(wanted=(NONE, SMALL, NONE), told={"foo2": BIG}, memory=(DOWN,), cpu=(DOWN,)),
    "cpu": Case(
        wanted=(NONE, SMALL, NONE),
        told={"foo2": resources("200m", "100Mi")},
        cpu=(("foo2", limits(100, 100), limits(200, 100)),),
    ),
    "memory": Case(
        wanted=(NONE, NONE, BIG),
        told={"foo3": resources("200m", "100Mi")},
        memory=(("foo3", limits(200, 200), limits(200, 100)),),
    ),
    "containers without a record are told of the pod's limits": Case(
        wanted=(NONE, NONE, NONE),
        told={"foo2": resources("100m")},
        wanted_pod=SMALL,
        cpu=(("foo1", limits(100, 100), limits()), ("foo3", limits(100, 100), limits())),
        memory=(
            ("foo1", limits(100, 100), limits()),
            ("foo2", limits(100, 100), limits(100)),
            ("foo3", limits(100, 100), limits()),
        ),
        pod_level=True,
        gates=ResizeGates(),
    ),
    "nothing, when both are equal": Case(wanted=(NONE, resources("200m"), NONE), told={"foo2": resources("200m")}),
    "nothing, when there is nothing": Case(wanted=(NONE, NONE, NONE), told={"foo2": NONE}),
    "a restart for cpu, when both change": Case(
        wanted=(BIG, NONE, NONE),
        told={"foo1": SMALL},
        policy=("foo1", policies(cpu="RestartContainer")),
        restarted="foo1",
    ),
    "a restart for memory, when both change": Case(
        wanted=(NONE, NONE, BIG),
        told={"foo3": SMALL},
        policy=("foo3", policies(memory="RestartContainer")),
        restarted="foo3",
    ),
    "memory, where a restart is for cpu": Case(
        wanted=(NONE, resources("100m", "200Mi"), NONE),
        told={"foo2": SMALL},
        policy=("foo2", policies(cpu="RestartContainer")),
        memory=(("foo2", limits(100, 200), limits(100, 100)),),
    ),
    "cpu, where a restart is for memory": Case(
        wanted=(NONE, NONE, resources("200m", "100Mi")),
        told={"foo3": SMALL},
        policy=("foo3", policies(memory="RestartContainer")),
        cpu=(("foo3", limits(200, 100), limits(100, 100)),),
    ),
    "a restart for the memory request": Case(
        wanted=(NONE, NONE, REQUESTS_ONLY[0]),
        told={"foo3": REQUESTS_ONLY[1]},
        policy=("foo3", policies(memory="RestartContainer")),
        restarted="foo3",
    ),
    "the memory request": Case(
        wanted=(NONE, NONE, REQUESTS_ONLY[0]),
        told={"foo3": REQUESTS_ONLY[1]},
        memory=(("foo3", *REQUESTS_ONLY_AMOUNTS),),
    ),
    "those that shrink come first, for each resource apart": Case(
        wanted=(resources("100m", "200Mi"), resources("200m", "100Mi"), BIG),
        told={"foo1": resources("200m", "100Mi"), "foo2": resources("100m", "200Mi"), "foo3": SMALL},
        memory=(
            ("foo2", limits(200, 100), limits(100, 200)),
            ("foo1", limits(100, 200), limits(200, 100)),
            ("foo3", limits(200, 200), limits(100, 100)),
        ),
        cpu=(
            ("foo1", limits(100, 200), limits(200, 100)),
            ("foo2", limits(200, 100), limits(100, 200)),
            ("foo3", limits(200, 200), limits(100, 100)),
        ),
    ),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_running_containers_are_resized_or_restarted(case: Case) -> None:
    situation = three_running().spec(resources=case.wanted_pod)
    for name, wanted in zip(("foo1", "foo2", "foo3"), case.wanted, strict=True):
        situation = situation.container(name, resources=wanted, resize_policy=policies())
    situation = situation.container(case.policy[0], resize_policy=case.policy[1])
    actuated = ActuatedPod(PodAllocation(case.told, case.told_pod), case.gates)
    plan = compute_pod_actions(situation.pod, situation.status, actuated=actuated)
    by_name = {container.name: container for container in situation.pod.spec.containers}

    def changes(expected: tuple[tuple[str, Amounts, Amounts], ...]) -> tuple[ContainerToResize, ...]:
        return tuple(
            ContainerToResize(ContainerID("", f"id{name[-1]}"), by_name[name], wanted, current)
            for name, wanted, current in expected
        )

    assert plan.resize == PodResize(
        changes(case.memory), changes(case.cpu), group=bool(case.restarted), pod_level=case.pod_level
    )
    killed = {kill.name: kill.message for kill in plan.containers_to_kill.values()}
    assert killed == ({case.restarted: f"Container {case.restarted} resize requires restart"} if case.restarted else {})
    assert [by_index(situation.pod, index) for index in plan.containers_to_start] == [*killed]
    assert not plan.kill_pod


def by_index(pod: Pod, index: int) -> str:
    return pod.spec.containers[index].name


def actuated(gates: ResizeGates = ALL_RESIZES, **told: ResourceRequirements) -> ActuatedPod:
    return ActuatedPod(PodAllocation({name.replace("_", "-"): one for name, one in told.items()}), gates)


SAYS = {
    "the same": (RuntimeResources(100, 100, 100 * MIB), resources("100m", "100Mi", requests=("100m", "1Mi")), None),
    "nothing": (None, BIG, None),
    "the limit for a request of nothing": (RuntimeResources(100, 100, 100 * MIB), SMALL, None),
    "the least there is for less": (
        RuntimeResources(2, 10, 100 * MIB),
        resources("5m", "100Mi", requests=("1m", "1Mi")),
        None,
    ),
    "others": (RuntimeResources(200, 200, 200 * MIB), SMALL, limits(200, 200)),
    "no limits": (RuntimeResources(2), SMALL, limits()),
}


@pytest.mark.parametrize(("said", "wanted", "current"), SAYS.values(), ids=SAYS)
def test_of_a_pod_without_a_record_counts_what_the_runtime_says(
    said: RuntimeResources | None, wanted: ResourceRequirements, current: Amounts | None
) -> None:
    situation = three_running().container("foo1", resources=wanted)
    situation = situation.seen("foo1", ContainerState.RUNNING, resources=said)
    no_record = ActuatedPod(None)
    resize = compute_pod_actions(situation.pod, situation.status, actuated=no_record).resize
    assert [one.current for one in resize.cpu] == ([] if current is None else [current])
    assert is_resize_in_progress(situation.pod, situation.status, no_record) is (current is not None)


def test_nothing_is_resized_on_a_node_that_does_not_do_that() -> None:
    situation = three_running().container("foo1", resources=SMALL)
    assert not compute_pod_actions(situation.pod, situation.status).resize
    assert not is_resize_in_progress(situation.pod, situation.status, None)


def running_sidecars(**changes: Any) -> Situation:
    """Three sidecars that run beside three main containers; the second one has been changed."""
    situation = three_sidecars()
    for container in situation.pod.spec.containers:
        number = container.name[-1]
        situation = situation.also(status_of(container, f"id{number}", ContainerState.RUNNING))
    return situation.container("restartable-init-2", **changes)


HEALTHY = ProbeResults(
    liveness={one.id: ProbeResult.SUCCESS for one in running_sidecars().status.container_statuses},
    startup={one.id: ProbeResult.SUCCESS for one in running_sidecars().status.container_statuses},
)


def test_a_sidecar_is_resized_in_place() -> None:
    situation = running_sidecars(resources=BIG)
    plan = compute_pod_actions(
        situation.pod, situation.status, probes=HEALTHY, actuated=actuated(restartable_init_2=SMALL)
    )
    assert [(one.id.id, one.wanted) for one in plan.resize.memory] == [("initid2", limits(200, 200))]
    assert plan.init_containers_to_start == ()


def test_a_sidecar_is_restarted_where_its_policy_says_so() -> None:
    situation = running_sidecars(resources=BIG, resize_policy=policies(memory="RestartContainer"))
    plan = compute_pod_actions(
        situation.pod, situation.status, probes=HEALTHY, actuated=actuated(restartable_init_2=SMALL)
    )
    assert plan.init_containers_to_start == (1,)
    assert [kill.name for kill in plan.containers_to_kill.values()] == ["restartable-init-2"]
    assert plan.resize == PodResize(group=True)


def test_a_sidecar_whose_liveness_is_not_known_yet_is_not_resized() -> None:
    situation = running_sidecars(resources=BIG)
    unknown = attrs.evolve(HEALTHY, liveness={})
    plan = compute_pod_actions(
        situation.pod, situation.status, probes=unknown, actuated=actuated(restartable_init_2=SMALL)
    )
    assert not plan.resize


@pytest.mark.parametrize("known", [True, False])
def test_an_init_container_is_resized_while_it_runs_where_the_node_does_that(*, known: bool) -> None:
    situation = three_initialized().only("init1").running("init1").container("init1", resources=BIG)
    gates = ResizeGates(init_containers=known)
    plan = compute_pod_actions(situation.pod, situation.status, actuated=actuated(gates, init1=SMALL))
    assert [one.id.id for one in plan.resize.cpu] == (["initid1"] if known else [])


def test_the_pod_as_a_whole_waits_for_its_init_containers() -> None:
    situation = three_initialized().only("init1").running("init1").spec(resources=BIG)
    told = ActuatedPod(PodAllocation({"init1": BIG}, SMALL))
    plan = compute_pod_actions(situation.pod, situation.status, actuated=told)
    assert not plan.resize.pod_level


def test_a_container_that_ended_starts_with_its_new_resources_and_the_group_follows() -> None:
    situation = three_running("Always").container("foo1", resources=BIG).exited("foo1", 1)
    plan = compute_pod_actions(situation.pod, situation.status, actuated=actuated(foo1=SMALL))
    assert plan.containers_to_start == (0,)
    assert plan.resize == PodResize(group=True)
    same = compute_pod_actions(situation.pod, situation.status, actuated=actuated(foo1=BIG))
    assert not same.resize


def test_a_new_sandbox_of_a_pod_that_was_resized_has_its_group_follow() -> None:
    situation = three_running("Always").container("foo1", resources=BIG).sandbox(ready=False)
    plan = compute_pod_actions(situation.pod, situation.status, actuated=actuated(foo1=SMALL))
    assert plan.create_sandbox
    assert plan.resize == PodResize(group=True)


def test_a_group_that_could_not_follow_is_tried_again() -> None:
    situation = three_running()
    behind = attrs.evolve(actuated(foo1=NONE), group_is_behind=True)
    assert compute_pod_actions(situation.pod, situation.status, actuated=behind).resize == PodResize(group=True)
    assert is_resize_in_progress(situation.pod, situation.status, behind)


# Is it in progress?


def four(cpu_request: int = 0, cpu_limit: int = 0, memory_request: int = 0, memory_limit: int = 0) -> Any:
    def some(cpu: int, memory: int) -> dict[str, Quantity]:
        amounts = (("cpu", Quantity.from_milli(cpu)), ("memory", Quantity(memory)))
        return {name: amount for name, amount in amounts if amount}

    return ResourceRequirements(requests=some(cpu_request, memory_request), limits=some(cpu_limit, memory_limit))


RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED


@attrs.frozen
class One:
    """A container: what it is allocated, what was actuated, and what is seen of it."""

    allocated: ResourceRequirements
    actuated: ResourceRequirements | None
    state: ContainerState | None = RUNNING
    kind: str = "main"


SAME = One(four(100, 200, 100, 200), four(100, 200, 100, 200))
PROGRESS: dict[str, tuple[tuple[One, ...], bool]] = {
    "a running container": ((One(four(100, 100, 100, 100), four(100, 100, 100, 100)),), False),
    "one that was not started": ((One(four(100, 100, 100, 100), None, None),), False),
    "cpu request": ((One(four(100, 200, 100, 200), four(150, 200, 100, 200)),), True),
    "cpu limit": ((One(four(100, 200, 100, 200), four(100, 300, 100, 200)),), True),
    "memory request": ((One(four(100, 200, 100, 200), four(100, 200, 150, 200)),), True),
    "both requests": ((One(four(100, 200, 100, 200), four(150, 200, 150, 200)),), True),
    "memory limit": ((One(four(100, 200, 100, 200), four(100, 200, 100, 300)),), True),
    "one that has ended": ((One(four(100, 200, 100, 200), four(200, 200, 100, 200), EXITED),), False),
    "an init container": ((One(four(100, 200, 100, 200), None, kind="init"), SAME), False),
    "a sidecar like before": ((attrs.evolve(SAME, kind="sidecar"), SAME), False),
    "a resized sidecar": ((One(four(100, 200, 100, 200), four(200, 200, 100, 200), kind="sidecar"), SAME), True),
    "several and a resize": (
        (
            One(four(100, 200, 100, 200), None, kind="init"),
            SAME,
            One(four(100, 200, 100, 200), None, None),
            One(four(100, 200, 100, 200), four(200, 200, 100, 200)),
        ),
        True,
    ),
    "several": (
        (
            One(four(100, 200), four(100, 200), kind="sidecar"),
            One(four(0, 0, 100, 200), four(0, 0, 100, 200)),
            One(four(200, 0, 100), four(200, 0, 100)),
        ),
        False,
    ),
    "best effort": ((One(four(), four()),), False),
    "a burstable pod": ((One(four(100), four(100)),), False),
    "a burstable pod, resized": ((One(four(100), four(500)),), True),
}
POD_LEVEL: dict[str, tuple[Any, Any, One, bool, bool]] = {
    "equal": (four(100), four(100), One(four(), four()), False, False),
    "others": (four(200), four(100), One(four(), four()), True, True),
    "others, where they cannot be resized": (four(200), four(100), One(four(), four()), False, False),
    "a container, where they cannot be resized": (four(100), four(100), One(four(100), four(50)), False, True),
    "a container": (four(100), four(100), One(four(100), four(50)), True, True),
    "memory": (four(0, 0, 100), four(0, 0, 200), One(four(0, 0, 100), four(0, 0, 100)), True, True),
    "nothing actuated yet": (four(200), None, One(four(100), None, EXITED), True, False),
}


def in_progress(containers: tuple[One, ...], gates: ResizeGates, whole: Any = None, told_whole: Any = None) -> bool:
    named = [(f"c{number}", one) for number, one in enumerate(containers)]

    def spec(name: str, one: One) -> Container:
        return Container(name=name, resources=one.allocated, restart_policy="Always" if one.kind == "sidecar" else None)

    pod = Pod(
        metadata=ObjectMeta(uid="12345", name="test-pod"),
        spec=PodSpec(
            init_containers=tuple(spec(name, one) for name, one in named if one.kind != "main"),
            containers=tuple(spec(name, one) for name, one in named if one.kind == "main"),
            resources=whole,
        ),
    )
    seen = tuple(status_of(spec(name, one), name, one.state) for name, one in named if one.state is not None)
    told = {name: one.actuated for name, one in named if one.actuated is not None}
    status = PodRuntimeStatus(uid="12345", name="test-pod", namespace="", container_statuses=seen)
    return is_resize_in_progress(pod, status, ActuatedPod(PodAllocation(told, told_whole), gates))


@pytest.mark.parametrize(("containers", "expected"), PROGRESS.values(), ids=PROGRESS)
def test_a_resize_is_in_progress_until_running_containers_have_what_they_are_allocated(
    containers: tuple[One, ...], *, expected: bool
) -> None:
    assert in_progress(containers, WITHOUT_POD_LEVEL) is expected
    assert in_progress(containers, ResizeGates()) is expected


@pytest.mark.parametrize(("allocated", "told", "one", "known", "expected"), POD_LEVEL.values(), ids=POD_LEVEL)
def test_a_resize_of_the_pod_as_a_whole_is_in_progress(
    allocated: Any, told: Any, one: One, *, known: bool, expected: bool
) -> None:
    assert in_progress((one,), ResizeGates(pod_level=known), allocated, told) is expected


REQUESTS, LIMITS = ({"cpu": "10m", "memory": "20Mi"}, {"cpu": "20m", "memory": "10Mi"})
EMPTY = ResourceRequirements()


def asked(requests: dict[str, str], limits: dict[str, str] | None = None) -> ResourceRequirements:
    return ResourceRequirements(
        requests={name: Quantity(amount) for name, amount in requests.items()},
        limits={name: Quantity(amount) for name, amount in (limits or {}).items()},
    )


@pytest.mark.parametrize(
    ("told", "allocated", "same"),
    [
        (None, None, True),
        (None, EMPTY, True),
        (EMPTY, None, True),
        (EMPTY, EMPTY, True),
        (EMPTY, asked({"cpu": "10m"}), False),
        (EMPTY, asked(REQUESTS), False),
        (asked(REQUESTS), asked(REQUESTS), True),
        (asked(REQUESTS), asked({}, REQUESTS), False),
        (asked(REQUESTS, LIMITS), asked(REQUESTS, LIMITS), True),
        (asked(REQUESTS, LIMITS), asked({**REQUESTS, "hugepages-2Mi": "2Mi"}, LIMITS), True),
    ],
)
def test_a_pod_as_a_whole_is_resized_where_cpu_or_memory_differ(
    told: ResourceRequirements | None, allocated: ResourceRequirements | None, *, same: bool
) -> None:
    """As the kubelet's `TestCmpActuatedAllocated`; the last line is what its name promises."""
    situation = three_running().spec(resources=allocated)
    names = [container.name for container in situation.pod.spec.containers]
    whole = amounts(allocated)
    inherited = asked({}, {"cpu": f"{whole.cpu_limit}m", "memory": str(whole.memory_limit)})
    actuated = ActuatedPod(PodAllocation(dict.fromkeys(names, inherited), told), ResizeGates())
    plan = compute_pod_actions(situation.pod, situation.status, actuated=actuated)
    assert plan.resize == PodResize(pod_level=not same)
