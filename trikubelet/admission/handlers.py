"""The checks of a pod beside whether it fits (kubelet: `lifecycle.PodAdmitHandler`s). Pure.

Each function is one question, and answers with the refusal; None: nothing to say against the pod. A pod that the node
cannot run as asked for fails at once and for good, with a reason that a controller can act on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.admission.declared_features import infer_for_scheduling, lack_of_features
from trikubelet.admission.predicates import MEMORY_PRESSURE, OS, OS_LABEL, tolerates
from trikubelet.admission.types import InfeasibleResize, Rejected
from trikubelet.api import POD_PENDING, QOS_BEST_EFFORT, QOS_GUARANTEED, qos_class
from trikubelet.api.pod_kinds import is_critical_pod
from trikubelet.api.qos import has_pod_level_resources
from trikubelet.api.security_context import APPARMOR_ANNOTATION, apparmor_profile
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trikubelet.admission.sysctls import SysctlAllowList
    from trikubelet.api import AppArmorProfile, Container, Pod
    from trikubelet.linux.machine_facts import MachineFacts

EVICTED: Final = "Evicted"
SYSCTL_FORBIDDEN: Final = "SysctlForbidden"
OS_LABEL_DOES_NOT_MATCH: Final = "PodOSSelectorNodeLabelDoesNotMatch"
OS_NOT_SUPPORTED: Final = "PodOSNotSupported"
SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED: Final = "SupplementalGroupsPolicyNotSupported"
UNEXPECTED_ADMISSION_ERROR: Final = "UnexpectedAdmissionError"
APPARMOR: Final = "AppArmor"
POD_LEVEL_RESOURCES_NOT_SUPPORTED: Final = "PodLevelResourcesNotSupported"
FEATURE_UNSUPPORTED: Final = "PodFeatureUnsupported"
NODE_SHUTDOWN: Final = "NodeShutdown"
INFEASIBLE: Final = "Infeasible"
RESTART_CONTAINER: Final = "RestartContainer"

_MEMORY_ONLY: Final = ("MemoryPressure",)


def under_pressure(pod: Pod, conditions: Sequence[str]) -> Rejected | None:
    """Under pressure, a node takes critical pods only (kubelet: eviction manager).

    When only memory is short, BestEffort pods are refused which do not tolerate the taint. `conditions` are the types
    of the node's conditions, as `DiskPressure`.
    """
    if not conditions or is_critical_pod(pod):
        return None
    if tuple(conditions) == _MEMORY_ONLY and (
        qos_class(pod) != QOS_BEST_EFFORT or tolerates(pod.spec.tolerations, MEMORY_PRESSURE)
    ):
        return None
    # The blank at the end is Kubernetes' own.
    return Rejected(EVICTED, f"The node had condition: [{' '.join(conditions)}]. ")


def forbidden_sysctl(pod: Pod, allowed: SysctlAllowList) -> Rejected | None:
    """Kernel settings that pods of this node may not ask for."""
    problem = allowed.problem(pod)
    return None if problem is None else Rejected(SYSCTL_FORBIDDEN, f"forbidden sysctl: {problem}")


def other_operating_system(pod: Pod) -> Rejected | None:
    """Pods for Windows; a *label* of the pod counts as if it were a selector."""
    if pod.metadata.labels.get(OS_LABEL, OS) != OS:
        message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        return Rejected(OS_LABEL_DOES_NOT_MATCH, message)
    if pod.spec.os is not None and pod.spec.os.name != OS:
        return Rejected(OS_NOT_SUPPORTED, "Failed to admit pod as the OS field doesn't match node OS")
    return None


def unsupported_groups_policy(*, supported: bool) -> Rejected | None:
    """For a pod that wants only the groups that it names: a runtime that cannot do that would give it more."""
    if supported:
        return None
    message = "SupplementalGroupsPolicy=Strict is not supported in this node"
    return Rejected(SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED, message)


def without_devices(problem: str | None) -> Rejected | None:
    """A pod that cannot get its devices (kubelet: `admission.GetPodAdmitResult`). `problem`: why, None if it can."""
    if problem is None:
        return None
    return Rejected(UNEXPECTED_ADMISSION_ERROR, f"Allocate failed due to {problem}, which is unexpected")


def unenforceable_apparmor(pod: Pod, machine: MachineFacts) -> Rejected | None:
    """A profile that would not be enforced. A pod that has started is not asked again."""
    if pod.status.phase not in ("", POD_PENDING):
        return None
    problem = apparmor_problem(pod, machine)
    return None if problem is None else Rejected(APPARMOR, f"Cannot enforce AppArmor: {problem}")


def unsupported_pod_level_resources(pod: Pod, *, supported: bool) -> Rejected | None:
    """A pod that asks for resources as a whole, where they are switched off: its containers' requests are not what it
    needs."""
    if supported or not has_pod_level_resources(pod):
        return None
    return Rejected(POD_LEVEL_RESOURCES_NOT_SUPPORTED, "PodLevelResources feature gate is disabled")


def missing_features(pod: Pod, declared: Collection[str]) -> Rejected | None:
    """Features that the pod needs and the node has not declared."""
    message = lack_of_features(infer_for_scheduling(pod), declared)
    return None if message is None else Rejected(FEATURE_UNSUPPORTED, message)


def shutting_down(*, now: bool) -> Rejected | None:
    """No pod starts on a node that goes down."""
    return Rejected(NODE_SHUTDOWN, "Pod was rejected as the node is shutting down.") if now else None


@frozen
class StaticPolicies:
    """Whether containers of Guaranteed pods have CPUs and memory for themselves, which cannot be resized."""

    cpus: bool = False
    memory: bool = False


def resize_infeasible(
    pod: Pod,
    allocated: Pod,
    *,
    pod_level: bool,
    may_swap: Callable[[Pod, Container], bool],
    static: StaticPolicies = StaticPolicies(),  # noqa: B008 - frozen
) -> InfeasibleResize | None:
    """Resizes that this node cannot do, whatever room there is (kubelet: `podResizesAdmitHandler`).

    `allocated`: the pod as it has been granted; `pod_level`: resources of pods as a whole can be resized; `may_swap`:
    a container of a pod may use swap, how much of it depends on its memory request.
    """
    if _changes_swap(pod, allocated, may_swap):
        message = "In-place resize of containers with swap is not supported."
        return InfeasibleResize(INFEASIBLE, message, "swap_limitation")
    if not pod_level and pod.spec.resources != allocated.spec.resources:
        message = "InPlacePodLevelResourcesVerticalScaling is disabled"
        return InfeasibleResize(INFEASIBLE, message, "plr_feature_gate_off")
    if qos_class(pod) != QOS_GUARANTEED:
        return None
    if static.cpus and _changes(pod, allocated, "cpu"):
        message = 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
        return InfeasibleResize(INFEASIBLE, message, "guaranteed_pod_cpu_manager_static_policy")
    if static.memory and _changes(pod, allocated, "memory"):
        message = 'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"'
        return InfeasibleResize(INFEASIBLE, message, "guaranteed_pod_memory_manager_static_policy")
    return None


def _changes(pod: Pod, allocated: Pod, resource: str) -> bool:
    """Whether a container requests another amount than it has."""
    before = {one.name: one for one in (*allocated.spec.containers, *allocated.spec.init_containers)}
    return any(
        one.name in before and one.resources.requests.get(resource) != before[one.name].resources.requests.get(resource)
        for one in (*pod.spec.containers, *pod.spec.init_containers)
    )


def _changes_swap(pod: Pod, allocated: Pod, may_swap: Callable[[Pod, Container], bool]) -> bool:
    before = {one.name: one for one in (*allocated.spec.containers, *allocated.spec.init_containers)}
    for after in (*pod.spec.containers, *pod.spec.init_containers):
        has = before.get(after.name)
        if has is None or _memory_request(after) == _memory_request(has) or _restarts_for_memory(has):
            continue
        if may_swap(pod, after) or may_swap(allocated, has):
            return True
    return False


def _memory_request(container: Container) -> int:
    amount = container.resources.requests.get("memory")
    return 0 if amount is None else amount.nanos


def _restarts_for_memory(container: Container) -> bool:
    policies = {policy.resource_name: policy.restart_policy for policy in container.resize_policy}
    return policies.get("memory") == RESTART_CONTAINER


def wants_strict_groups(pod: Pod) -> bool:
    """Whether the pod's processes shall have only the groups that it names, and none that the image gives them."""
    shared = pod.spec.security_context
    return shared is not None and shared.supplemental_groups_policy == "Strict"


def apparmor_problem(pod: Pod, machine: MachineFacts) -> str | None:
    """Why the AppArmor profiles that the pod names could not be enforced; None when they can, or none is named."""
    if not _wants_apparmor(pod):
        return None
    if not machine.apparmor:
        return "AppArmor is not enabled on the host"
    for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers):
        profile = apparmor_profile(pod, container)
        if profile is not None and profile.type == "Localhost" and not (profile.localhost_profile or "").strip():
            return f'invalid empty AppArmor profile name: "{profile.localhost_profile or ""}"'
    return None


def _wants_apparmor(pod: Pod) -> bool:
    """Whether any profile is named that is not the absence of one."""
    shared = pod.spec.security_context
    if shared is not None and _confines(shared.app_armor_profile):
        return True
    for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers):
        own = container.security_context
        if own is not None and _confines(own.app_armor_profile):
            return True
    return any(
        key.startswith(APPARMOR_ANNOTATION) and value != "unconfined" for key, value in pod.metadata.annotations.items()
    )


def _confines(profile: AppArmorProfile | None) -> bool:
    return profile is not None and profile.type != "Unconfined"
