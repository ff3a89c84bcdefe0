# Generated from protos/health_v1.proto by `make protos`. Do not edit.
# This file has been @generated

from typing import (
    TYPE_CHECKING,
    Dict,
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


class HealthCheckResponseServingStatus(Enum):
    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3
    """Only `Watch` says this."""


class HealthCheckRequest(Message):
    service: str = betterproto.string_field(1)
    """Empty: the server as a whole."""


class HealthCheckResponse(Message):
    status: "HealthCheckResponseServingStatus" = betterproto.enum_field(1)


class HealthStub(ServiceStub):
    async def check(
        self,
        health_check_request: "HealthCheckRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "HealthCheckResponse":
        return await self._unary_unary(
            "/grpc.health.v1.Health/Check",
            health_check_request,
            HealthCheckResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class HealthBase(ServiceBase):

    async def check(
        self, health_check_request: "HealthCheckRequest"
    ) -> "HealthCheckResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_check(
        self, stream: "grpclib.server.Stream[HealthCheckRequest, HealthCheckResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.check(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/grpc.health.v1.Health/Check": grpclib.const.Handler(
                self.__rpc_check,
                grpclib.const.Cardinality.UNARY_UNARY,
                HealthCheckRequest,
                HealthCheckResponse,
            ),
        }
