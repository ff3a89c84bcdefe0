"""The verdict on a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.admission.situations import make_node, make_pod, pod_with_ports, requires, term, wants
from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.admission.types import Admission, Admitted, NeedsFreshNode, Preempt, Rejected, Verdict, Wait
from trikubelet.api import AppArmorProfile, Pod, PodOS, PodSecurityContext, Quantity, ResourceRequirements, Sysctl
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.linux.machine_facts import MachineFacts

if TYPE_CHECKING:
    from trikubelet.api import Node, Pod

STRICT = PodSecurityContext(supplemental_groups_policy="Strict")
CONFINED = PodSecurityContext(app_armor_profile=AppArmorProfile(type="RuntimeDefault"))
CRITICAL = 2_000_000_000
WANTS_FOO = requires(term(wants("foo", "Exists")))
HAS_FOO = make_node(labels={"foo": "bar"})
AFFINITY = Rejected("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")


def admission(**parts: Any) -> NodeAdmission:
    return NodeAdmission(
        **{
            "sysctls": SysctlAllowList.of_node(),
            "machine": MachineFacts(2**30),
            "abilities": RuntimeAbilities,
            **parts,
        }
    )


def judge(pod: Pod, *others: Pod, node: Node | None = None, fresh: bool = False, **parts: Any) -> Verdict:
    decides: Admission = admission(**parts)
    return decides.admit(pod, others, node=node or make_node(), fresh=fresh)


def reason(verdict: Verdict) -> str:
    assert isinstance(verdict, Rejected), verdict
    return verdict.reason


def test_a_pod_that_asks_for_nothing_is_admitted() -> None:
    assert judge(make_pod()) == Admitted()


def test_the_younger_of_two_pods_with_one_port_is_rejected() -> None:
    assert judge(pod_with_ports(80)) == Admitted()
    verdict = judge(pod_with_ports(80, uid="new"), pod_with_ports(80, uid="old"))
    assert reason(verdict) == "NodePorts"


def test_for_labels_alone_the_node_is_looked_at_anew() -> None:
    pod = make_pod(affinity=WANTS_FOO)
    assert judge(pod) == NeedsFreshNode()
    assert judge(pod, fresh=True) == AFFINITY
    assert judge(pod, node=HAS_FOO, fresh=True) == Admitted()
    assert judge(pod, node=HAS_FOO) == Admitted()


def test_for_labels_and_more_the_node_is_not_looked_at_anew() -> None:
    assert judge(make_pod(affinity=WANTS_FOO, node_name="other")) == AFFINITY
    both = make_pod({"cpu": "1"}, affinity=WANTS_FOO)
    assert reason(judge(both)) == "OutOfcpu"


def test_a_pod_that_is_not_critical_moves_nobody() -> None:
    verdict = judge(make_pod({"cpu": "2"}), make_pod({"cpu": "9m"}))
    assert verdict == Rejected(
        "OutOfcpu", "Node didn't have enough resource: cpu, requested: 2000, used: 9, capacity: 10"
    )


@pytest.mark.parametrize("fields", [{"static": True}, {"priority": CRITICAL}])
def test_a_critical_pod_gets_the_room_of_others(fields: dict[str, Any]) -> None:
    victim = make_pod({"cpu": "9m"}, uid="victim")
    assert judge(make_pod({"cpu": "2m"}, **fields), victim) == Preempt((victim,), "cpu")


def test_a_critical_pod_that_even_an_empty_node_has_no_room_for_is_rejected() -> None:
    verdict = judge(
        make_pod({"cpu": "3"}, static=True), make_pod({"cpu": "9m"}), node=make_node(allocatable={"cpu": "1"})
    )
    assert verdict == Rejected(
        "UnexpectedAdmissionError",
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods "
        "to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 2000), ]",
        because="OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 9, capacity: 1000",
    )


def test_a_critical_pod_is_rejected_for_what_nobody_can_make_room_for() -> None:
    critical = pod_with_ports(80, static=True, node_name="other")
    assert reason(judge(critical, pod_with_ports(80), node=make_node(allocatable={"pods": "1"}))) == "NodeName"


def test_a_critical_pod_with_unfit_labels_and_no_room_is_rejected_for_its_labels() -> None:
    assert judge(make_pod({"cpu": "1"}, static=True, affinity=WANTS_FOO)) == AFFINITY


def test_nobody_is_ended_for_a_pod_that_is_refused_for_something_else() -> None:
    victim = make_pod({"cpu": "9m"}, uid="victim")
    critical = make_pod({"cpu": "2m"}, static=True, security_context=CONFINED)
    assert reason(judge(critical, victim)) == "AppArmor"
    assert reason(judge(make_pod({"cpu": "2m"}, static=True), victim, shutting_down=lambda: True)) == "NodeShutdown"


def test_strict_groups_wait_until_the_runtime_has_told_what_it_can_do() -> None:
    strict = make_pod(security_context=STRICT)
    assert judge(strict, abilities=lambda: None) == Wait("the container runtime has not told yet what it can do")
    assert reason(judge(strict)) == "SupplementalGroupsPolicyNotSupported"
    assert judge(strict, abilities=lambda: RuntimeAbilities(supplemental_groups_policy=True)) == Admitted()
    assert judge(make_pod(), abilities=lambda: None) == Admitted()


def test_the_first_refusal_counts() -> None:
    everything: dict[str, Any] = {
        "security_context": PodSecurityContext(
            sysctls=(Sysctl(name="kernel.msgmax", value="1"),),
            supplemental_groups_policy="Strict",
            app_armor_profile=AppArmorProfile(type="RuntimeDefault"),
        ),
        "os": PodOS(name="windows"),
        "node_name": "other",
        "host_network": True,
        "host_users": False,
        "resources": ResourceRequirements(limits={"cpu": Quantity("1")}),
    }
    parts: dict[str, Any] = {
        "shutting_down": lambda: True,
        "pressure": lambda: ("DiskPressure",),
        "takes_pod_level": False,
    }
    seen = []
    remedies: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({}, {"pressure": tuple}),
        ({}, {"sysctls": SysctlAllowList.of_node(("kernel.msg*",))}),
        ({"os": None}, {}),
        ({}, {"abilities": lambda: RuntimeAbilities(supplemental_groups_policy=True)}),
        ({"node_name": ""}, {}),
        ({}, {"machine": MachineFacts(2**30, apparmor=True)}),
        ({}, {"takes_pod_level": True}),
        ({"host_users": None}, {}),
    ]
    for change, remedy in remedies:
        everything |= change
        parts |= remedy
        seen.append(reason(judge(make_pod({}, **everything), **parts)))
    assert seen == [
        "Evicted",
        "SysctlForbidden",
        "PodOSNotSupported",
        "SupplementalGroupsPolicyNotSupported",
        "NodeName",
        "AppArmor",
        "PodLevelResourcesNotSupported",
        "PodFeatureUnsupported",
        "NodeShutdown",
    ]
    assert judge(make_pod({}, **everything), **parts | {"shutting_down": lambda: False}) == Admitted()


def test_what_others_take_is_what_they_ask_for_now() -> None:
    decides = admission()
    wanted, node = make_pod({"cpu": "5m"}, uid="new"), make_node()
    before, after = make_pod({"cpu": "5m"}, uid="other"), make_pod({"cpu": "6m"}, uid="other")
    assert decides.admit(wanted, [before], node=node, fresh=False) == Admitted()
    assert reason(decides.admit(wanted, [after], node=node, fresh=False)) == "OutOfcpu"
    assert decides.admit(wanted, [before], node=node, fresh=False) == Admitted()


def test_pods_that_have_gone_are_forgotten() -> None:
    decides, node = admission(), make_node(allocatable={"pods": "1000"})
    for generation in range(5):
        others = [make_pod(uid=f"{generation}-{index}") for index in range(60)]
        decides.admit(make_pod(uid="new"), others, node=node, fresh=False)
    assert len(decides._demands) <= 60 + 64


def test_pods_that_join_others_count_with_them_and_those_that_left_do_not() -> None:
    decides, node = admission(), make_node(allocatable={"cpu": "10m", "pods": "10"})
    others = [make_pod({"cpu": "4m"}, uid=f"other-{index}") for index in range(3)]

    def lacking(pods: list[Pod]) -> bool:
        return decides.admit(make_pod({"cpu": "3m"}, uid="new"), pods, node=node, fresh=False) != Admitted()

    assert [lacking(others[:count]) for count in (0, 1, 2, 3)] == [False, False, True, True]
    assert not lacking(others[1:2])
    assert lacking(others[1:])
    assert lacking([others[2], others[0]])
    assert not lacking([])


def test_ports_of_pods_that_join_others_are_held() -> None:
    decides, node = admission(), make_node()
    first, second = (pod_with_ports(port, uid=f"other-{port}") for port in (80, 443))

    def fits(port: int, *others: Pod) -> bool:
        return decides.admit(pod_with_ports(port, uid="new"), others, node=node, fresh=False) == Admitted()

    assert fits(443, first)
    assert not fits(443, first, second)
    assert not fits(80, first, second)
    assert fits(80, second)
