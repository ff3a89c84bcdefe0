"""A container's environment: its variables in the order they are declared, references expanded, sources resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.runtime.downward import Addresses, field_value, resource_value
from trikubelet.runtime.errors import ContainerConfigError
from trikubelet.runtime.expansion import expand_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Container, EnvVarSource, Pod, Quantity


def container_environment(
    pod: Pod,
    container: Container,
    *,
    addresses: Addresses,
    allocatable: Mapping[str, Quantity],
    services: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables of a container (kubelet: `makeEnvironmentVariables`).

    `services`: the variables of the services that the pod may see; the pod's own variables win over them.
    Raises ContainerConfigError.
    """
    services = services or {}
    variables: dict[str, str] = {}
    for source in container.env_from:
        _refuse(pod, "configMap", source.config_map_ref)
        _refuse(pod, "secret", source.secret_ref)
    for variable in container.env:
        value: str | None = variable.value
        if value:
            value = expand_known(value, variables, services)
        elif variable.value_from is not None:
            value = _from_source(variable.value_from, pod, container, addresses, allocatable)
        variables[variable.name] = value or ""
    return {**variables, **{name: value for name, value in services.items() if name not in variables}}


def _from_source(
    source: EnvVarSource, pod: Pod, container: Container, addresses: Addresses, allocatable: Mapping[str, Quantity]
) -> str:
    if source.field_ref is not None:
        return field_value(pod, source.field_ref.field_path, addresses)
    if source.resource_field_ref is not None:
        return resource_value(source.resource_field_ref, pod, container, allocatable)
    _refuse(pod, "configMap", source.config_map_key_ref)
    _refuse(pod, "secret", source.secret_key_ref)
    if source.file_key_ref is not None:
        raise ContainerConfigError("fileKeyRef is not supported yet")
    return ""


def _refuse(pod: Pod, kind: str, reference: object) -> None:
    """Config maps and secrets come from an API server, and there is none yet."""
    if reference is not None:
        name = getattr(reference, "name", "")
        raise ContainerConfigError(f"couldn't get {kind} {pod.metadata.namespace}/{name}, no kubeClient defined")
