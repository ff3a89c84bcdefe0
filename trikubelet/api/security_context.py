"""What a container's security context and its pod's say together (`pkg/securitycontext`, `pkg/security/apparmor`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from trikubelet.api import AppArmorProfile, Container, Pod, SecurityContext

APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
"""Followed by a container's name: where a profile was named before there was a field for it."""
_APPARMOR_LOCALHOST: Final = "localhost/"


def effective_security_context(pod: Pod, container: Container) -> SecurityContext:
    """The container's settings over the pod's (pkg/securitycontext: `DetermineEffectiveSecurityContext`)."""
    from trikubelet.api import SecurityContext

    own = container.security_context or SecurityContext()
    shared = pod.spec.security_context
    if shared is None:
        return own
    return attrs.evolve(
        own,
        se_linux_options=own.se_linux_options or shared.se_linux_options,
        run_as_user=shared.run_as_user if own.run_as_user is None else own.run_as_user,
        run_as_group=shared.run_as_group if own.run_as_group is None else own.run_as_group,
        run_as_non_root=shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root,
    )


def apparmor_profile(pod: Pod, container: Container) -> AppArmorProfile | None:
    """The container's field, else its old annotation where that can be read, else the pod's field."""
    from trikubelet.api import AppArmorProfile

    if container.security_context is not None and container.security_context.app_armor_profile is not None:
        return container.security_context.app_armor_profile
    annotation = pod.metadata.annotations.get(APPARMOR_ANNOTATION + container.name, "")
    if annotation == "runtime/default":
        return AppArmorProfile(type="RuntimeDefault")
    if annotation == "unconfined":
        return AppArmorProfile(type="Unconfined")
    if annotation.startswith(_APPARMOR_LOCALHOST):
        name = annotation.removeprefix(_APPARMOR_LOCALHOST)
        return AppArmorProfile(type="Localhost", localhost_profile=name)
    return None if pod.spec.security_context is None else pod.spec.security_context.app_armor_profile
