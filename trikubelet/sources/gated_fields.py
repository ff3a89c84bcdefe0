"""What a feature gate that is off takes from pods: the fields of its feature, as the API server drops them. Pure.

A pod passes here once, when it arrives. So no other part of the agent has to know these gates: what is not in the pod
is not done. Pods that need what this node does not declare are refused by admission instead, so their fields stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

import attrs

from trikubelet.api import RESTART_ALWAYS
from trikubelet.config.feature_gates import gate_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.api import Container, EnvVar, EphemeralContainer, Pod

_C = TypeVar("_C", bound="Container")

_RESTART_ALL: Final = "RestartAllContainers"
"""The action of a container's restart rule."""


def without_disabled_fields(gates: Mapping[str, bool]) -> Callable[[Pod], Pod] | None:
    """What is to be done to every pod; None: nothing, which is so unless somebody switches something off.

    `gates`: a configuration's `featureGates`.
    """
    changes = [change for gate, change in _CHANGES.items() if not gate_enabled(gates, gate)]
    if not gate_enabled(gates, "RestartAllContainersOnContainerExits") and not gate_enabled(
        gates, "NodeDeclaredFeatures"
    ):
        changes.append(_without_restarts_of_all)  # admission does not look at what nodes declare
    if not changes:
        return None

    def change_pod(pod: Pod) -> Pod:
        for change in changes:
            pod = change(pod)
        return pod

    return change_pod


def _without_hostname_override(pod: Pod) -> Pod:
    if pod.spec.hostname_override is None:
        return pod
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, hostname_override=None))


def _without_container_restart_rules(pod: Pod) -> Pod:
    """Sidecars stay: they are init containers that always restart."""

    def without_rules(container: _C) -> _C:
        return attrs.evolve(container, restart_policy_rules=()) if container.restart_policy_rules else container

    def init_container(container: Container) -> Container:
        sidecar = container.restart_policy in (None, RESTART_ALWAYS)
        return without_rules(container if sidecar else attrs.evolve(container, restart_policy=None))

    def main_container(container: Container) -> Container:
        return without_rules(
            container if container.restart_policy is None else attrs.evolve(container, restart_policy=None)
        )

    spec = pod.spec
    init, main = tuple(map(init_container, spec.init_containers)), tuple(map(main_container, spec.containers))
    return attrs.evolve(pod, spec=attrs.evolve(spec, init_containers=init, containers=main))


def _without_restarts_of_all(pod: Pod) -> Pod:
    def change(container: _C) -> _C:
        rules = container.restart_policy_rules
        left = tuple(rule for rule in rules if rule.action != _RESTART_ALL)
        return container if left == rules else attrs.evolve(container, restart_policy_rules=left)

    return _each_container(pod, change)


def _without_stop_signals(pod: Pod) -> Pod:
    def change(container: _C) -> _C:
        if container.lifecycle is None or container.lifecycle.stop_signal is None:
            return container
        return attrs.evolve(container, lifecycle=attrs.evolve(container.lifecycle, stop_signal=None))

    return _each_container(pod, change)


def _without_env_files(pod: Pod) -> Pod:
    """The variables stay, empty, as in the kubelet."""

    def variable(entry: EnvVar) -> EnvVar:
        from_file = entry.value_from is not None and entry.value_from.file_key_ref is not None
        return attrs.evolve(entry, value_from=None) if from_file else entry

    def change(container: _C) -> _C:
        return attrs.evolve(container, env=tuple(map(variable, container.env)))

    return _each_container(pod, change)


def _without_claim_of_extended_resources(pod: Pod) -> Pod:
    """What the scheduler took from drivers is then asked of device plugins, like any other extended resource."""
    if pod.status.extended_resource_claim_status is None:
        return pod
    return attrs.evolve(pod, status=attrs.evolve(pod.status, extended_resource_claim_status=None))


def _each_container(pod: Pod, change: Callable[[Container], Container]) -> Pod:
    spec = attrs.evolve(
        pod.spec,
        init_containers=tuple(map(change, pod.spec.init_containers)),
        containers=tuple(map(change, pod.spec.containers)),
        ephemeral_containers=tuple(cast("EphemeralContainer", change(one)) for one in pod.spec.ephemeral_containers),
    )
    return attrs.evolve(pod, spec=spec)


_CHANGES: Final[dict[str, Callable[[Pod], Pod]]] = {
    "HostnameOverride": _without_hostname_override,
    "ContainerRestartRules": _without_container_restart_rules,
    "ContainerStopSignals": _without_stop_signals,
    "EnvFiles": _without_env_files,
    "DRAExtendedResource": _without_claim_of_extended_resources,
}
"""By gate."""
