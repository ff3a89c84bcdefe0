"""The services."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import betterproto
import trio
from grpclib import GRPCError, Status

from tests.csi_driver.faults import Faults, FaultSource
from tests.csi_driver.storage import Storage
from trikubelet.rpc.csi import v1
from trikubelet.rpc.plugin_registration import v1 as plugins

if TYPE_CHECKING:
    from trikubelet.rpc.grpc import Servable

Capability = v1.NodeServiceCapabilityRpcType
CAPABILITIES: Final = frozenset(
    {Capability.STAGE_UNSTAGE_VOLUME, Capability.GET_VOLUME_STATS, Capability.EXPAND_VOLUME}
)
_INLINE: Final = re.compile("csi-[0-9a-f]{64}")
"""What an agent calls inline volumes; whether it tells more of them is up to the CSIDriver object."""
CONTEXT_FILE: Final = "volume_context.json"

Reply = TypeVar("Reply")
Request = TypeVar("Request", bound=betterproto.Message)


@attrs.define
class Call:
    """One call, as it came and as it ended."""

    rpc: str
    request: betterproto.Message
    outcome: str = "running"
    """`ok`, the name of a gRPC status, or `cancelled`."""

    def as_json(self) -> str:
        request = self.request.to_dict(casing=betterproto.Casing.SNAKE)  # type: ignore[arg-type]
        return json.dumps({"call": self.rpc, "request": request, "outcome": self.outcome})


@attrs.define(eq=False)
class FolderDriver:
    """State is on disk, as far as there is any: a driver that starts anew goes on where another ended."""

    storage_root: Path
    name: str = "folder.example.com"
    endpoint: str = ""
    """What it registers as its socket."""
    node_id: str = "node-1"
    capabilities: Iterable[Capability] = CAPABILITIES
    topology: Mapping[str, str] = attrs.field(factory=dict)
    max_volumes: int = 0
    versions: Iterable[str] = ("1.0.0",)
    faults: FaultSource = attrs.field(factory=Faults)
    storage: Storage = attrs.field(default=attrs.Factory(lambda self: Storage(self.storage_root), takes_self=True))
    log: Path | None = None
    writes_context: bool = False
    """Put the volume context into each volume, for the pod to see."""
    calls: list[Call] = attrs.field(factory=list)
    registrations: list[plugins.RegistrationStatus] = attrs.field(factory=list)
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set, and replaced, with each call that begins or ends."""

    @property
    def services(self) -> list[Servable]:
        """Identity and Node, for the driver's socket."""
        return [_Identity(self), _Node(self)]

    @property
    def registration(self) -> list[Servable]:
        """For a socket in the registry."""
        return [_Registration(self)]

    def names(self, *, but: Iterable[str] = ("NodeGetCapabilities",)) -> list[str]:
        """The calls so far."""
        return [call.rpc for call in self.calls if call.rpc not in but]

    def last(self, kind: type[Request]) -> Request:
        """The newest request of a type."""
        return next(call.request for call in reversed(self.calls) if isinstance(call.request, kind))

    async def begun(self, rpc: str) -> None:
        """Wait until such a call is being served."""
        while not any(call.rpc == rpc and call.outcome == "running" for call in self.calls):
            await self.changed.wait()

    async def serve(self, rpc: str, request: betterproto.Message, work: Callable[[], Reply]) -> Reply:
        """One call with its fault."""
        call = Call(rpc, request)
        self.calls.append(call)
        self._tell()
        try:
            fault = self.faults.take(rpc)
            if fault is not None and fault.kind == "error":
                raise fault.error
            if fault is not None and fault.kind == "hang":
                await trio.sleep_forever()
            reply = await trio.to_thread.run_sync(work) if self._blocks else work()
            if fault is not None and fault.kind == "lost":
                raise GRPCError(Status.UNAVAILABLE, "the connection is lost")
            if fault is not None and fault.kind == "late":
                await trio.sleep_forever()
        except GRPCError as error:
            call.outcome = error.status.name
            raise
        except trio.Cancelled:
            call.outcome = "cancelled"
            raise
        except OSError as error:
            call.outcome = Status.INTERNAL.name
            raise GRPCError(Status.INTERNAL, str(error)) from error
        else:
            call.outcome = "ok"
            return reply
        finally:
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(call.as_json() + "\n")
            self._tell()

    @property
    def _blocks(self) -> bool:
        return self.log is not None  # as a program; in a test's process nothing may leave the mock clock

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    # The work

    def stage(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        at = Path(request.staging_target_path)
        if not at.is_dir():
            raise GRPCError(Status.INVALID_ARGUMENT, f"there is no folder {at}")
        if _is_block(request.volume_capability):
            self.storage.image(request.volume_id)
            return v1.NodeStageVolumeResponse()
        folder = self.storage.folder(request.volume_id)
        self.storage.mounts.folder(folder, at, request.volume_capability.mount.mount_flags)
        return v1.NodeStageVolumeResponse()

    def unstage(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        self.storage.mounts.away(Path(request.staging_target_path))
        self.storage.release(request.volume_id)
        return v1.NodeUnstageVolumeResponse()

    def publish(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        target = Path(request.target_path)
        if not target.parent.is_dir():
            raise GRPCError(Status.INVALID_ARGUMENT, f"there is no folder {target.parent}")
        inline = _INLINE.fullmatch(request.volume_id) is not None
        stages = Capability.STAGE_UNSTAGE_VOLUME in frozenset(self.capabilities) and not inline
        if stages and not (request.staging_target_path and Path(request.staging_target_path).is_dir()):
            raise GRPCError(Status.FAILED_PRECONDITION, "the volume is not staged")
        if _is_block(request.volume_capability):
            self.storage.mounts.device(self.storage.image(request.volume_id), target)
            return v1.NodePublishVolumeResponse()
        folder = self.storage.folder(request.volume_id)
        if self.writes_context:
            new = folder / f".{CONTEXT_FILE}"
            new.write_text(json.dumps(request.volume_context, sort_keys=True))
            new.rename(folder / CONTEXT_FILE)
        mount = request.volume_capability.mount
        if mount.volume_mount_group:
            self.storage.give_to(request.volume_id, int(mount.volume_mount_group))
        flags = [*mount.mount_flags, *(["ro"] if request.readonly else [])]
        self.storage.mounts.folder(folder, target, flags)
        return v1.NodePublishVolumeResponse()

    def unpublish(self, request: v1.NodeUnpublishVolumeRequest) -> v1.NodeUnpublishVolumeResponse:
        target = Path(request.target_path)
        self.storage.mounts.away(target)
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        else:
            target.unlink(missing_ok=True)
        if Capability.STAGE_UNSTAGE_VOLUME not in frozenset(self.capabilities):
            self.storage.release(request.volume_id)
        if _INLINE.fullmatch(request.volume_id):
            self.storage.remove(request.volume_id)
        return v1.NodeUnpublishVolumeResponse()

    def stats(self, request: v1.NodeGetVolumeStatsRequest) -> v1.NodeGetVolumeStatsResponse:
        path = Path(request.volume_path)
        if not path.exists():
            raise GRPCError(Status.NOT_FOUND, f"there is nothing at {path}")
        if not path.is_dir():
            size = self.storage.image(request.volume_id).stat().st_size
            return v1.NodeGetVolumeStatsResponse(usage=[v1.VolumeUsage(total=size, unit=v1.VolumeUsageUnit.BYTES)])
        found = os.statvfs(path)
        total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        return v1.NodeGetVolumeStatsResponse(
            usage=[
                v1.VolumeUsage(available=free, total=total, used=total - free, unit=v1.VolumeUsageUnit.BYTES),
                v1.VolumeUsage(
                    available=found.f_ffree,
                    total=found.f_files,
                    used=found.f_files - found.f_ffree,
                    unit=v1.VolumeUsageUnit.INODES,
                ),
            ]
        )

    def expand(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        size = request.capacity_range.required_bytes
        if _is_block(request.volume_capability):
            os.truncate(self.storage.image(request.volume_id), size)
        return v1.NodeExpandVolumeResponse(capacity_bytes=size)


def _is_block(capability: v1.VolumeCapability) -> bool:
    return betterproto.which_one_of(capability, "access_type")[0] == "block"


class _Identity(v1.IdentityBase):
    def __init__(self, driver: FolderDriver) -> None:
        self._driver = driver

    async def get_plugin_info(self, get_plugin_info_request: v1.GetPluginInfoRequest) -> v1.GetPluginInfoResponse:
        reply = v1.GetPluginInfoResponse(name=self._driver.name, vendor_version="1")
        return await self._driver.serve("GetPluginInfo", get_plugin_info_request, lambda: reply)

    async def get_plugin_capabilities(
        self, get_plugin_capabilities_request: v1.GetPluginCapabilitiesRequest
    ) -> v1.GetPluginCapabilitiesResponse:
        return v1.GetPluginCapabilitiesResponse()

    async def probe(self, probe_request: v1.ProbeRequest) -> v1.ProbeResponse:
        return await self._driver.serve("Probe", probe_request, lambda: v1.ProbeResponse(ready=True))


class _Node(v1.NodeBase):
    def __init__(self, driver: FolderDriver) -> None:
        self._driver = driver

    def _serve(self, rpc: str, request: Request, work: Callable[[Request], Reply]) -> Awaitable[Reply]:
        return self._driver.serve(rpc, request, lambda: work(request))

    async def node_stage_volume(
        self, node_stage_volume_request: v1.NodeStageVolumeRequest
    ) -> v1.NodeStageVolumeResponse:
        return await self._serve("NodeStageVolume", node_stage_volume_request, self._driver.stage)

    async def node_unstage_volume(
        self, node_unstage_volume_request: v1.NodeUnstageVolumeRequest
    ) -> v1.NodeUnstageVolumeResponse:
        return await self._serve("NodeUnstageVolume", node_unstage_volume_request, self._driver.unstage)

    async def node_publish_volume(
        self, node_publish_volume_request: v1.NodePublishVolumeRequest
    ) -> v1.NodePublishVolumeResponse:
        return await self._serve("NodePublishVolume", node_publish_volume_request, self._driver.publish)

    async def node_unpublish_volume(
        self, node_unpublish_volume_request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        return await self._serve("NodeUnpublishVolume", node_unpublish_volume_request, self._driver.unpublish)

    async def node_get_volume_stats(
        self, node_get_volume_stats_request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        return await self._serve("NodeGetVolumeStats", node_get_volume_stats_request, self._driver.stats)

    async def node_expand_volume(
        self, node_expand_volume_request: v1.NodeExpandVolumeRequest
    ) -> v1.NodeExpandVolumeResponse:
        return await self._serve("NodeExpandVolume", node_expand_volume_request, self._driver.expand)

    async def node_get_capabilities(
        self, node_get_capabilities_request: v1.NodeGetCapabilitiesRequest
    ) -> v1.NodeGetCapabilitiesResponse:
        reply = v1.NodeGetCapabilitiesResponse(
            capabilities=[
                v1.NodeServiceCapability(rpc=v1.NodeServiceCapabilityRpc(type=capability))
                for capability in sorted(self._driver.capabilities)
            ]
        )
        return await self._driver.serve("NodeGetCapabilities", node_get_capabilities_request, lambda: reply)

    async def node_get_info(self, node_get_info_request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        driver = self._driver
        reply = v1.NodeGetInfoResponse(
            node_id=driver.node_id,
            max_volumes_per_node=driver.max_volumes,
            accessible_topology=v1.Topology(segments=dict(driver.topology)),
        )
        return await driver.serve("NodeGetInfo", node_get_info_request, lambda: reply)


class _Registration(plugins.RegistrationBase):
    def __init__(self, driver: FolderDriver) -> None:
        self._driver = driver

    async def get_info(self, info_request: plugins.InfoRequest) -> plugins.PluginInfo:
        driver = self._driver
        reply = plugins.PluginInfo(
            type="CSIPlugin",
            name=driver.name,
            endpoint=driver.endpoint,
            supported_versions=list(driver.versions),
        )
        return await driver.serve("GetInfo", info_request, lambda: reply)

    async def notify_registration_status(
        self, registration_status: plugins.RegistrationStatus
    ) -> plugins.RegistrationStatusResponse:
        self._driver.registrations.append(registration_status)
        done = plugins.RegistrationStatusResponse()
        return await self._driver.serve("NotifyRegistrationStatus", registration_status, lambda: done)
