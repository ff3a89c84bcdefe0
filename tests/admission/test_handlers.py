"""What is asked of a pod beside whether it fits."""

from __future__ import annotations

import pytest

from tests.admission.situations import container, make_pod
from trikubelet.admission import handlers
from trikubelet.admission.declared_features import (
    DECLARED,
    FAILED_CHECK,
    REGISTRY,
    declared,
    infer_for_scheduling,
    infer_for_update,
    update_problem,
)
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.admission.types import Rejected
from trikubelet.api import (
    AppArmorProfile,
    Container,
    ContainerRestartRule,
    Pod,
    PodOS,
    PodSecurityContext,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Sysctl,
    Toleration,
)
from trikubelet.linux.machine_facts import MachineFacts

MEMORY, DISK = ("MemoryPressure",), ("DiskPressure",)
PUTS_UP_WITH_IT = Toleration(key="node.kubernetes.io/memory-pressure", operator="Exists", effect="NoSchedule")


@pytest.mark.parametrize(
    ("pod", "conditions", "expected"),
    [
        (make_pod({}), (), None),
        (make_pod({}), MEMORY, "The node had condition: [MemoryPressure]. "),
        (make_pod({"cpu": "1"}), MEMORY, None),
        (make_pod({}, tolerations=(PUTS_UP_WITH_IT,)), MEMORY, None),
        (make_pod({}, tolerations=(PUTS_UP_WITH_IT,)), DISK, "The node had condition: [DiskPressure]. "),
        (make_pod({"cpu": "1"}), DISK, "The node had condition: [DiskPressure]. "),
        (make_pod({"cpu": "1"}), (*MEMORY, *DISK), "The node had condition: [MemoryPressure DiskPressure]. "),
        (make_pod({}, static=True), (*MEMORY, *DISK), None),
        (make_pod({}, priority=2_000_000_000), DISK, None),
    ],
)
def test_a_node_that_runs_out_of_something(pod: Pod, conditions: tuple[str, ...], expected: str | None) -> None:
    answer = handlers.under_pressure(pod, conditions)
    assert answer == (None if expected is None else Rejected("Evicted", expected))


