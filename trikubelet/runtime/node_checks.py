"""Whether this node can give a pod what it asks of the kernel and the runtime. Pure.

The kubelet asks this when it admits a pod: a pod that the node cannot run as asked for fails at once and for good, with
a reason that a controller can act on, instead of waiting for something that will not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.runtime.security import APPARMOR_ANNOTATION, apparmor_profile

if TYPE_CHECKING:
    from trikubelet.api import AppArmorProfile, Pod
    from trikubelet.node.runtime_state import RuntimeAbilities
    from trikubelet.runtime.options import MachineFacts
    from trikubelet.runtime.sysctls import SysctlAllowList

SYSCTL_FORBIDDEN: Final = "SysctlForbidden"
SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED: Final = "SupplementalGroupsPolicyNotSupported"
APPARMOR: Final = "AppArmor"


def rejection(
    pod: Pod, abilities: RuntimeAbilities, machine: MachineFacts, sysctls: SysctlAllowList
) -> tuple[str, str] | None:
    """Reason and message of a pod that cannot run here; None for all others. In the kubelet's order of checks.

    `abilities` are those of a runtime that has answered: one that was not asked yet can do nothing, and the pod would
    fail for it. For pods that have run on this node already, the question is no longer asked.
    """
    problem = sysctls.problem(pod)
    if problem is not None:
        return SYSCTL_FORBIDDEN, f"forbidden sysctl: {problem}"
    shared = pod.spec.security_context
    if (
        shared is not None
        and shared.supplemental_groups_policy == "Strict"
        and not abilities.supplemental_groups_policy
    ):
        return (
            SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED,
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        )
    problem = _apparmor_problem(pod, machine)
    if problem is not None and pod.status.phase in ("", "Pending"):
        return APPARMOR, f"Cannot enforce AppArmor: {problem}"
    return None


def _apparmor_problem(pod: Pod, machine: MachineFacts) -> str | None:
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
