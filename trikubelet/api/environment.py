"""Where a container's environment variables come from, and which objects they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field

from trikubelet.api.quantity import Quantity
from trikubelet.api.schema import REQUIRED, APIObject
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api.container import Container, EphemeralContainer


@frozen(repr=False)
class ObjectFieldSelector(APIObject):
    """A field of the pod itself, such as `metadata.name`."""

    api_version: str = ""
    field_path: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class ResourceFieldSelector(APIObject):
    """An amount that a container requests or is limited to, divided by `divisor` and rounded up."""

    container_name: str = ""
    resource: str = field(default="", metadata=REQUIRED)
    divisor: Quantity = field(default=Quantity())


@frozen(repr=False)
class ConfigMapKeySelector(APIObject):
    """One key of a config map."""

    name: str = ""
    key: str = field(default="", metadata=REQUIRED)
    optional: bool | None = None


@frozen(repr=False)
class SecretKeySelector(APIObject):
    """One key of a secret."""

    name: str = ""
    key: str = field(default="", metadata=REQUIRED)
    optional: bool | None = None


@frozen(repr=False)
class FileKeySelector(APIObject):
    """One key of a file in an emptyDir volume, written by an init container."""

    volume_name: str = field(default="", metadata=REQUIRED)
    path: str = field(default="", metadata=REQUIRED)
    key: str = field(default="", metadata=REQUIRED)
    optional: bool | None = None


@frozen(repr=False)
class EnvVarSource(APIObject):
    """Where the value of a variable comes from; exactly one field is set."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: ConfigMapKeySelector | None = None
    secret_key_ref: SecretKeySelector | None = None
    file_key_ref: FileKeySelector | None = None


@frozen(repr=False)
class EnvVar(APIObject):
    """One variable, given as text (with `$(NAME)` expanded) or by source."""

    name: str = field(default="", metadata=REQUIRED)
    value: str = ""
    value_from: EnvVarSource | None = None


@frozen(repr=False)
class ConfigMapEnvSource(APIObject):
    """All keys of a config map as variables."""

    name: str = ""
    optional: bool | None = None


@frozen(repr=False)
class SecretEnvSource(APIObject):
    """All keys of a secret as variables."""

    name: str = ""
    optional: bool | None = None


@frozen(repr=False)
class EnvFromSource(APIObject):
    """Many variables at once, each name with `prefix` in front."""

    prefix: str = ""
    config_map_ref: ConfigMapEnvSource | None = None
    secret_ref: SecretEnvSource | None = None


def config_map_names(container: Container | EphemeralContainer) -> list[str]:
    """The config maps that the container's variables come from, each once."""
    references = [source.config_map_ref for source in container.env_from]
    keys = [one.value_from.config_map_key_ref for one in container.env if one.value_from is not None]
    return list(dict.fromkeys(one.name for one in (*references, *keys) if one is not None))


def secret_names(container: Container | EphemeralContainer) -> list[str]:
    """The secrets that the container's variables come from, each once."""
    references = [source.secret_ref for source in container.env_from]
    keys = [one.value_from.secret_key_ref for one in container.env if one.value_from is not None]
    return list(dict.fromkeys(one.name for one in (*references, *keys) if one is not None))
