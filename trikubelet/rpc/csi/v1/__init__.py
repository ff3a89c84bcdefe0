# Generated from protos/csi_v1.proto by `make protos`. Do not edit.
# This file has been @generated

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Dict,
    List,
    Optional,
)

import betterproto
import grpclib
from trikubelet.rpc.service import ServiceBase, ServiceStub

if TYPE_CHECKING:
    import grpclib.server
    from betterproto.grpc.grpclib_client import MetadataLike
    from grpclib.metadata import Deadline

if TYPE_CHECKING:
    from enum import IntEnum as Enum
else:
    from betterproto import Enum


class PluginCapabilityServiceType(Enum):
    UNKNOWN = 0
    CONTROLLER_SERVICE = 1
    """There is a controller, whether the node needs one or not."""

    VOLUME_ACCESSIBILITY_CONSTRAINTS = 2
    """Volumes are not reachable from everywhere."""

    GROUP_CONTROLLER_SERVICE = 3
    """There is a controller for snapshots of several volumes at once."""


class PluginCapabilityVolumeExpansionType(Enum):
    UNKNOWN = 0
    ONLINE = 1
    """Volumes may grow while they are in use."""

    OFFLINE = 2
    """Only while they are not."""


class VolumeCapabilityAccessModeMode(Enum):
    UNKNOWN = 0
    SINGLE_NODE_WRITER = 1
    SINGLE_NODE_READER_ONLY = 2
    MULTI_NODE_READER_ONLY = 3
    MULTI_NODE_SINGLE_WRITER = 4
    """Many read, one writes."""

    MULTI_NODE_MULTI_WRITER = 5
    SINGLE_NODE_SINGLE_WRITER = 6
    """One pod on one node. These two only with SINGLE_NODE_MULTI_WRITER."""

    SINGLE_NODE_MULTI_WRITER = 7
    """Several pods on one node."""


class VolumeUsageUnit(Enum):
    UNKNOWN = 0
    BYTES = 1
    INODES = 2


class NodeServiceCapabilityRpcType(Enum):
    UNKNOWN = 0
    STAGE_UNSTAGE_VOLUME = 1
    GET_VOLUME_STATS = 2
    EXPAND_VOLUME = 3
    VOLUME_CONDITION = 4
    SINGLE_NODE_MULTI_WRITER = 5
    """The driver knows the access modes for one node and one pod."""

    VOLUME_MOUNT_GROUP = 6
    """The driver sets the group itself."""


