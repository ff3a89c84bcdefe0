"""The verdict on a pod that runs and wants other resources (facts: `podResizesAdmitHandler`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.admission.situations import make_node, make_pod, requires, resources, term, wants
from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.handlers import StaticPolicies
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.admission.types import Admitted, InfeasibleResize, Preempt, Rejected, Verdict
from trikubelet.api import Container, ContainerResizePolicy, Pod
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.linux.machine_facts import MachineFacts

if TYPE_CHECKING:
    from collections.abc import Callable

SWAPS = InfeasibleResize("Infeasible", "In-place resize of containers with swap is not supported.", "swap_limitation")
GATE_OFF = InfeasibleResize("Infeasible", "InPlacePodLevelResourcesVerticalScaling is disabled", "plr_feature_gate_off")
RESTART = (ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer"),)
RESTART_FOR_CPU = (ContainerResizePolicy(resource_name="cpu", restart_policy="RestartContainer"),)


def judge(pod: Pod, allocated: Pod, *others: Pod, **parts: Any) -> Verdict:
    decides = NodeAdmission(
        **{
            "sysctls": SysctlAllowList.of_node(),
            "machine": MachineFacts(2**30),
            "abilities": RuntimeAbilities,
            **parts,
        }
    )
    return decides.admit_resize(pod, allocated, others, node=make_node())


def swaps(*names: str) -> Callable[[Pod, Container], bool]:
    return lambda _pod, container: container.name in names


def test_a_resize_that_fits_is_admitted() -> None:
    assert judge(make_pod({"cpu": "9m"}), make_pod({"cpu": "1m"})) == Admitted()


def test_a_resize_that_the_node_has_no_room_for_is_refused_for_now() -> None:
    verdict = judge(make_pod({"cpu": "9m"}), make_pod({"cpu": "1m"}), make_pod({"cpu": "2m"}, uid="other"))
    message = "Node didn't have enough resource: cpu, requested: 9, used: 2, capacity: 10"
    assert verdict == Rejected("OutOfcpu", message)


def test_others_make_room_for_a_critical_pod() -> None:
    other = make_pod({"cpu": "5m"}, uid="other")
    verdict = judge(make_pod({"cpu": "9m"}, static=True), make_pod({"cpu": "1m"}, static=True), other)
    assert verdict == Preempt((other,), "cpu")


def test_labels_that_do_not_match_are_not_looked_at_anew() -> None:
    verdict = judge(make_pod({"cpu": "2m"}, affinity=requires(term(wants("foo", "Exists")))), make_pod({"cpu": "1m"}))
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "NodeAffinity"


def test_nothing_is_given_while_the_node_runs_out_of_something_or_goes_down() -> None:
    before, after = make_pod({"cpu": "1m"}), make_pod({"cpu": "2m"})
    short = judge(after, before, pressure=lambda: ("DiskPressure",))
    assert short == Rejected("Evicted", "The node had condition: [DiskPressure]. ")
    assert isinstance(judge(after, before, shutting_down=lambda: True), Rejected)


@pytest.mark.parametrize(
    ("before", "after", "policies", "swapping", "expected"),
    [
        pytest.param("1", "2", (), ("c0",), SWAPS, id="it swaps"),
        pytest.param("1", "2", (), (), Admitted(), id="it does not swap"),
        pytest.param("1", "2", RESTART, ("c0",), Admitted(), id="it restarts for it"),
        pytest.param("1", "2", RESTART_FOR_CPU, ("c0",), SWAPS, id="it restarts for other changes"),
        pytest.param("1", "2", (), ("c1",), Admitted(), id="another one swaps"),
        pytest.param("1", "1", (), ("c0",), Admitted(), id="its memory stays"),
        pytest.param("1", "1000m", (), ("c0",), Admitted(), id="its memory stays, in other words"),
    ],
)
def test_memory_of_a_container_with_swap_is_not_resized(
    before: str, after: str, policies: tuple[ContainerResizePolicy, ...], swapping: tuple[str, ...], expected: Verdict
) -> None:
    def pod(memory: str) -> Pod:
        c0 = Container(name="c0", resources=resources({"memory": memory}), resize_policy=policies)
        return make_pod(containers=(c0, Container(name="c1", resources=resources({"memory": "1"}))))

    assert judge(pod(after), pod(before), may_swap=swaps(*swapping)) == expected


def test_a_container_that_swaps_only_after_its_resize_is_not_resized_either() -> None:
    before, after = make_pod({"memory": "1"}), make_pod({"memory": "2"})
    assert judge(after, before, may_swap=lambda pod, _: pod is after) == SWAPS
    assert judge(after, before, may_swap=lambda pod, _: pod is before) == SWAPS


def test_an_init_container_with_swap_is_not_resized() -> None:
    def pod(memory: str) -> Pod:
        return make_pod({}, init=(Container(name="init", resources=resources({"memory": memory})),))

    assert judge(pod("2"), pod("1"), may_swap=swaps("init")) == SWAPS


def guaranteed(cpu: str = "1m", memory: str = "1") -> Pod:
    amounts = {"cpu": cpu, "memory": memory}
    return make_pod(containers=(Container(name="c0", resources=resources(amounts, amounts)),))


STATIC_CPUS = InfeasibleResize(
    "Infeasible",
    'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"',
    "guaranteed_pod_cpu_manager_static_policy",
)
STATIC_MEMORY = InfeasibleResize(
    "Infeasible",
    'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"',
    "guaranteed_pod_memory_manager_static_policy",
)


@pytest.mark.parametrize(
    ("after", "static", "expected"),
    [
        (guaranteed(cpu="2m"), StaticPolicies(cpus=True), STATIC_CPUS),
        (guaranteed(cpu="2m", memory="2"), StaticPolicies(cpus=True, memory=True), STATIC_CPUS),
        (guaranteed(memory="2"), StaticPolicies(memory=True), STATIC_MEMORY),
        (guaranteed(memory="2"), StaticPolicies(cpus=True), Admitted()),
        (guaranteed(cpu="2m"), StaticPolicies(memory=True), Admitted()),
        (guaranteed(cpu="2m", memory="2"), StaticPolicies(), Admitted()),
        (guaranteed(), StaticPolicies(cpus=True, memory=True), Admitted()),
    ],
)
def test_what_guaranteed_pods_may_have_for_themselves_is_not_resized(
    after: Pod, static: StaticPolicies, expected: Verdict
) -> None:
    assert judge(after, guaranteed(), static=static) == expected


def test_other_pods_are_resized_beside_static_policies() -> None:
    both = StaticPolicies(cpus=True, memory=True)
    assert judge(make_pod({"cpu": "2m"}), make_pod({"cpu": "1m"}), static=both) == Admitted()


@pytest.mark.parametrize(("known", "expected"), [(True, Admitted()), (False, GATE_OFF)])
def test_resources_of_the_pod_as_a_whole_are_resized_where_that_is_known(known: bool, expected: Verdict) -> None:
    before = make_pod({"cpu": "1m"})
    after = attrs.evolve(before, spec=attrs.evolve(before.spec, resources=resources({"cpu": "2m"})))
    assert judge(after, before, resizes_pod_level=known) == expected
    assert judge(make_pod({"cpu": "2m"}), before, resizes_pod_level=known) == Admitted()


def test_that_a_resize_is_infeasible_is_found_before_that_there_is_no_room() -> None:
    before, after = make_pod({"memory": "1"}), make_pod({"memory": "1Ti"})
    assert judge(after, before, may_swap=swaps("c0"), pressure=lambda: ("DiskPressure",)) == SWAPS
