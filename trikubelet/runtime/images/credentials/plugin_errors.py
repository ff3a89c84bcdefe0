"""Why a plugin gave no credentials. For the log: the pull goes on without them."""

from __future__ import annotations

import attrs


@attrs.frozen
class PluginError(Exception):
    """No credentials from a plugin. The message quotes nothing of what the plugin printed on stdout."""

    message: str

    def __str__(self) -> str:
        return self.message
