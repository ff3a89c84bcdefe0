"""A container's environment: its variables in the order they are declared, references expanded, sources resolved.

The objects and files that variables come from are fetched first, once each. A lookup that fails is kept as a value:
`container_environment`, which is pure, knows whether the container can do without, and raises the first problem in the
order of the variables. Values of secrets need not be text: bytes that are not UTF-8 are kept as surrogates, and become
the same bytes again on their way to the runtime.

Files of variables are written by containers for later ones (`fileKeyRef`, KEP-3721). The format is a small part of a
shell's: `NAME='value'`, where the value may go over several lines and nothing in it is special; comments and empty
lines. A file in which anything else comes before the wanted variable is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from trikubelet.api import ConfigMap, Secret
from trikubelet.api.environment import config_map_names, secret_names
from trikubelet.container.downward import Addresses, field_value, resource_value
from trikubelet.container.errors import ContainerConfigError
from trikubelet.container.expansion import MOST_OF_ALL, TOO_LONG, ExpansionError, expand_known
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

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
    from trikubelet.kube_client.object_getter import ObjectGetter
    from trikubelet.runtime.containers.mounts import PodMounts
    from trikubelet.runtime.pod_files import PodFiles

T = TypeVar("T")
log = get_logger("runtime")
MAX_ENV_FILE: Final = 64 * 1024
"""Bytes."""
MOST_WORK: Final = 4 * MOST_OF_ALL
"""Bytes of all variables, those that give way to others of their name counted too."""
WORK_OF_ONE: Final = 128
"""What a variable counts beside its bytes."""
_BLANKS: Final = " \t"


@frozen
class EnvFile:
    """A file of variables in a volume of the pod."""

    path: str
    """On the node; users see it in the error about a missing variable."""
    text: str
    """Bytes that are not UTF-8 are kept as surrogates."""


@frozen
class EnvironmentObjects:
    """The objects that a container's environment names, or the errors of fetching them."""

    config_maps: Mapping[str, ConfigMap | ObjectError] = attrs.field(factory=dict)
    secrets: Mapping[str, Secret | ObjectError] = attrs.field(factory=dict)
    services: Mapping[str, str] = attrs.field(factory=dict)
    """The variables of the services that the pod may see."""
    files: Mapping[tuple[str, str], EnvFile | ContainerConfigError] = attrs.field(factory=dict)
    """By volume and path in it."""


def container_environment(
    pod: Pod,
    container: Container,
    *,
    addresses: Addresses,
    allocatable: Mapping[str, Quantity],
    objects: EnvironmentObjects = EnvironmentObjects(),  # noqa: B008 - frozen
) -> dict[str, str]:
    """The variables of a container (kubelet: `makeEnvironmentVariables`).

    Those of services come last and give way to the pod's own. `TOO_LONG` stands for a value that no process can be
    given, and for all that follows when there are too many. Raises ContainerConfigError.
    """
    variables: dict[str, str] = {}
    with suppress(ExpansionError):
        _add_variables(variables, pod, container, addresses, allocatable, objects)
    return variables


def _add_variables(
    variables: dict[str, str],
    pod: Pod,
    container: Container,
    addresses: Addresses,
    allocatable: Mapping[str, Quantity],
    objects: EnvironmentObjects,
) -> None:
    """Raises ExpansionError when there are too many, and ContainerConfigError."""
    files = {place: _AssignmentsOf(file) for place, file in objects.files.items() if isinstance(file, EnvFile)}
    size = work = 0

    def add(name: str, value: str) -> None:
        nonlocal size, work
        work += len(name) + len(value) + WORK_OF_ONE
        if work > MOST_WORK:  # variables may replace each other for ever
            raise ContainerConfigError(f"all that is said of the environment is longer than {MOST_WORK >> 20} MiB")
        size += len(name) + len(value) + 1 - (len(name) + len(variables[name]) + 1 if name in variables else 0)
        if size > MOST_OF_ALL:
            variables[name] = TOO_LONG
            raise ExpansionError(MOST_OF_ALL)
        variables[name] = value

    for source in container.env_from:
        for key, value in _all_of(source, objects).items():
            add(f"{source.prefix}{key}", value)
    for variable in container.env:
        given: str | None = variable.value
        if given:
            try:
                given = expand_known(given, variables, objects.services)
            except ExpansionError:
                given = TOO_LONG
        elif variable.value_from is not None:
            given = _from_source(variable.value_from, pod, container, addresses, allocatable, objects, files)
        if given is not None:
            add(variable.name, given)
    for name, value in objects.services.items():
        if name not in variables:
            add(name, value)


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
    files: Mapping[tuple[str, str], _AssignmentsOf],
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
        return _file_key(source.file_key_ref, objects, files)
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


def _file_key(
    reference: FileKeySelector, objects: EnvironmentObjects, files: Mapping[tuple[str, str], _AssignmentsOf]
) -> str | None:
    file = objects.files[reference.volume_name, reference.path]
    if isinstance(file, ContainerConfigError):
        raise file
    try:
        value = files[reference.volume_name, reference.path].value(reference.key)
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


@frozen
class EnvFileError(Exception):
    """A line of the file is not what the format allows. Says nothing of what is in it, which may be secret."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"invalid environment variable format at line {self.line}: {self.problem}"


def env_file_value(text: str, name: str) -> str:
    """The value of a variable; empty when the file does not have it (kubelet: `ParseEnv`). Raises EnvFileError.

    The first assignment counts, and what follows it is not looked at.
    """
    return _AssignmentsOf(EnvFile("", text)).value(name)


class _AssignmentsOf:
    """A file's, read once however many variables come from it, and no further than they need."""

    def __init__(self, file: EnvFile) -> None:
        self._rest = _assignments(file.text)
        self._found: dict[str, str] = {}
        self._error: EnvFileError | None = None

    def value(self, name: str) -> str:
        """As `env_file_value`."""
        if name in self._found:
            return self._found[name]
        if self._error is not None:
            raise self._error
        try:
            for found, value in self._rest:
                self._found.setdefault(found, value)
                if found == name:
                    return value
        except EnvFileError as error:
            self._error = error
            raise
        return ""


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    lines = enumerate((line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")), start=1)
    for number, line in lines:
        stripped = line.lstrip(_BLANKS)
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise EnvFileError(number, "missing '='")
        if not name.strip(_BLANKS):
            raise EnvFileError(number, "empty variable name")
        if name[-1] in _BLANKS:
            raise EnvFileError(number, "whitespace before '=' is not allowed")
        if value.startswith(tuple(_BLANKS)):
            # To a shell this is an empty value, and a command after it.
            yield name, ""
        elif value.startswith("'"):
            yield name, _quoted(value[1:], number, lines)
        else:
            raise EnvFileError(number, "value must be enclosed in single quotes")


def _quoted(line: str, began: int, lines: Iterator[tuple[int, str]]) -> str:
    """The text up to the closing quote, which may be on a later line."""
    number, parts = began, []
    while "'" not in line:
        parts.append(line)
        try:
            number, line = next(lines)
        except StopIteration:
            raise EnvFileError(began, "unclosed single quote") from None
    last, _, rest = line.partition("'")
    rest = rest.lstrip(_BLANKS)
    if rest and not rest.startswith("#"):
        raise EnvFileError(number, "unexpected content after closing quote")
    return "\n".join([*parts, last])
