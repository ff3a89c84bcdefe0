"""Takes CSI drivers into use when they register, and tells the cluster of them (kubelet: `csi.RegistrationHandler`,
`csiNodeUpdater`).

A driver that may be used is put among the `Drivers` at once, so that volumes that are on the node already can be served
while the API server is away. Then it is asked what it calls this node, where in its topology the node is and how many
volumes the node can take (NodeGetInfo), and the API server gets it (`volumes.csi.node_info`). Only then it is
registered.

Some drivers' limits change while they run: a CSIDriver object may ask to look again every few seconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.plugins.handlers import PluginRefusedError
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.csi.client import CSIError
from trikubelet.volumes.csi.drivers import Driver
from trikubelet.volumes.csi.node_info import DriverEntryError, DriverOnNode
from trikubelet.volumes.errors import TransientVolumeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_typing import TaskStatus

    from trikubelet.broadcast import Subscription
    from trikubelet.kube_client.volume_objects import StorageObjects
    from trikubelet.plugins.handlers import Plugin
    from trikubelet.volumes.csi.drivers import Drivers
    from trikubelet.volumes.csi.node_info import DriverEntries

PLUGIN_TYPE: Final = "CSIPlugin"
MAJOR: Final = 1
"""Of CSI. Drivers of a later one need not work with this agent, those of 0 do not."""
_VERSION: Final = re.compile(r"\s*v?(\d+(?:\.\d+)+)", re.ASCII)

log = get_logger("csi")


def highest_version(versions: Sequence[str]) -> str:
    """The newest version of CSI 1 among those that a driver speaks (`HighestSupportedVersion`). Raises ValueError."""
    if not versions:
        raise ValueError("Plugin returned an empty list for supported versions")
    known = {text: numbers for text in versions if (numbers := version_numbers(text))[:1] == (MAJOR,)}
    if not known:
        raise ValueError(
            f"None of the versions specified {list(versions)} are supported. "
            f"err=expected a version of CSI {MAJOR}, for example 1.0.0"
        )
    return max(known, key=lambda text: known[text])


def version_numbers(text: str) -> tuple[int, ...]:
    """`v1.3.0-rc1` → (1, 3), which compares; empty for what is no version."""
    found = _VERSION.match(text)
    numbers = [] if found is None else [int(number) for number in found[1].split(".")]
    while numbers and numbers[-1] == 0 and len(numbers) > 1:
        del numbers[-1]
    return tuple(numbers)


@define
class _Updates:
    """A driver whose limit is looked at again and again."""

    period: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class CSIRegistration:
    """A `PluginHandler` for CSI drivers."""

    def __init__(
        self, drivers: Drivers, *, entries: DriverEntries | None = None, storage: StorageObjects | None = None
    ) -> None:
        """Without `entries` and `storage`, those of a cluster, drivers just can be used."""
        self._drivers = drivers
        self._entries = entries
        self._storage = storage
        self._registered: dict[str, Plugin] = {}
        self._updates: dict[str, _Updates] = {}

    def validate(self, plugin: Plugin) -> None:
        """Refuses what speaks no version that we know, and a name that another driver has, unless it is newer."""
        try:
            self._accepted_version(plugin, "ValidatePlugin")
        except PluginRefusedError as error:
            text = f"validation failed for CSI Driver {plugin.name} at endpoint {plugin.endpoint}: {error}"
            raise PluginRefusedError(text) from error

    async def register(self, plugin: Plugin) -> None:
        """Waits for an API server that is away; the driver can be used meanwhile."""
        version = self._accepted_version(plugin, "RegisterPlugin")
        self._registered[plugin.name] = plugin
        self._drivers.add(Driver(plugin.name, plugin.endpoint, version))
        try:
            found = await self._info(plugin.name)
            if self._entries is not None:
                await self._entries.install(found)
        except (CSIError, TransientVolumeError, DriverEntryError) as error:
            await self.deregister(plugin)
            raise PluginRefusedError(_error_text(error)) from error

    async def deregister(self, plugin: Plugin) -> None:
        """Nothing happens when a newer driver has taken its name. Cancelled, the API server gets it later."""
        if self._registered.get(plugin.name) != plugin:
            return
        del self._registered[plugin.name]
        self._drivers.remove(plugin.name, plugin.endpoint)
        if self._entries is not None:
            await self._entries.uninstall(plugin.name)

    async def update(self, name: str) -> None:
        """Ask a driver anew how many volumes the node can take, and tell the cluster; never fails."""
        if self._entries is None:
            return
        try:
            await self._entries.update(await self._info(name))
        except (CSIError, TransientVolumeError, DriverEntryError) as error:
            log.error("Failed to update CSIDriver", driver=name, error=_error_text(error))

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do so as often as CSIDriver objects ask for it, until cancelled. Started at once."""
        task_status.started()
        if self._storage is None or self._entries is None:
            return
        with self._drivers.changes.subscribe().also(self._storage.csi_driver_changes) as changes:
            async with trio.open_nursery() as nursery:
                await supervise(self._follow_changes, nursery, changes)

    async def _follow_changes(self, nursery: trio.Nursery, changes: Subscription[str]) -> None:
        self._follow_periods(nursery)
        async for _ in changes:
            self._follow_periods(nursery)

    def _follow_periods(self, nursery: trio.Nursery) -> None:
        wanted = {name: period for name in self._drivers.names() if (period := self._period(name))}
        for name, running in list(self._updates.items()):
            if wanted.get(name) != running.period:
                self._updates.pop(name).scope.cancel()
        for name in wanted.keys() - self._updates.keys():
            self._updates[name] = _Updates(wanted[name])
            nursery.start_soon(self._keep_updated, name, self._updates[name])

    async def _keep_updated(self, name: str, updates: _Updates) -> None:
        with updates.scope:
            await supervise(self._update_now_and_then, name, updates.period)

    async def _update_now_and_then(self, name: str, period: float) -> None:
        while True:
            await trio.sleep(period)
            await self.update(name)

    def _period(self, name: str) -> int | None:
        """Seconds; None where the limit is not looked at again."""
        if self._storage is None:
            return None
        try:
            driver = self._storage.known_csi_driver(name)
        except ObjectError:
            return None
        return None if driver is None else driver.spec.node_allocatable_update_period_seconds

    async def _info(self, name: str) -> DriverOnNode:
        """Raises CSIError; TransientVolumeError when the driver is gone."""
        async with self._drivers.client(name) as client:
            info = await client.info()
        return DriverOnNode(name, info.node_id, info.max_volumes, info.topology)

    def _accepted_version(self, plugin: Plugin, caller: str) -> str:
        prefix = f'kubernetes.io/csi: {caller} for CSI driver "{plugin.name}" failed.'
        try:
            version = highest_version(plugin.versions)
        except ValueError as error:
            raise PluginRefusedError(f"{prefix} {error}") from error
        known = self._drivers.get(plugin.name)
        if known is not None and version_numbers(known.version) >= version_numbers(version):
            raise PluginRefusedError(
                f"{prefix} Another driver with the same name is already registered with a higher supported version: "
                f'"{known.version}"'
            )
        return version


def _error_text(error: CSIError | TransientVolumeError | DriverEntryError) -> str:
    return error.problem if isinstance(error, TransientVolumeError) else str(error)
