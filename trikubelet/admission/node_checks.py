"""Whether this node can give a pod what it asks of the kernel and the runtime. Pure.

The kubelet asks this when it admits a pod: a pod that the node cannot run as asked for fails at once and for good, with
a reason that a controller can act on, instead of waiting for something that will not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api.security_context import APPARMOR_ANNOTATION, apparmor_profile

if TYPE_CHECKING:
    from trikubelet.api import AppArmorProfile, Pod
    from trikubelet.linux.machine_facts import MachineFacts


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
