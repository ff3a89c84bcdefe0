"""How device plugins make themselves known: both ways, and what is asked of them.

    the plugin calls us    `Register` on `device-plugins/kubelet.sock`; its own socket is in that folder too
    we call the plugin     its socket is in `plugins_registry`: `trikubelet.plugins` finds it (type `DevicePlugin`)

A plugin of the first kind cannot know that the agent was restarted but by the socket: it watches the folder, and
registers again when `kubelet.sock` is made anew. Sockets of plugins that lie there from before are removed, as the
kubelet does it; some plugins watch for that.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError, Status

from trikubelet.api.validate_resources import is_extended_resource
from trikubelet.node.devices.endpoint import PluginError
from trikubelet.plugins.handlers import Plugin, PluginRefusedError
from trikubelet.rpc.device_plugins import v1beta1
from trikubelet.rpc.grpc import Server, SocketInUseError, connect_unix
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trio_typing import TaskStatus

    from trikubelet.node.devices.connections import PluginConnections
    from trikubelet.node.devices.metrics import DeviceMetrics

FOLDER: Final = "device-plugins"
"""Below the agent's root folder."""
SOCKET: Final = "kubelet.sock"
DEPRECATION: Final = "DEPRECATION"
"""An empty file: the folder is not where new kinds of plugins go (kubelet: `GetPluginHandler`)."""
FOLDER_MODE: Final = 0o750
PLUGIN_TYPE: Final = "DevicePlugin"
VERSION: Final = "v1beta1"
CONCURRENT_REGISTRATIONS: Final = 100
"""Of one client."""

_NO_REGISTRATION: Final = (
    "device registration error: device plugin registration gRPC server failed and no device plugins can register"
)

log = get_logger("devices")


class RegistrationServer:
    """Plugins call it."""

    def __init__(self, folder: Path, connections: PluginConnections, metrics: DeviceMetrics) -> None:
        """`folder`: where its socket goes, and where plugins have theirs."""
        self._folder = folder
        service = Registration(folder, connections, metrics)
        self._server = Server([service], max_concurrent_streams=CONCURRENT_REGISTRATIONS)
        self.problem: str | None = None
        """Why no plugin can register; None while it is served, before, and when the agent ends."""

    async def prepare(self) -> None:
        """Make the folder, and remove what is left of another life. Raises `SocketInUseError` when another agent serves
        plugins there, which is left alone; else `OSError`."""
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        socket = self._folder / SOCKET
        if await _somebody_listens(socket):
            raise SocketInUseError(str(socket), "another agent serves device plugins there")
        _remove_sockets(self._folder)
        (self._folder / DEPRECATION).touch()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then the socket is removed. Started when plugins can register. Raises `OSError`."""
        self.problem = None
        try:
            await self._server.serve_unix(self._folder / SOCKET, task_status=task_status)
        except Exception as error:
            self.problem = f"{_NO_REGISTRATION}: {error}"
            raise


class Registration(v1beta1.RegistrationBase):
    """The service."""

    def __init__(self, folder: Path, connections: PluginConnections, metrics: DeviceMetrics) -> None:
        self._folder = folder
        self._connections = connections
        self._metrics = metrics

    async def register(self, register_request: v1beta1.RegisterRequest) -> v1beta1.Empty:
        """Answers once the plugin can be used; a plugin that goes away meanwhile is given up."""
        resource = register_request.resource_name
        try:
            if register_request.version != VERSION:
                raise PluginError(
                    f'requested API version "{register_request.version}" is not supported by kubelet. '
                    f'Supported version is ["{VERSION}"]'
                )
            _check_name(resource)
            self._metrics.registrations[resource,] += 1
            await self._connections.connect(resource, self._folder / register_request.endpoint.lstrip("/"))
        except PluginError as error:
            log.warning("device plugin refused", resource=resource, error=str(error))
            raise GRPCError(Status.UNKNOWN, str(error)) from error
        return v1beta1.Empty()


class DevicePluginHandler:
    """A `PluginHandler` for plugins in `plugins_registry`."""

    def __init__(self, connections: PluginConnections) -> None:
        self._connections = connections

    def validate(self, plugin: Plugin) -> None:
        """Refuses other versions, and names that no resource can have."""
        if VERSION not in plugin.versions:
            raise PluginRefusedError(
                f"manager version, {VERSION}, is not among plugin supported versions [{' '.join(plugin.versions)}]"
            )
        try:
            _check_name(plugin.name)
        except PluginError as error:
            raise PluginRefusedError(f"invalid name of device plugin socket: {error}") from error

    async def register(self, plugin: Plugin) -> None:
        """A plugin may take the place of another one of its name, however that one has registered."""
        try:
            await self._connections.connect(plugin.name, Path(plugin.endpoint))
        except PluginError as error:
            raise PluginRefusedError(str(error)) from error

    async def deregister(self, plugin: Plugin) -> None:
        """Nothing happens when another one has taken its place."""
        await trio.lowlevel.checkpoint()
        self._connections.disconnect(plugin.name, Path(plugin.endpoint))


def _check_name(resource: str) -> None:
    """Raises PluginError for what is no extended resource."""
    if not is_extended_resource(resource):
        raise PluginError(f'the ResourceName "{resource}" is invalid')


async def _somebody_listens(socket: Path) -> bool:
    try:
        with trio.fail_after(1.0):
            stream = await connect_unix(socket)
    except trio.TooSlowError:
        return True  # It is busy.
    except OSError:
        return False
    await stream.aclose()
    return True


def _remove_sockets(folder: Path) -> None:
    """All of them (`CleanupPluginDirectory`). Raises OSError."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
