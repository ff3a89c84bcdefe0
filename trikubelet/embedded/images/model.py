"""Images as values: what the runtime needs to know of one, and the limits an archive must keep."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.formats.values import frozen

_MOST_CONFIG_CHARACTERS = 2**19
"""What an image wants is in memory as long as the image is there. Of an environment, Linux takes 2 MiB."""


class LayerFormat(enum.Enum):
    """How unpacked layers lie on disk.

    OVERLAY: one directory per layer, deletions marked as overlayfs wants them; needs privileges.
    FLAT: the layers applied over each other into one directory.
    """

    OVERLAY = "overlay"
    FLAT = "flat"


@frozen
class UnpackLimits:
    """What one image may take at most: against archives made to fill the disk (bombs, huge sparse files)."""

    max_bytes: int = 64 * 2**30
    """Unpacked file contents."""
    max_entries: int = 2_000_000
    max_depth: int = 200
    """Nested directories in a path."""
    max_document_bytes: int = 4 * 2**20
    """One JSON document (index, manifest, configuration), or one extended header of a tar entry."""
    max_archive_entries: int = 100_000
    """Files in the archive itself."""
    max_kept_bytes: int = 32 * 2**20
    """Memory for what an import keeps: names, and documents. An image of a million files with ordinary names fits."""

    @property
    def max_layer_bytes(self) -> int:
        """A layer's tar stream: contents and headers."""
        return self.max_bytes + 4096 * self.max_entries


@frozen
class ImageConfig:
    """How an image wants to be run: the `config` part of an OCI image configuration. Environment is `NAME=value`."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""
    """`user[:group]`, by name or number; empty means root."""
    stop_signal: str = ""
    """By name or number; empty means SIGTERM."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    volumes: tuple[str, ...] = ()


@frozen
class ImageDocuments:
    """What an image was described by. It may be long, and only saving the image needs it, so it stays on disk."""

    spec: Mapping[str, Any]
    """The OCI image configuration as it was in the archive."""
    texts: tuple[str, ...] = ()
    """The configuration, its manifest, and the indexes that led to it, as they came, those that did. None of an image
    that an earlier release brought in."""


@frozen
class StoredImage:
    """An image that containers can be made of."""

    id: str
    """`sha256:…`, the digest of the image's configuration."""
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    """Bytes of the unpacked files. Layers that images share count in each."""
    config: ImageConfig
    layers: tuple[Path, ...]
    """Unpacked directories, lowest first. A FLAT image and the host image have exactly one."""
    is_host: bool = False
    pinned: bool = False
    imported_at: datetime | None = None
    pulled: tuple[str, ...] = ()
    """Those of its names (tags and digests) that came from a registry. The others were imported: a pod's pull does not
    change what they mean, only one that is asked for by hand does."""
    layer_format: LayerFormat = LayerFormat.FLAT

    @property
    def name(self) -> str:
        """What to call it towards people: its first tag, else its first digest, else its id."""
        return next(iter((*self.repo_tags, *self.repo_digests)), self.id)


def config_from_spec(spec: Mapping[str, Any]) -> ImageConfig:
    """Read the runtime's part of an OCI (or Docker) image configuration. Raises ArchiveError for wrong types.

    Images in the store are read by this, so it must take whatever an earlier release took: what only new images have to
    keep to belongs into `check_config_size`.
    """
    config = spec.get("config") or {}
    if not isinstance(config, Mapping):
        raise ArchiveError(f"image configuration: expected an object in 'config', got {type(config).__name__}")
    return ImageConfig(
        entrypoint=_strings(config, "Entrypoint"),
        cmd=_strings(config, "Cmd"),
        env=_strings(config, "Env"),
        working_dir=_string(config, "WorkingDir"),
        user=_string(config, "User"),
        stop_signal=_string(config, "StopSignal"),
        labels=_string_map(config, "Labels"),
        volumes=tuple(sorted(_object(config, "Volumes"))),
    )


def check_config_size(spec: Mapping[str, Any]) -> None:
    """Raise ArchiveError for an image that comes in and wants more than can stay in memory."""
    if (size := sum(map(len, _texts_in(spec.get("config"))))) > _MOST_CONFIG_CHARACTERS:
        raise ArchiveError(f"image configuration: 'config' has {size} characters, more than {_MOST_CONFIG_CHARACTERS}")


def _texts_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts_in(item)
        case dict():
            for key, item in value.items():
                yield key
                yield from _texts_in(item)


def _wrong(field: str, expected: str, value: object) -> ArchiveError:
    return ArchiveError(f"image configuration: expected {expected} in 'config.{field}', got {type(value).__name__}")


def _string(config: Mapping[str, Any], field: str) -> str:
    value = config.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(field, "a string", value)
    return value


def _strings(config: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = config.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(field, "a list of strings", value)
    return tuple(value)


def _object(config: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = config.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(field, "an object", value)
    return value


def _string_map(config: Mapping[str, Any], field: str) -> Mapping[str, str]:
    value = _object(config, field)
    if not all(isinstance(item, str) for item in value.values()):
        raise _wrong(field, "an object of strings", value)
    return value
