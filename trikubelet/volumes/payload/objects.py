"""A ConfigMap or a Secret as files. Pure (kubelet: `configmap.MakePayload`, `secret.MakePayload`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.volumes.payload.files import choose, mode_of_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import ConfigMap, KeyToPath, Secret
    from trikubelet.volumes.payload.files import Payload


def config_map_payload(
    config_map: ConfigMap | None, items: Sequence[KeyToPath], *, default_mode: int | None, optional: bool
) -> Payload:
    """None: there is no such object, and need not be. Raises PayloadError."""
    values: dict[str, bytes] = {}
    if config_map is not None:
        # The API server sees to it that a key is in one of the two only.
        values = {**{key: text.encode() for key, text in config_map.data.items()}, **config_map.binary_data}
    return choose(
        values,
        items,
        default_mode=mode_of_files(default_mode),
        optional=optional,
        missing="configmap references non-existent config key",
    )


def secret_payload(
    secret: Secret | None, items: Sequence[KeyToPath], *, default_mode: int | None, optional: bool
) -> Payload:
    """None: there is no such object, and need not be. Raises PayloadError."""
    return choose(
        {} if secret is None else secret.data,
        items,
        default_mode=mode_of_files(default_mode),
        optional=optional,
        missing="references non-existent secret key",
    )
