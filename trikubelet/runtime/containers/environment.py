"""A container's environment: its variables in the order they are declared, references expanded, sources resolved.

Pure: the objects that variables come from have been fetched (`environment_objects`). Values of secrets need not be
text: bytes that are not UTF-8 are kept as surrogates, and become the same bytes again on their way to the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trikubelet.container.downward import Addresses, field_value, resource_value
from trikubelet.container.errors import ContainerConfigError
from trikubelet.container.expansion import expand_known
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.runtime.containers.env_file import EnvFileError, env_file_value
from trikubelet.runtime.containers.environment_objects import EnvironmentObjects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import (
        ConfigMapKeySelector,
        Container,
        EnvFromSource,
        EnvVarSource,
        FileKeySelector,
        Pod,
        Quantity,
        SecretKeySelector,
    )

T = TypeVar("T")


def container_environment(
    pod: Pod,
    container: Container,
    *,
    addresses: Addresses,
    allocatable: Mapping[str, Quantity],
    objects: EnvironmentObjects = EnvironmentObjects(),  # noqa: B008 - frozen
) -> dict[str, str]:
    """The variables of a container (kubelet: `makeEnvironmentVariables`).

    Those of services come last and give way to the pod's own. Raises ContainerConfigError.
    """
    variables: dict[str, str] = {}
    for source in container.env_from:
        variables |= {f"{source.prefix}{key}": value for key, value in _all_of(source, objects).items()}
    for variable in container.env:
        value: str | None = variable.value
        if value:
            value = expand_known(value, variables, objects.services)
        elif variable.value_from is not None:
            value = _from_source(variable.value_from, pod, container, addresses, allocatable, objects)
        if value is not None:
            variables[variable.name] = value
    return {**variables, **{name: value for name, value in objects.services.items() if name not in variables}}


def _all_of(source: EnvFromSource, objects: EnvironmentObjects) -> Mapping[str, str]:
    """Everything in a config map or secret; nothing when there is none and it is optional."""
    if source.config_map_ref is not None:
        config_map = _present(objects.config_maps[source.config_map_ref.name], source.config_map_ref.optional)
        return {} if config_map is None else config_map.data
    if source.secret_ref is not None:
        secret = _present(objects.secrets[source.secret_ref.name], source.secret_ref.optional)
        return {} if secret is None else {key: _text(value) for key, value in secret.data.items()}
    return {}


def _from_source(
    source: EnvVarSource,
    pod: Pod,
    container: Container,
    addresses: Addresses,
    allocatable: Mapping[str, Quantity],
    objects: EnvironmentObjects,
) -> str | None:
    """The value of a variable; None: there is none, and the variable is optional."""
    if source.field_ref is not None:
        return field_value(pod, source.field_ref.field_path, addresses)
    if source.resource_field_ref is not None:
        return resource_value(source.resource_field_ref, pod, container, allocatable)
    if source.config_map_key_ref is not None:
        return _config_map_key(source.config_map_key_ref, pod, objects)
    if source.secret_key_ref is not None:
        return _secret_key(source.secret_key_ref, pod, objects)
    if source.file_key_ref is not None:
        return _file_key(source.file_key_ref, objects)
    return ""


def _config_map_key(reference: ConfigMapKeySelector, pod: Pod, objects: EnvironmentObjects) -> str | None:
    config_map = _present(objects.config_maps[reference.name], reference.optional)
    if config_map is None:
        return None
    if reference.key not in config_map.data and not reference.optional:
        where = f"ConfigMap {pod.metadata.namespace}/{reference.name}"
        raise ContainerConfigError(f"couldn't find key {reference.key} in {where}")
    return config_map.data.get(reference.key)


def _secret_key(reference: SecretKeySelector, pod: Pod, objects: EnvironmentObjects) -> str | None:
    secret = _present(objects.secrets[reference.name], reference.optional)
    if secret is None:
        return None
    if reference.key in secret.data:
        return _text(secret.data[reference.key])
    if reference.optional:
        return None
    where = f"Secret {pod.metadata.namespace}/{reference.name}"
    raise ContainerConfigError(f"couldn't find key {reference.key} in {where}")


def _file_key(reference: FileKeySelector, objects: EnvironmentObjects) -> str | None:
    file = objects.files[reference.volume_name, reference.path]
    if isinstance(file, ContainerConfigError):
        raise file
    try:
        value = env_file_value(file.text, reference.key)
    except EnvFileError as error:
        raise ContainerConfigError("couldn't parse env file") from error
    if value:
        return value
    if reference.optional:
        return None
    raise ContainerConfigError(f'environment variable key "{reference.key}" not found in file "{file.path}"')


def _present(found: T | ObjectError, optional: bool | None) -> T | None:
    """The object; None where it does not exist and need not. Raises ContainerConfigError."""
    if not isinstance(found, ObjectError):
        return found
    if optional and found.problem == "not found":
        return None
    raise ContainerConfigError(found.message) from found


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
