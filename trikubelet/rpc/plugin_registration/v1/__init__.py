# Generated from protos/plugin_registration_v1.proto by `make protos`. Do not edit.
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


class InfoRequest(Message):
    pass


class PluginInfo(Message):
    type: str = betterproto.string_field(1)
    """`CSIPlugin`, `DevicePlugin` or `DRAPlugin`."""

    name: str = betterproto.string_field(2)
    """
    Unique among the plugins of its type: the driver's name, or the resource's.
    """

    endpoint: str = betterproto.string_field(3)
    """
    The socket that the plugin works on, if it is not the one that it registers with.
    """

    supported_versions: List[str] = betterproto.string_field(4)
    """
    Versions of the plugin's own interface that it speaks; the kubelet chooses.
    """


class RegistrationStatus(Message):
    plugin_registered: bool = betterproto.bool_field(1)
    error: str = betterproto.string_field(2)
    """Why it was not; empty when it was."""


class RegistrationStatusResponse(Message):
    pass


class RegistrationStub(ServiceStub):
    async def get_info(
        self,
        info_request: "InfoRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PluginInfo":
        return await self._unary_unary(
            "/pluginregistration.Registration/GetInfo",
            info_request,
            PluginInfo,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def notify_registration_status(
        self,
        registration_status: "RegistrationStatus",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "RegistrationStatusResponse":
        return await self._unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            registration_status,
            RegistrationStatusResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class RegistrationBase(ServiceBase):

    async def get_info(self, info_request: "InfoRequest") -> "PluginInfo":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def notify_registration_status(
        self, registration_status: "RegistrationStatus"
    ) -> "RegistrationStatusResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_get_info(
        self, stream: "grpclib.server.Stream[InfoRequest, PluginInfo]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.get_info(request)
        await stream.send_message(response)

    async def __rpc_notify_registration_status(
        self,
        stream: "grpclib.server.Stream[RegistrationStatus, RegistrationStatusResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.notify_registration_status(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/pluginregistration.Registration/GetInfo": grpclib.const.Handler(
                self.__rpc_get_info,
                grpclib.const.Cardinality.UNARY_UNARY,
                InfoRequest,
                PluginInfo,
            ),
            "/pluginregistration.Registration/NotifyRegistrationStatus": grpclib.const.Handler(
                self.__rpc_notify_registration_status,
                grpclib.const.Cardinality.UNARY_UNARY,
                RegistrationStatus,
                RegistrationStatusResponse,
            ),
        }
