"""A Secret as files. Pure (kubelet: `secret.MakePayload`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.volumes.payload.files import choose, mode_of_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import KeyToPath, Secret
    from trikubelet.volumes.payload.files import Payload


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