@dataclass(eq=False, repr=False)
class GetPluginInfoRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class GetPluginInfoResponse(betterproto.Message):
    name: str = betterproto.string_field(1)
    """
    As in the name of a CSIDriver object, for example `hostpath.csi.example.com`.
    """

    vendor_version: str = betterproto.string_field(2)
    manifest: Dict[str, str] = betterproto.map_field(
        3, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """The driver's own."""


@dataclass(eq=False, repr=False)
class GetPluginCapabilitiesRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class GetPluginCapabilitiesResponse(betterproto.Message):
    capabilities: List["PluginCapability"] = betterproto.message_field(1)


@dataclass(eq=False, repr=False)
class PluginCapability(betterproto.Message):
    service: "PluginCapabilityService" = betterproto.message_field(1, group="type")
    volume_expansion: "PluginCapabilityVolumeExpansion" = betterproto.message_field(
        2, group="type"
    )


@dataclass(eq=False, repr=False)
class PluginCapabilityService(betterproto.Message):
    type: "PluginCapabilityServiceType" = betterproto.enum_field(1)


@dataclass(eq=False, repr=False)
class PluginCapabilityVolumeExpansion(betterproto.Message):
    type: "PluginCapabilityVolumeExpansionType" = betterproto.enum_field(1)


@dataclass(eq=False, repr=False)
class ProbeRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class ProbeResponse(betterproto.Message):
    ready: Optional[bool] = betterproto.message_field(1, wraps=betterproto.TYPE_BOOL)
    """Not given: ready."""


@dataclass(eq=False, repr=False)
class VolumeCapability(betterproto.Message):
    block: "VolumeCapabilityBlockVolume" = betterproto.message_field(
        1, group="access_type"
    )
    mount: "VolumeCapabilityMountVolume" = betterproto.message_field(
        2, group="access_type"
    )
    access_mode: "VolumeCapabilityAccessMode" = betterproto.message_field(3)


@dataclass(eq=False, repr=False)
class VolumeCapabilityBlockVolume(betterproto.Message):
    """The device itself."""

    pass


@dataclass(eq=False, repr=False)
class VolumeCapabilityMountVolume(betterproto.Message):
    """A file system."""

    fs_type: str = betterproto.string_field(1)
    """Not given: the driver's choice."""

    mount_flags: List[str] = betterproto.string_field(2)
    """Options of mount(8)."""

    volume_mount_group: str = betterproto.string_field(3)
    """
    The group, as a number, that is to own the files. Only with VOLUME_MOUNT_GROUP.
    """


@dataclass(eq=False, repr=False)
class VolumeCapabilityAccessMode(betterproto.Message):
    """Who may use it how, all over the cluster."""

    mode: "VolumeCapabilityAccessModeMode" = betterproto.enum_field(1)


@dataclass(eq=False, repr=False)
class CapacityRange(betterproto.Message):
    required_bytes: int = betterproto.int64_field(1)
    """At least this."""

    limit_bytes: int = betterproto.int64_field(2)
    """At most this."""


@dataclass(eq=False, repr=False)
class Topology(betterproto.Message):
    """Where in the cluster something is, for example in which zone."""

    segments: Dict[str, str] = betterproto.map_field(
        1, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


@dataclass(eq=False, repr=False)
class NodeStageVolumeRequest(betterproto.Message):
    volume_id: str = betterproto.string_field(1)
    publish_context: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """What attaching gave."""

    staging_target_path: str = betterproto.string_field(3)
    """An existing folder, for block volumes too."""

    volume_capability: "VolumeCapability" = betterproto.message_field(4)
    secrets: Dict[str, str] = betterproto.map_field(
        5, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    volume_context: Dict[str, str] = betterproto.map_field(
        6, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """The volume's attributes."""


@dataclass(eq=False, repr=False)
class NodeStageVolumeResponse(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class NodeUnstageVolumeRequest(betterproto.Message):
    volume_id: str = betterproto.string_field(1)
    staging_target_path: str = betterproto.string_field(2)


@dataclass(eq=False, repr=False)
class NodeUnstageVolumeResponse(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class NodePublishVolumeRequest(betterproto.Message):
    volume_id: str = betterproto.string_field(1)
    publish_context: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """What attaching gave."""

    staging_target_path: str = betterproto.string_field(3)
    """Where it was staged, if it was."""

    target_path: str = betterproto.string_field(4)
    """A folder for a file system, a device or file for a block volume."""

    volume_capability: "VolumeCapability" = betterproto.message_field(5)
    readonly: bool = betterproto.bool_field(6)
    secrets: Dict[str, str] = betterproto.map_field(
        7, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    volume_context: Dict[str, str] = betterproto.map_field(
        8, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """
    The volume's attributes, and what the driver wants to know of the pod.
    """


@dataclass(eq=False, repr=False)
class NodePublishVolumeResponse(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class NodeUnpublishVolumeRequest(betterproto.Message):
    volume_id: str = betterproto.string_field(1)
    target_path: str = betterproto.string_field(2)


@dataclass(eq=False, repr=False)
class NodeUnpublishVolumeResponse(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class NodeGetVolumeStatsRequest(betterproto.Message):
    volume_id: str = betterproto.string_field(1)
    volume_path: str = betterproto.string_field(2)
    """Where it is published."""

    staging_target_path: str = betterproto.string_field(3)
    """Where it was staged, if it was."""


@dataclass(eq=False, repr=False)
class NodeGetVolumeStatsResponse(betterproto.Message):
    usage: List["VolumeUsage"] = betterproto.message_field(1)
    """One entry for each unit."""

    volume_condition: "VolumeCondition" = betterproto.message_field(2)
    """Only with VOLUME_CONDITION."""


@dataclass(eq=False, repr=False)
class VolumeUsage(betterproto.Message):
    available: int = betterproto.int64_field(1)
    total: int = betterproto.int64_field(2)
    used: int = betterproto.int64_field(3)
    unit: "VolumeUsageUnit" = betterproto.enum_field(4)


@dataclass(eq=False, repr=False)
class VolumeCondition(betterproto.Message):
    abnormal: bool = betterproto.bool_field(1)
    message: str = betterproto.string_field(2)


@dataclass(eq=False, repr=False)
class NodeExpandVolumeRequest(betterproto.Message):
    volume_id: str = betterproto.string_field(1)
    volume_path: str = betterproto.string_field(2)
    """Where it is published, or where it was staged."""

    capacity_range: "CapacityRange" = betterproto.message_field(3)
    staging_target_path: str = betterproto.string_field(4)
    """Where it was staged, if it was."""

    volume_capability: "VolumeCapability" = betterproto.message_field(5)
    secrets: Dict[str, str] = betterproto.map_field(
        6, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


@dataclass(eq=False, repr=False)
class NodeExpandVolumeResponse(betterproto.Message):
    capacity_bytes: int = betterproto.int64_field(1)
    """The size it has now."""


@dataclass(eq=False, repr=False)
class NodeGetCapabilitiesRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class NodeGetCapabilitiesResponse(betterproto.Message):
    capabilities: List["NodeServiceCapability"] = betterproto.message_field(1)


@dataclass(eq=False, repr=False)
class NodeServiceCapability(betterproto.Message):
    rpc: "NodeServiceCapabilityRpc" = betterproto.message_field(1, group="type")


@dataclass(eq=False, repr=False)
class NodeServiceCapabilityRpc(betterproto.Message):
    type: "NodeServiceCapabilityRpcType" = betterproto.enum_field(1)


@dataclass(eq=False, repr=False)
class NodeGetInfoRequest(betterproto.Message):
    pass


@dataclass(eq=False, repr=False)
class NodeGetInfoResponse(betterproto.Message):
    node_id: str = betterproto.string_field(1)
    """The node's name in the driver's storage system."""

    max_volumes_per_node: int = betterproto.int64_field(2)
    """0 or less: no limit that the driver knows of."""

    accessible_topology: "Topology" = betterproto.message_field(3)


class IdentityStub(ServiceStub):
    async def get_plugin_info(
        self,
        get_plugin_info_request: "GetPluginInfoRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "GetPluginInfoResponse":
        return await self._unary_unary(
            "/csi.v1.Identity/GetPluginInfo",
            get_plugin_info_request,
            GetPluginInfoResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def get_plugin_capabilities(
        self,
        get_plugin_capabilities_request: "GetPluginCapabilitiesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "GetPluginCapabilitiesResponse":
        return await self._unary_unary(
            "/csi.v1.Identity/GetPluginCapabilities",
            get_plugin_capabilities_request,
            GetPluginCapabilitiesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def probe(
        self,
        probe_request: "ProbeRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ProbeResponse":
        return await self._unary_unary(
            "/csi.v1.Identity/Probe",
            probe_request,
            ProbeResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class NodeStub(ServiceStub):
    async def node_stage_volume(
        self,
        node_stage_volume_request: "NodeStageVolumeRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeStageVolumeResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeStageVolume",
            node_stage_volume_request,
            NodeStageVolumeResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_unstage_volume(
        self,
        node_unstage_volume_request: "NodeUnstageVolumeRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeUnstageVolumeResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeUnstageVolume",
            node_unstage_volume_request,
            NodeUnstageVolumeResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_publish_volume(
        self,
        node_publish_volume_request: "NodePublishVolumeRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodePublishVolumeResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodePublishVolume",
            node_publish_volume_request,
            NodePublishVolumeResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_unpublish_volume(
        self,
        node_unpublish_volume_request: "NodeUnpublishVolumeRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeUnpublishVolumeResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeUnpublishVolume",
            node_unpublish_volume_request,
            NodeUnpublishVolumeResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_get_volume_stats(
        self,
        node_get_volume_stats_request: "NodeGetVolumeStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeGetVolumeStatsResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeGetVolumeStats",
            node_get_volume_stats_request,
            NodeGetVolumeStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_expand_volume(
        self,
        node_expand_volume_request: "NodeExpandVolumeRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeExpandVolumeResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeExpandVolume",
            node_expand_volume_request,
            NodeExpandVolumeResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_get_capabilities(
        self,
        node_get_capabilities_request: "NodeGetCapabilitiesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeGetCapabilitiesResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeGetCapabilities",
            node_get_capabilities_request,
            NodeGetCapabilitiesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_get_info(
        self,
        node_get_info_request: "NodeGetInfoRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeGetInfoResponse":
        return await self._unary_unary(
            "/csi.v1.Node/NodeGetInfo",
            node_get_info_request,
            NodeGetInfoResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class IdentityBase(ServiceBase):

    async def get_plugin_info(
        self, get_plugin_info_request: "GetPluginInfoRequest"
    ) -> "GetPluginInfoResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def get_plugin_capabilities(
        self, get_plugin_capabilities_request: "GetPluginCapabilitiesRequest"
    ) -> "GetPluginCapabilitiesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def probe(self, probe_request: "ProbeRequest") -> "ProbeResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_get_plugin_info(
        self,
        stream: "grpclib.server.Stream[GetPluginInfoRequest, GetPluginInfoResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.get_plugin_info(request)
        await stream.send_message(response)

    async def __rpc_get_plugin_capabilities(
        self,
        stream: "grpclib.server.Stream[GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.get_plugin_capabilities(request)
        await stream.send_message(response)

    async def __rpc_probe(
        self, stream: "grpclib.server.Stream[ProbeRequest, ProbeResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.probe(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/csi.v1.Identity/GetPluginInfo": grpclib.const.Handler(
                self.__rpc_get_plugin_info,
                grpclib.const.Cardinality.UNARY_UNARY,
                GetPluginInfoRequest,
                GetPluginInfoResponse,
            ),
            "/csi.v1.Identity/GetPluginCapabilities": grpclib.const.Handler(
                self.__rpc_get_plugin_capabilities,
                grpclib.const.Cardinality.UNARY_UNARY,
                GetPluginCapabilitiesRequest,
                GetPluginCapabilitiesResponse,
            ),
            "/csi.v1.Identity/Probe": grpclib.const.Handler(
                self.__rpc_probe,
                grpclib.const.Cardinality.UNARY_UNARY,
                ProbeRequest,
                ProbeResponse,
            ),
        }


class NodeBase(ServiceBase):

    async def node_stage_volume(
        self, node_stage_volume_request: "NodeStageVolumeRequest"
    ) -> "NodeStageVolumeResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_unstage_volume(
        self, node_unstage_volume_request: "NodeUnstageVolumeRequest"
    ) -> "NodeUnstageVolumeResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_publish_volume(
        self, node_publish_volume_request: "NodePublishVolumeRequest"
    ) -> "NodePublishVolumeResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_unpublish_volume(
        self, node_unpublish_volume_request: "NodeUnpublishVolumeRequest"
    ) -> "NodeUnpublishVolumeResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_get_volume_stats(
        self, node_get_volume_stats_request: "NodeGetVolumeStatsRequest"
    ) -> "NodeGetVolumeStatsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_expand_volume(
        self, node_expand_volume_request: "NodeExpandVolumeRequest"
    ) -> "NodeExpandVolumeResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_get_capabilities(
        self, node_get_capabilities_request: "NodeGetCapabilitiesRequest"
    ) -> "NodeGetCapabilitiesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_get_info(
        self, node_get_info_request: "NodeGetInfoRequest"
    ) -> "NodeGetInfoResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_node_stage_volume(
        self,
        stream: "grpclib.server.Stream[NodeStageVolumeRequest, NodeStageVolumeResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_stage_volume(request)
        await stream.send_message(response)

    async def __rpc_node_unstage_volume(
        self,
        stream: "grpclib.server.Stream[NodeUnstageVolumeRequest, NodeUnstageVolumeResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_unstage_volume(request)
        await stream.send_message(response)

    async def __rpc_node_publish_volume(
        self,
        stream: "grpclib.server.Stream[NodePublishVolumeRequest, NodePublishVolumeResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_publish_volume(request)
        await stream.send_message(response)

    async def __rpc_node_unpublish_volume(
        self,
        stream: "grpclib.server.Stream[NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_unpublish_volume(request)
        await stream.send_message(response)

    async def __rpc_node_get_volume_stats(
        self,
        stream: "grpclib.server.Stream[NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_get_volume_stats(request)
        await stream.send_message(response)

    async def __rpc_node_expand_volume(
        self,
        stream: "grpclib.server.Stream[NodeExpandVolumeRequest, NodeExpandVolumeResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_expand_volume(request)
        await stream.send_message(response)

    async def __rpc_node_get_capabilities(
        self,
        stream: "grpclib.server.Stream[NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_get_capabilities(request)
        await stream.send_message(response)

    async def __rpc_node_get_info(
        self, stream: "grpclib.server.Stream[NodeGetInfoRequest, NodeGetInfoResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_get_info(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/csi.v1.Node/NodeStageVolume": grpclib.const.Handler(
                self.__rpc_node_stage_volume,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeStageVolumeRequest,
                NodeStageVolumeResponse,
            ),
            "/csi.v1.Node/NodeUnstageVolume": grpclib.const.Handler(
                self.__rpc_node_unstage_volume,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeUnstageVolumeRequest,
                NodeUnstageVolumeResponse,
            ),
            "/csi.v1.Node/NodePublishVolume": grpclib.const.Handler(
                self.__rpc_node_publish_volume,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodePublishVolumeRequest,
                NodePublishVolumeResponse,
            ),
            "/csi.v1.Node/NodeUnpublishVolume": grpclib.const.Handler(
                self.__rpc_node_unpublish_volume,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeUnpublishVolumeRequest,
                NodeUnpublishVolumeResponse,
            ),
            "/csi.v1.Node/NodeGetVolumeStats": grpclib.const.Handler(
                self.__rpc_node_get_volume_stats,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeGetVolumeStatsRequest,
                NodeGetVolumeStatsResponse,
            ),
            "/csi.v1.Node/NodeExpandVolume": grpclib.const.Handler(
                self.__rpc_node_expand_volume,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeExpandVolumeRequest,
                NodeExpandVolumeResponse,
            ),
            "/csi.v1.Node/NodeGetCapabilities": grpclib.const.Handler(
                self.__rpc_node_get_capabilities,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeGetCapabilitiesRequest,
                NodeGetCapabilitiesResponse,
            ),
            "/csi.v1.Node/NodeGetInfo": grpclib.const.Handler(
                self.__rpc_node_get_info,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeGetInfoRequest,
                NodeGetInfoResponse,
            ),
        }
