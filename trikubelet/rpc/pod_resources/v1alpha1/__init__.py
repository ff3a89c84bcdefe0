# Generated from protos/podresources_v1alpha1.proto by `make protos`. Do not edit.
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


class ListPodResourcesRequest(Message):
    pass


class ListPodResourcesResponse(Message):
    pod_resources: List["PodResources"] = betterproto.message_field(1)


class PodResources(Message):
    name: str = betterproto.string_field(1)
    namespace: str = betterproto.string_field(2)
    containers: List["ContainerResources"] = betterproto.message_field(3)
    """No init containers, sidecars neither."""


class ContainerResources(Message):
    name: str = betterproto.string_field(1)
    devices: List["ContainerDevices"] = betterproto.message_field(2)


class ContainerDevices(Message):
    resource_name: str = betterproto.string_field(1)
    """The extended resource that the devices are of."""

    device_ids: List[str] = betterproto.string_field(2)


class PodResourcesListerStub(ServiceStub):
    async def list(
        self,
        list_pod_resources_request: "ListPodResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListPodResourcesResponse":
        return await self._unary_unary(
            "/v1alpha1.PodResourcesLister/List",
            list_pod_resources_request,
            ListPodResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class PodResourcesListerBase(ServiceBase):

    async def list(
        self, list_pod_resources_request: "ListPodResourcesRequest"
    ) -> "ListPodResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_list(
        self,
        stream: "grpclib.server.Stream[ListPodResourcesRequest, ListPodResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/v1alpha1.PodResourcesLister/List": grpclib.const.Handler(
                self.__rpc_list,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListPodResourcesRequest,
                ListPodResourcesResponse,
            ),
        }
