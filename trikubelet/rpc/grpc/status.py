"""How a call ended, read from what HTTP/2 says: headers, trailers, reset codes.

Sources: gRPC's PROTOCOL-HTTP2.md (errors) and http-grpc-status-mapping.md. No I/O here.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

from grpclib import GRPCError, Status
from grpclib.metadata import decode_bin_value, decode_grpc_message, encode_bin_value, encode_grpc_message

from trikubelet.formats.values import frozen
from trikubelet.rpc.grpc.http2 import ErrorCodes

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUS_BY_CODE = {b"%d" % status.value: status for status in Status}

_STATUS_OF_HTTP = {
    b"400": Status.INTERNAL,
    b"401": Status.UNAUTHENTICATED,
    b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED,
    b"429": Status.UNAVAILABLE,
    b"502": Status.UNAVAILABLE,
    b"503": Status.UNAVAILABLE,
    b"504": Status.UNAVAILABLE,
}

_STATUS_OF_RESET = {
    ErrorCodes.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCodes.CANCEL: Status.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


@frozen
class Failure:
    """A status other than OK. Kept apart from `GRPCError`, since several tasks may have to raise the same failure."""

    status: Status
    message: str
    details: bytes | None = None
    """The serialized `google.rpc.Status` of the peer, if it sent one."""

    def to_error(self) -> GRPCError:
        return GRPCError(self.status, self.message, self.details)

    @classmethod
    def of(cls, error: GRPCError) -> Failure:
        details = error.details if isinstance(error.details, bytes) else None
        return cls(error.status, error.message or "", details)


def failure_of_trailers(trailers: Mapping[bytes, bytes]) -> Failure | None:
    """The failure that trailers (or a reply without a body) report; None for OK."""
    code = trailers.get(b"grpc-status")
    if code == b"0":
        return None
    if code is None:
        return Failure(Status.UNKNOWN, "the peer ended the stream without a grpc-status")
    message = decode_grpc_message(trailers.get(b"grpc-message", b"").decode("ascii", "replace"))
    status = _STATUS_BY_CODE.get(code)
    if status is None:
        return Failure(Status.UNKNOWN, f"unknown grpc-status {code.decode('ascii', 'replace')!r}: {message}")
    details: bytes | None = None
    if encoded := trailers.get(b"grpc-status-details-bin"):
        try:
            details = decode_bin_value(encoded)
        except binascii.Error:
            details = None
    return Failure(status, message, details)


def failure_of_response(headers: Mapping[bytes, bytes]) -> Failure | None:
    """What is wrong with the headers of a reply; None when messages or trailers follow as they should."""
    if b"grpc-status" in headers:
        return None
    http_status = headers.get(b":status", b"")
    if http_status != b"200":
        text = http_status.decode("ascii", "replace")
        return Failure(_STATUS_OF_HTTP.get(http_status, Status.UNKNOWN), f"expected HTTP status 200, got {text!r}")
    content_type = headers.get(b"content-type", b"")
    if not content_type.startswith(b"application/grpc"):
        text = content_type.decode("ascii", "replace")
        return Failure(Status.UNKNOWN, f"expected content-type application/grpc, got {text!r}")
    return None


def failure_of_reset(code: int | None) -> Failure:
    """The failure that RST_STREAM with this error code stands for."""
    try:
        known = ErrorCodes(code or 0)
    except ValueError:
        return Failure(Status.INTERNAL, f"the peer reset the stream with the unknown error code {code}")
    return Failure(_STATUS_OF_RESET.get(known, Status.INTERNAL), f"the peer reset the stream: {known.name}")


def trailers_of(failure: Failure | None) -> list[tuple[bytes, bytes]]:
    """The trailers that report `failure`, or OK."""
    if failure is None:
        return [(b"grpc-status", b"0")]
    trailers = [(b"grpc-status", b"%d" % failure.status.value)]
    if failure.message:
        trailers.append((b"grpc-message", encode_grpc_message(failure.message).encode("ascii")))
    if failure.details is not None:
        trailers.append((b"grpc-status-details-bin", encode_bin_value(failure.details)))
    return trailers
