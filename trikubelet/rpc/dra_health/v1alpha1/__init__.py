# Generated from protos/dra_health_v1alpha1.proto by `make protos`. Do not edit.
# This file has been @generated

from typing import (
    TYPE_CHECKING,
    AsyncIterator,
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

from trikubelet.rpc.cri.codec import Message

if TYPE_CHECKING:
    from enum import IntEnum as Enum
else:
    from betterproto import Enum


class HealthStatus(Enum):
    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


class NodeWatchResourcesRequest(Message):
    pass


class DeviceIdentifier(Message):
    pool_name: str = betterproto.string_field(1)
    device_name: str = betterproto.string_field(2)


class DeviceHealth(Message):
    device: "DeviceIdentifier" = betterproto.message_field(1)
    health: "HealthStatus" = betterproto.enum_field(2)
    last_updated_time: int = betterproto.int64_field(3)
    """When the plugin looked, in seconds since 1970."""

    health_check_timeout_seconds: int = betterproto.int64_field(4)
    """For how many seconds it holds. Not above zero: for the usual time."""

    message: str = betterproto.string_field(5)
    """For people."""


class NodeWatchResourcesResponse(Message):
    devices: List["DeviceHealth"] = betterproto.message_field(1)


class DraResourceHealthStub(ServiceStub):
    async def node_watch_resources(
        self,
        node_watch_resources_request: "NodeWatchResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[NodeWatchResourcesResponse]:
        async for response in self._unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            node_watch_resources_request,
            NodeWatchResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response


class DraResourceHealthBase(ServiceBase):

    async def node_watch_resources(
        self, node_watch_resources_request: "NodeWatchResourcesRequest"
    ) -> AsyncIterator[NodeWatchResourcesResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield NodeWatchResourcesResponse()

    async def __rpc_node_watch_resources(
        self,
        stream: "grpclib.server.Stream[NodeWatchResourcesRequest, NodeWatchResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.node_watch_resources,
            stream,
            request,
        )

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/v1alpha1.DRAResourceHealth/NodeWatchResources": grpclib.const.Handler(
                self.__rpc_node_watch_resources,
                grpclib.const.Cardinality.UNARY_STREAM,
                NodeWatchResourcesRequest,
                NodeWatchResourcesResponse,
            ),
        }