def test_sysctls_that_are_not_allowed() -> None:
    pod = make_pod(security_context=PodSecurityContext(sysctls=(Sysctl(name="kernel/msgmax", value="1"),)))
    refused = Rejected("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
    assert handlers.forbidden_sysctl(pod, SysctlAllowList.of_node()) == refused
    assert handlers.forbidden_sysctl(pod, SysctlAllowList.of_node(("kernel.msg*",))) is None


def test_pods_for_another_operating_system() -> None:
    assert handlers.other_operating_system(make_pod()) is None
    assert handlers.other_operating_system(make_pod(labels={"kubernetes.io/os": "linux"})) is None
    assert handlers.other_operating_system(make_pod(os=PodOS(name="linux"))) is None
    assert handlers.other_operating_system(make_pod(labels={"kubernetes.io/os": "dummyOS"})) == Rejected(
        "PodOSSelectorNodeLabelDoesNotMatch",
        "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    )
    assert handlers.other_operating_system(make_pod(os=PodOS(name="windows"))) == Rejected(
        "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
    )


def test_strict_groups_need_a_runtime_that_knows_them() -> None:
    assert handlers.unsupported_groups_policy(supported=True) is None
    assert handlers.unsupported_groups_policy(supported=False) == Rejected(
        "SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"
    )


@pytest.mark.parametrize(
    ("phase", "armored", "admitted"),
    [("", False, False), ("Pending", False, False), ("Running", False, True), ("Pending", True, True)],
)
def test_apparmor_is_asked_of_pods_that_have_not_started(phase: str, armored: bool, admitted: bool) -> None:
    profile = AppArmorProfile(type="RuntimeDefault")
    pod = make_pod(security_context=PodSecurityContext(app_armor_profile=profile), status=PodStatus(phase=phase))
    answer = handlers.unenforceable_apparmor(pod, MachineFacts(2**30, apparmor=armored))
    refused = Rejected("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
    assert answer == (None if admitted else refused)


def test_no_pod_starts_on_a_node_that_goes_down() -> None:
    assert handlers.shutting_down(now=False) is None
    refused = Rejected("NodeShutdown", "Pod was rejected as the node is shutting down.")
    assert handlers.shutting_down(now=True) == refused


RESTARTS = (ContainerRestartRule(action="RestartAllContainers"),)
RESTART_ALL = "RestartAllContainersOnContainerExits"
HOST_NETWORK_USERS = "UserNamespacesHostNetworkSupport"


@pytest.mark.parametrize(
    ("pod", "needed"),
    [
        (make_pod({}), ()),
        (make_pod(containers=(Container(name="a", restart_policy_rules=RESTARTS),)), (RESTART_ALL,)),
        (make_pod({}, init=(Container(name="a", restart_policy_rules=RESTARTS),)), (RESTART_ALL,)),
        (make_pod(containers=(Container(name="a", restart_policy_rules=(ContainerRestartRule("Restart"),)),)), ()),
        (make_pod({}, host_network=True, host_users=False), (HOST_NETWORK_USERS,)),
        (make_pod({}, host_network=True), ()),
        (make_pod({}, host_network=True, host_users=True), ()),
        (make_pod({}, host_users=False), ()),
    ],
)
def test_features_that_a_pod_needs(pod: Pod, needed: tuple[str, ...]) -> None:
    assert infer_for_scheduling(pod) == needed


def test_a_pod_is_refused_for_features_that_the_node_has_not() -> None:
    restarts = make_pod(containers=(Container(name="a", restart_policy_rules=RESTARTS),))
    both = make_pod(
        containers=(Container(name="a", restart_policy_rules=RESTARTS),), host_network=True, host_users=False
    )
    assert handlers.missing_features(restarts, DECLARED) is None
    assert handlers.missing_features(both, DECLARED) == Rejected(
        "PodFeatureUnsupported", f"Pod requires node features that are not available: {HOST_NETWORK_USERS}"
    )
    assert handlers.missing_features(both, ()) == Rejected(
        "PodFeatureUnsupported",
        f"Pod requires node features that are not available: {RESTART_ALL}, {HOST_NETWORK_USERS}",
    )


INIT = container({"cpu": "1"}, name="init")
BIGGER_INIT = container({"cpu": "2"}, name="init")
SIDECAR = container({"cpu": "1"}, name="proxy", restart_policy="Always")
BIGGER_SIDECAR = container({"cpu": "2"}, name="proxy", restart_policy="Always")
POD_LEVEL = "InPlacePodLevelResourcesVerticalScaling"
INIT_RESIZE = "InPlacePodVerticalScalingInitContainers"


@pytest.mark.parametrize(
    ("old", "new", "needed"),
    [
        (make_pod({}), make_pod({"cpu": "1"}), ()),
        (make_pod({}), make_pod({}, resources=ResourceRequirements()), (POD_LEVEL,)),
        (make_pod({}, resources=ResourceRequirements()), make_pod({}, resources=ResourceRequirements()), ()),
        (make_pod({}, init=(INIT, SIDECAR)), make_pod({}, init=(INIT, BIGGER_SIDECAR)), ()),
        (make_pod({}, init=(INIT, SIDECAR)), make_pod({}, init=(BIGGER_INIT, SIDECAR)), (INIT_RESIZE,)),
        (make_pod({}, init=(INIT,)), make_pod({}, init=()), ()),
    ],
)
def test_features_that_an_update_needs(old: Pod, new: Pod, needed: tuple[str, ...]) -> None:
    assert infer_for_update(old, new) == needed


def test_an_update_that_needs_what_the_node_has_not_is_told_of() -> None:
    old, new = make_pod({}, init=(INIT,)), make_pod({}, init=(BIGGER_INIT,))
    assert update_problem(old, new, ()) == f"Pod requires node features that are not available: {INIT_RESIZE}"
    assert update_problem(old, new, {INIT_RESIZE}) is None
    assert update_problem(old, old, ()) is None
    assert FAILED_CHECK == "FailedNodeDeclaredFeaturesCheck"


def test_features_are_declared_in_alphabetical_order() -> None:
    names = [feature.name for feature in REGISTRY]
    assert names == sorted(names)
    assert declared(["Unheard", *reversed(names)]) == tuple(names)
    assert set(DECLARED) <= set(names)


@pytest.mark.parametrize(
    ("resources", "refused"),
    [
        (None, False),
        (ResourceRequirements(), False),
        (ResourceRequirements(limits={"example.com/gpu": Quantity("1")}), False),
        (ResourceRequirements(requests={"memory": Quantity("1")}), True),
        (ResourceRequirements(limits={"hugepages-2Mi": Quantity("2Mi")}), True),
    ],
)
def test_pods_with_resources_as_a_whole_are_refused_where_they_are_switched_off(
    resources: ResourceRequirements | None, refused: bool
) -> None:
    pod = make_pod(resources=resources)
    assert handlers.unsupported_pod_level_resources(pod, supported=True) is None
    expected = Rejected("PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled")
    assert handlers.unsupported_pod_level_resources(pod, supported=False) == (expected if refused else None)
