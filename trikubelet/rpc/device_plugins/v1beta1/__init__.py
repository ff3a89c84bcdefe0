# Generated from protos/device_plugin_v1beta1.proto by `make protos`. Do not edit.
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


class DevicePluginOptions(Message):
    pre_start_required: bool = betterproto.bool_field(1)
    """PreStartContainer is to be called."""

    get_preferred_allocation_available: bool = betterproto.bool_field(2)
    """GetPreferredAllocation can be called."""


class RegisterRequest(Message):
    version: str = betterproto.string_field(1)
    """Of this API: `v1beta1`."""

    endpoint: str = betterproto.string_field(2)
    """The plugin's socket, relative to the folder that it registers in."""

    resource_name: str = betterproto.string_field(3)
    """The extended resource that its devices are pieces of."""

    options: "DevicePluginOptions" = betterproto.message_field(4)
    """Not looked at by the kubelet, which asks for them."""


class Empty(Message):
    pass


class ListAndWatchResponse(Message):
    devices: List["Device"] = betterproto.message_field(1)


class TopologyInfo(Message):
    """Where in the machine a device is."""

    nodes: List["NumaNode"] = betterproto.message_field(1)


class NumaNode(Message):
    id: int = betterproto.int64_field(1)


class Device(Message):
    id: str = betterproto.string_field(1)
    """Unique among the plugin's devices; 63 characters at most."""

    health: str = betterproto.string_field(2)
    """`Healthy`; anything else is unhealthy."""

    topology: "TopologyInfo" = betterproto.message_field(3)
    """Missing when it makes no difference, or the plugin does not know."""


class PreStartContainerRequest(Message):
    devices_ids: List[str] = betterproto.string_field(1)


class PreStartContainerResponse(Message):
    pass


class PreferredAllocationRequest(Message):
    container_requests: List["ContainerPreferredAllocationRequest"] = (
        betterproto.message_field(1)
    )


class ContainerPreferredAllocationRequest(Message):
    available_device_ids: List[str] = betterproto.string_field(1)
    """To choose from; those below included."""

    must_include_device_ids: List[str] = betterproto.string_field(2)
    """Chosen already."""

    allocation_size: int = betterproto.int32_field(3)
    """How many the container gets, those above included."""


class PreferredAllocationResponse(Message):
    container_responses: List["ContainerPreferredAllocationResponse"] = (
        betterproto.message_field(1)
    )


class ContainerPreferredAllocationResponse(Message):
    device_ids: List[str] = betterproto.string_field(1)


class AllocateRequest(Message):
    container_requests: List["ContainerAllocateRequest"] = betterproto.message_field(1)


class ContainerAllocateRequest(Message):
    devices_ids: List[str] = betterproto.string_field(1)


class AllocateResponse(Message):
    container_responses: List["ContainerAllocateResponse"] = betterproto.message_field(
        1
    )
    """One for each request, in their order."""


