"""Plugins that come to the agent by themselves, over sockets in `plugins_registry`: CSI drivers, device plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.volumes import layout

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.plugins.handlers import PluginHandler


class AgentPlugins:
    """Registers plugins with the handler of their type. Handlers are added before `run`."""

    def __init__(self, root: Path, rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._handlers: dict[str, PluginHandler] = {}

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
            await PluginRegistrar(sockets, self._handlers, rng=self._rng).run()
