# Generated from protos/otlp_trace_v1.proto by `make protos`. Do not edit.
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


class SpanSpanKind(Enum):
    SPAN_KIND_UNSPECIFIED = 0
    SPAN_KIND_INTERNAL = 1
    SPAN_KIND_SERVER = 2
    SPAN_KIND_CLIENT = 3
    SPAN_KIND_PRODUCER = 4
    SPAN_KIND_CONSUMER = 5


class StatusStatusCode(Enum):
    STATUS_CODE_UNSET = 0
    STATUS_CODE_OK = 1
    STATUS_CODE_ERROR = 2


@dataclass(eq=False, repr=False)
class ExportTraceServiceRequest(betterproto.Message):
    resource_spans: List["ResourceSpans"] = betterproto.message_field(1)


@dataclass(eq=False, repr=False)
class ExportTraceServiceResponse(betterproto.Message):
    partial_success: "ExportTracePartialSuccess" = betterproto.message_field(1)
    """
    Set when the collector did not take everything; such spans are not sent again.
    """


@dataclass(eq=False, repr=False)
class ExportTracePartialSuccess(betterproto.Message):
    rejected_spans: int = betterproto.int64_field(1)
    error_message: str = betterproto.string_field(2)


@dataclass(eq=False, repr=False)
class ResourceSpans(betterproto.Message):
    """The spans of one program."""

    resource: "Resource" = betterproto.message_field(1)
    scope_spans: List["ScopeSpans"] = betterproto.message_field(2)


@dataclass(eq=False, repr=False)
class Resource(betterproto.Message):
    attributes: List["KeyValue"] = betterproto.message_field(1)


@dataclass(eq=False, repr=False)
class ScopeSpans(betterproto.Message):
    """The spans of one part of a program."""

    scope: "InstrumentationScope" = betterproto.message_field(1)
    spans: List["Span"] = betterproto.message_field(2)


@dataclass(eq=False, repr=False)
class InstrumentationScope(betterproto.Message):
    name: str = betterproto.string_field(1)
    version: str = betterproto.string_field(2)


@dataclass(eq=False, repr=False)
class Span(betterproto.Message):
    trace_id: bytes = betterproto.bytes_field(1)
    """Sixteen bytes."""

    span_id: bytes = betterproto.bytes_field(2)
    """Eight bytes."""

    trace_state: str = betterproto.string_field(3)
    """W3C's tracestate, as it came."""

    parent_span_id: bytes = betterproto.bytes_field(4)
    """Empty for the first span of a trace."""

    name: str = betterproto.string_field(5)
    kind: "SpanSpanKind" = betterproto.enum_field(6)
    start_time_unix_nano: int = betterproto.fixed64_field(7)
    end_time_unix_nano: int = betterproto.fixed64_field(8)
    attributes: List["KeyValue"] = betterproto.message_field(9)
    events: List["SpanEvent"] = betterproto.message_field(11)
    links: List["SpanLink"] = betterproto.message_field(13)
    status: "Status" = betterproto.message_field(15)
    flags: int = betterproto.fixed32_field(16)
    """
    The lowest byte has W3C's trace flags; 0x100 and 0x200 say that it is known that the parent is elsewhere.
    """


@dataclass(eq=False, repr=False)
class SpanEvent(betterproto.Message):
    time_unix_nano: int = betterproto.fixed64_field(1)
    name: str = betterproto.string_field(2)
    attributes: List["KeyValue"] = betterproto.message_field(3)


@dataclass(eq=False, repr=False)
class SpanLink(betterproto.Message):
    """Another span that has to do with this one."""

    trace_id: bytes = betterproto.bytes_field(1)
    span_id: bytes = betterproto.bytes_field(2)
    trace_state: str = betterproto.string_field(3)
    flags: int = betterproto.fixed32_field(6)


@dataclass(eq=False, repr=False)
class Status(betterproto.Message):
    message: str = betterproto.string_field(2)
    code: "StatusStatusCode" = betterproto.enum_field(3)


@dataclass(eq=False, repr=False)
class KeyValue(betterproto.Message):
    key: str = betterproto.string_field(1)
    value: "AnyValue" = betterproto.message_field(2)


@dataclass(eq=False, repr=False)
class AnyValue(betterproto.Message):
    string_value: str = betterproto.string_field(1, group="value")
    bool_value: bool = betterproto.bool_field(2, group="value")
    int_value: int = betterproto.int64_field(3, group="value")
    double_value: float = betterproto.double_field(4, group="value")


class TraceServiceStub(ServiceStub):
    async def export(
        self,
        export_trace_service_request: "ExportTraceServiceRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ExportTraceServiceResponse":
        return await self._unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            export_trace_service_request,
            ExportTraceServiceResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class TraceServiceBase(ServiceBase):

    async def export(
        self, export_trace_service_request: "ExportTraceServiceRequest"
    ) -> "ExportTraceServiceResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_export(
        self,
        stream: "grpclib.server.Stream[ExportTraceServiceRequest, ExportTraceServiceResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.export(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export": grpclib.const.Handler(
                self.__rpc_export,
                grpclib.const.Cardinality.UNARY_UNARY,
                ExportTraceServiceRequest,
                ExportTraceServiceResponse,
            ),
        }