class ContainerAllocateResponse(Message):
    """
    What a container needs, so that it can use its devices. All of it is optional.
    """

    envs: Dict[str, str] = betterproto.map_field(
        1, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """Environment variables."""

    mounts: List["Mount"] = betterproto.message_field(2)
    devices: List["DeviceSpec"] = betterproto.message_field(3)
    annotations: Dict[str, str] = betterproto.map_field(
        4, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """For the runtime."""

    cdi_devices: List["CdiDevice"] = betterproto.message_field(5)
    """
    Devices that the runtime knows the needs of by itself (Container Device Interface).
    """


class CdiDevice(Message):
    name: str = betterproto.string_field(1)
    """Qualified: "vendor.com/class=name"."""


class Mount(Message):
    """A file or folder of the node, in the container."""

    container_path: str = betterproto.string_field(1)
    host_path: str = betterproto.string_field(2)
    read_only: bool = betterproto.bool_field(3)


class DeviceSpec(Message):
    """A device file of the node, in the container."""

    container_path: str = betterproto.string_field(1)
    host_path: str = betterproto.string_field(2)
    permissions: str = betterproto.string_field(3)
    """Of `r` (read), `w` (write), `m` (make the file)."""


class RegistrationStub(ServiceStub):
    async def register(
        self,
        register_request: "RegisterRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "Empty":
        return await self._unary_unary(
            "/v1beta1.Registration/Register",
            register_request,
            Empty,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class DevicePluginStub(ServiceStub):
    async def get_device_plugin_options(
        self,
        empty: "Empty",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "DevicePluginOptions":
        return await self._unary_unary(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            empty,
            DevicePluginOptions,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def list_and_watch(
        self,
        empty: "Empty",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[ListAndWatchResponse]:
        async for response in self._unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            empty,
            ListAndWatchResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def get_preferred_allocation(
        self,
        preferred_allocation_request: "PreferredAllocationRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PreferredAllocationResponse":
        return await self._unary_unary(
            "/v1beta1.DevicePlugin/GetPreferredAllocation",
            preferred_allocation_request,
            PreferredAllocationResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def allocate(
        self,
        allocate_request: "AllocateRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "AllocateResponse":
        return await self._unary_unary(
            "/v1beta1.DevicePlugin/Allocate",
            allocate_request,
            AllocateResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def pre_start_container(
        self,
        pre_start_container_request: "PreStartContainerRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PreStartContainerResponse":
        return await self._unary_unary(
            "/v1beta1.DevicePlugin/PreStartContainer",
            pre_start_container_request,
            PreStartContainerResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class RegistrationBase(ServiceBase):

    async def register(self, register_request: "RegisterRequest") -> "Empty":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_register(
        self, stream: "grpclib.server.Stream[RegisterRequest, Empty]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.register(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/v1beta1.Registration/Register": grpclib.const.Handler(
                self.__rpc_register,
                grpclib.const.Cardinality.UNARY_UNARY,
                RegisterRequest,
                Empty,
            ),
        }


class DevicePluginBase(ServiceBase):

    async def get_device_plugin_options(self, empty: "Empty") -> "DevicePluginOptions":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def list_and_watch(
        self, empty: "Empty"
    ) -> AsyncIterator[ListAndWatchResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield ListAndWatchResponse()

    async def get_preferred_allocation(
        self, preferred_allocation_request: "PreferredAllocationRequest"
    ) -> "PreferredAllocationResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def allocate(self, allocate_request: "AllocateRequest") -> "AllocateResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def pre_start_container(
        self, pre_start_container_request: "PreStartContainerRequest"
    ) -> "PreStartContainerResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_get_device_plugin_options(
        self, stream: "grpclib.server.Stream[Empty, DevicePluginOptions]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.get_device_plugin_options(request)
        await stream.send_message(response)

    async def __rpc_list_and_watch(
        self, stream: "grpclib.server.Stream[Empty, ListAndWatchResponse]"
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.list_and_watch,
            stream,
            request,
        )

    async def __rpc_get_preferred_allocation(
        self,
        stream: "grpclib.server.Stream[PreferredAllocationRequest, PreferredAllocationResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.get_preferred_allocation(request)
        await stream.send_message(response)

    async def __rpc_allocate(
        self, stream: "grpclib.server.Stream[AllocateRequest, AllocateResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.allocate(request)
        await stream.send_message(response)

    async def __rpc_pre_start_container(
        self,
        stream: "grpclib.server.Stream[PreStartContainerRequest, PreStartContainerResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.pre_start_container(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/v1beta1.DevicePlugin/GetDevicePluginOptions": grpclib.const.Handler(
                self.__rpc_get_device_plugin_options,
                grpclib.const.Cardinality.UNARY_UNARY,
                Empty,
                DevicePluginOptions,
            ),
            "/v1beta1.DevicePlugin/ListAndWatch": grpclib.const.Handler(
                self.__rpc_list_and_watch,
                grpclib.const.Cardinality.UNARY_STREAM,
                Empty,
                ListAndWatchResponse,
            ),
            "/v1beta1.DevicePlugin/GetPreferredAllocation": grpclib.const.Handler(
                self.__rpc_get_preferred_allocation,
                grpclib.const.Cardinality.UNARY_UNARY,
                PreferredAllocationRequest,
                PreferredAllocationResponse,
            ),
            "/v1beta1.DevicePlugin/Allocate": grpclib.const.Handler(
                self.__rpc_allocate,
                grpclib.const.Cardinality.UNARY_UNARY,
                AllocateRequest,
                AllocateResponse,
            ),
            "/v1beta1.DevicePlugin/PreStartContainer": grpclib.const.Handler(
                self.__rpc_pre_start_container,
                grpclib.const.Cardinality.UNARY_UNARY,
                PreStartContainerRequest,
                PreStartContainerResponse,
            ),
        }
