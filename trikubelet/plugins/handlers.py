"""What all kinds of plugins have in common: their introduction, and the interface of a kind's handler."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from trikubelet.formats.values import frozen


@frozen
class Plugin:
    """A plugin as it introduced itself."""

    type: str
    """`CSIPlugin`, `DevicePlugin`, `DRAPlugin`."""
    name: str
    """Unique among the plugins of its type: the driver's, or the resource's."""
    endpoint: str
    """The path of the socket that it works on; often another one than it registered with."""
    versions: tuple[str, ...]
    """Of its own interface, in no particular order."""
    socket: Path
    """What it registered with."""

    def __str__(self) -> str:
        return f'{self.type} "{self.name}" at {self.endpoint}'


class PluginRefusedError(Exception):
    """A plugin cannot be used. The text is sent to the plugin."""


class PluginHandler(Protocol):
    """Uses the plugins of one type (kubelet: `cache.PluginHandler`).

    The calls for one name never overlap. A plugin may come with the name of another that is there still, a newer one
    of the same driver for instance: whether it may take its place is the handler's business, and once it has,
    `deregister` of the older one must not end the newer.
    """

    def validate(self, plugin: Plugin) -> None:
        """Raises PluginRefusedError."""
        ...

    async def register(self, plugin: Plugin) -> None:
        """Take the plugin into use. Raises PluginRefusedError; nothing of it is left then.

        It is cancelled when the plugin goes away meanwhile, and `deregister` follows.
        """
        ...

    async def deregister(self, plugin: Plugin) -> None:
        """The plugin is gone. Comes also after a `register` that was cancelled. Never fails."""
        ...
