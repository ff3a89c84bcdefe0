# Generated from protos/dra_v1.proto by `make protos`. Do not edit.
# This file has been @generated

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

from trikubelet.rpc.cri.codec import Message


class NodePrepareResourcesRequest(Message):
    claims: List["Claim"] = betterproto.message_field(1)


class NodePrepareResourcesResponse(Message):
    claims: Dict[str, "NodePrepareResourceResponse"] = betterproto.map_field(
        1, betterproto.TYPE_STRING, betterproto.TYPE_MESSAGE
    )
    """By the claims' UIDs; one that is missing has not been prepared."""


class NodePrepareResourceResponse(Message):
    devices: List["Device"] = betterproto.message_field(1)
    """What containers that use the claim get."""

    error: str = betterproto.string_field(2)
    """Why the claim could not be prepared; empty when it was."""


class Device(Message):
    request_names: List[str] = betterproto.string_field(1)
    """The claim's requests that the device was allocated for. None: all."""

    pool_name: str = betterproto.string_field(2)
    """Of the pool that the device is in."""

    device_name: str = betterproto.string_field(3)
    """Unique in its pool."""

    cdi_device_ids: List[str] = betterproto.string_field(4)
    """What the runtime knows it by, perhaps several, perhaps none."""

    share_id: Optional[str] = betterproto.string_field(5, optional=True)
    """Which share of the device it is, where several claims have one each."""


class NodeUnprepareResourcesRequest(Message):
    claims: List["Claim"] = betterproto.message_field(1)


class NodeUnprepareResourcesResponse(Message):
    claims: Dict[str, "NodeUnprepareResourceResponse"] = betterproto.map_field(
        1, betterproto.TYPE_STRING, betterproto.TYPE_MESSAGE
    )
    """By the claims' UIDs; one that is missing is prepared still."""


class NodeUnprepareResourceResponse(Message):
    error: str = betterproto.string_field(1)
    """Why it failed; empty when it did not."""


class Claim(Message):
    namespace: str = betterproto.string_field(1)
    uid: str = betterproto.string_field(2)
    name: str = betterproto.string_field(3)


class DraPluginStub(ServiceStub):
    async def node_prepare_resources(
        self,
        node_prepare_resources_request: "NodePrepareResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodePrepareResourcesResponse":
        return await self._unary_unary(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            node_prepare_resources_request,
            NodePrepareResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def node_unprepare_resources(
        self,
        node_unprepare_resources_request: "NodeUnprepareResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "NodeUnprepareResourcesResponse":
        return await self._unary_unary(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            node_unprepare_resources_request,
            NodeUnprepareResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class DraPluginBase(ServiceBase):

    async def node_prepare_resources(
        self, node_prepare_resources_request: "NodePrepareResourcesRequest"
    ) -> "NodePrepareResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: "NodeUnprepareResourcesRequest"
    ) -> "NodeUnprepareResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_node_prepare_resources(
        self,
        stream: "grpclib.server.Stream[NodePrepareResourcesRequest, NodePrepareResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_prepare_resources(request)
        await stream.send_message(response)

    async def __rpc_node_unprepare_resources(
        self,
        stream: "grpclib.server.Stream[NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.node_unprepare_resources(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources": grpclib.const.Handler(
                self.__rpc_node_prepare_resources,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodePrepareResourcesRequest,
                NodePrepareResourcesResponse,
            ),
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources": grpclib.const.Handler(
                self.__rpc_node_unprepare_resources,
                grpclib.const.Cardinality.UNARY_UNARY,
                NodeUnprepareResourcesRequest,
                NodeUnprepareResourcesResponse,
            ),
        }
