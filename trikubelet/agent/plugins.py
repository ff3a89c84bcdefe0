"""Plugins that come to the agent by themselves, over sockets in `plugins_registry`: CSI drivers, device plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.linux.selinux import PLUGIN_FOLDERS, set_label
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import layout

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.plugins.handlers import PluginHandler
    from trikubelet.plugins.registration import PluginRegistrar, PluginStatus

log = get_logger("plugins")


def label_folders(root: Path) -> None:
    """Let plugins that run in confined containers use the folders for their sockets. Only with SELinux."""
    from trikubelet.node.devices.server import FOLDER

    for folder in (layout.registration_directory(root), layout.plugins_directory(root), root / FOLDER):
        try:
            folder.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
            set_label(folder, PLUGIN_FOLDERS)
        except OSError as error:
            log.warning("unprivileged containers of plugins may not work", folder=str(folder), problem=str(error))


class AgentPlugins:
    """Registers plugins with the handler of their type. Handlers are added before `run`."""

    def __init__(self, root: Path, rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._handlers: dict[str, PluginHandler] = {}
        self._registrar: PluginRegistrar | None = None

    def statistics(self) -> list[PluginStatus]:
        """Of all sockets."""
        return [] if self._registrar is None else self._registrar.statistics()

    def add_handler(self, type_: str, handler: PluginHandler) -> None:
        self._handlers[type_] = handler

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; returns at once without a handler. Started at once."""
        task_status.started()
        if not self._handlers:
            return
        from trikubelet.plugins.registration import PluginRegistrar
        from trikubelet.plugins.watcher import SocketWatch

        with SocketWatch(layout.registration_directory(self._root.resolve())) as sockets:
            self._registrar = PluginRegistrar(sockets, self._handlers, rng=self._rng)
            await self._registrar.run()
