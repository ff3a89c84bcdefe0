"""What a container's environment is made of beyond its pod: fetched here, once each, before the environment is built.

A lookup that fails is no error yet: whether the container can do without is for the environment to say, which names the
first problem in the order of the variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import attrs

from trikubelet.api import ConfigMap, Secret
from trikubelet.api.environment import config_map_names, secret_names
from trikubelet.container.errors import ContainerConfigError
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.runtime.containers.env_file import MAX_ENV_FILE
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from trikubelet.api import Container, FileKeySelector, Pod
    from trikubelet.kube_client.object_getter import ObjectGetter
    from trikubelet.runtime.containers.mounts import PodMounts
    from trikubelet.runtime.pod_files import PodFiles

log = get_logger("runtime")

T = TypeVar("T")


@attrs.frozen
class EnvFile:
    """A file of variables in a volume of the pod."""

    path: str
    """On the node; users see it in the error about a missing variable."""
    text: str
    """Bytes that are not UTF-8 are kept as surrogates."""


@attrs.frozen
class EnvironmentObjects:
    """What a container's environment names, or why it could not be had."""

    config_maps: Mapping[str, ConfigMap | ObjectError] = attrs.field(factory=dict)
    secrets: Mapping[str, Secret | ObjectError] = attrs.field(factory=dict)
    services: Mapping[str, str] = attrs.field(factory=dict)
    """The variables of the services that the pod may see."""
    files: Mapping[tuple[str, str], EnvFile | ContainerConfigError] = attrs.field(factory=dict)
    """By volume and path in it."""


async def gather_objects(objects: ObjectGetter, pod: Pod, container: Container) -> EnvironmentObjects:
    """Fetch the config maps, secrets and service variables of a container. Raises ContainerConfigError."""
    namespace = pod.metadata.namespace
    try:
        services = await objects.service_variables(pod)
    except ObjectError as error:
        raise ContainerConfigError(error.message) from error
    return EnvironmentObjects(
        config_maps=await _fetch(objects.config_map, namespace, config_map_names(container)),
        secrets=await _fetch(objects.secret, namespace, secret_names(container)),
        services=services,
    )


async def gather_env_files(
    files: PodFiles, mounts: PodMounts, pod: Pod, container: Container
) -> dict[tuple[str, str], EnvFile | ContainerConfigError]:
    """Read the files that a container's variables come from, each once."""
    found: dict[tuple[str, str], EnvFile | ContainerConfigError] = {}
    for variable in container.env:
        reference = None if variable.value_from is None else variable.value_from.file_key_ref
        if reference is not None and (reference.volume_name, reference.path) not in found:
            found[reference.volume_name, reference.path] = await _read(files, mounts, pod, reference)
    return found


async def _fetch(
    get: Callable[[str, str], Awaitable[T]], namespace: str, names: Iterable[str]
) -> dict[str, T | ObjectError]:
    found: dict[str, T | ObjectError] = {}
    for name in names:
        try:
            found[name] = await get(namespace, name)
        except ObjectError as error:
            found[name] = error
    return found


async def _read(
    files: PodFiles, mounts: PodMounts, pod: Pod, reference: FileKeySelector
) -> EnvFile | ContainerConfigError:
    volume = mounts.host_path(pod, reference.volume_name)
    if volume is None:
        return ContainerConfigError(f'cannot find the volume "{reference.volume_name}" referenced by FileKeyRef')
    try:
        content = await files.read_in_volume(volume, reference.path, MAX_ENV_FILE)
    except (OSError, ValueError) as error:
        # The details are about the node's files, which are not the pod's to know.
        path = str(volume / reference.path)
        log.warning("environment file cannot be read", pod=pod.full_name, path=path, problem=str(error))
        return ContainerConfigError("couldn't parse env file")
    return EnvFile(str(volume / reference.path), content.decode(errors="surrogateescape"))
