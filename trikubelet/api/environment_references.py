"""The objects that a container's environment is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trikubelet.api import Container, EphemeralContainer


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
