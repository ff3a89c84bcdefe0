# Generated from protos/podresources_v1.proto by `make protos`. Do not edit.
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


class AllocatableResourcesRequest(Message):
    pass


class AllocatableResourcesResponse(Message):
    devices: List["ContainerDevices"] = betterproto.message_field(1)
    cpu_ids: List[int] = betterproto.int64_field(2)
    memory: List["ContainerMemory"] = betterproto.message_field(3)


class GetPodResourcesRequest(Message):
    pod_name: str = betterproto.string_field(1)
    pod_namespace: str = betterproto.string_field(2)


class GetPodResourcesResponse(Message):
    pod_resources: "PodResources" = betterproto.message_field(1)


class PodResources(Message):
    name: str = betterproto.string_field(1)
    namespace: str = betterproto.string_field(2)
    containers: List["ContainerResources"] = betterproto.message_field(3)
    """Sidecars, then the others; init containers that end are not listed."""


class ContainerResources(Message):
    name: str = betterproto.string_field(1)
    devices: List["ContainerDevices"] = betterproto.message_field(2)
    cpu_ids: List[int] = betterproto.int64_field(3)
    """
    CPUs that no other container may use; empty for a container that shares them.
    """

    memory: List["ContainerMemory"] = betterproto.message_field(4)
    """
    Memory of certain NUMA nodes; empty for a container that may use that of all.
    """

    dynamic_resources: List["DynamicResource"] = betterproto.message_field(5)


class ContainerMemory(Message):
    memory_type: str = betterproto.string_field(1)
    """`memory`, or `hugepages-SIZE`."""

    size: int = betterproto.uint64_field(2)
    """Bytes."""

    topology: "TopologyInfo" = betterproto.message_field(3)


class ContainerDevices(Message):
    resource_name: str = betterproto.string_field(1)
    """The extended resource that the devices are of."""

    device_ids: List[str] = betterproto.string_field(2)
    topology: "TopologyInfo" = betterproto.message_field(3)
    """Missing when the device plugin does not tell."""


class TopologyInfo(Message):
    """Where in the machine it is."""

    nodes: List["NumaNode"] = betterproto.message_field(1)


class NumaNode(Message):
    id: int = betterproto.int64_field(1)


class DynamicResource(Message):
    """What a container has of a ResourceClaim."""

    claim_name: str = betterproto.string_field(2)
    claim_namespace: str = betterproto.string_field(3)
    claim_resources: List["ClaimResource"] = betterproto.message_field(4)


class ClaimResource(Message):
    """A device of a claim: driver, pool and name together are unique."""

    cdi_devices: List["CdiDevice"] = betterproto.message_field(1)
    driver_name: str = betterproto.string_field(2)
    pool_name: str = betterproto.string_field(3)
    device_name: str = betterproto.string_field(4)
    share_id: str = betterproto.string_field(5)
    """
    The share, of a device that several claims may have a part of. Published as `optional`, which is the same on the
     wire: nobody has a share without a name.
    """


class CdiDevice(Message):
    name: str = betterproto.string_field(1)
    """Qualified: `vendor.com/class=name`."""


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
            "/v1.PodResourcesLister/List",
            list_pod_resources_request,
            ListPodResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def get_allocatable_resources(
        self,
        allocatable_resources_request: "AllocatableResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "AllocatableResourcesResponse":
        return await self._unary_unary(
            "/v1.PodResourcesLister/GetAllocatableResources",
            allocatable_resources_request,
            AllocatableResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def get(
        self,
        get_pod_resources_request: "GetPodResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "GetPodResourcesResponse":
        return await self._unary_unary(
            "/v1.PodResourcesLister/Get",
            get_pod_resources_request,
            GetPodResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class PodResourcesListerBase(ServiceBase):

    async def list(
        self, list_pod_resources_request: "ListPodResourcesRequest"
    ) -> "ListPodResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def get_allocatable_resources(
        self, allocatable_resources_request: "AllocatableResourcesRequest"
    ) -> "AllocatableResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def get(
        self, get_pod_resources_request: "GetPodResourcesRequest"
    ) -> "GetPodResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_list(
        self,
        stream: "grpclib.server.Stream[ListPodResourcesRequest, ListPodResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list(request)
        await stream.send_message(response)

    async def __rpc_get_allocatable_resources(
        self,
        stream: "grpclib.server.Stream[AllocatableResourcesRequest, AllocatableResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.get_allocatable_resources(request)
        await stream.send_message(response)

    async def __rpc_get(
        self,
        stream: "grpclib.server.Stream[GetPodResourcesRequest, GetPodResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.get(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/v1.PodResourcesLister/List": grpclib.const.Handler(
                self.__rpc_list,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListPodResourcesRequest,
                ListPodResourcesResponse,
            ),
            "/v1.PodResourcesLister/GetAllocatableResources": grpclib.const.Handler(
                self.__rpc_get_allocatable_resources,
                grpclib.const.Cardinality.UNARY_UNARY,
                AllocatableResourcesRequest,
                AllocatableResourcesResponse,
            ),
            "/v1.PodResourcesLister/Get": grpclib.const.Handler(
                self.__rpc_get,
                grpclib.const.Cardinality.UNARY_UNARY,
                GetPodResourcesRequest,
                GetPodResourcesResponse,
            ),
        }
