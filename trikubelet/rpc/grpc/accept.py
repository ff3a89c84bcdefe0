"""Whether a request is a gRPC call that can be served: decided on its headers alone.

A request that is no gRPC call is refused in HTTP's terms, a call that cannot be served in gRPC's (PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from grpclib import Status
from grpclib.const import Handler
from grpclib.metadata import decode_timeout

from trikubelet.formats.values import frozen
from trikubelet.rpc.grpc.status import Failure, trailers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.rpc.grpc.hpack import Headers

_LONGEST_TIMEOUT: Final = 9
"""Characters: eight digits and a unit."""


@frozen
class Accepted:
    """A call for `handler`, which the client waits `timeout` seconds for (infinity when it does not say)."""

    path: str
    handler: Handler
    timeout: float


@frozen
class Refused:
    """The whole reply to a request that is not served."""

    http_status: int
    failure: Failure

    @property
    def headers(self) -> Headers:
        return [
            (b":status", b"%d" % self.http_status),
            (b"content-type", b"application/grpc"),
            *trailers_of(self.failure),
        ]


def accept(headers: Mapping[bytes, bytes], handlers: Mapping[str, Handler]) -> Accepted | Refused:
    """Find the handler for a request."""
    method = headers.get(b":method", b"").decode("ascii", "replace")
    if method != "POST":
        return Refused(405, Failure(Status.INTERNAL, f"expected the method POST, got {method!r}"))
    content_type = headers.get(b"content-type", b"").decode("ascii", "replace")
    if not content_type.startswith("application/grpc"):
        return Refused(415, Failure(Status.INTERNAL, f"expected content-type application/grpc, got {content_type!r}"))
    encoding = headers.get(b"grpc-encoding", b"identity").decode("ascii", "replace")
    if encoding != "identity":
        return Refused(200, Failure(Status.UNIMPLEMENTED, f"compression {encoding!r} is not supported; send identity"))
    path = headers.get(b":path", b"").decode("ascii", "replace")
    handler = handlers.get(path)
    if handler is None:
        service = path.strip("/").rpartition("/")[0]
        known = any(other.startswith(f"/{service}/") for other in handlers)
        text = unknown_method(path) if known else f"unknown service {service}"
        return Refused(200, Failure(Status.UNIMPLEMENTED, text))
    timeout = math.inf
    if (value := headers.get(b"grpc-timeout")) is not None:
        if len(value) > _LONGEST_TIMEOUT:
            return Refused(200, Failure(Status.INTERNAL, "malformed grpc-timeout: more than 8 digits and a unit"))
        try:
            timeout = decode_timeout(value.decode("ascii", "replace"))
        except ValueError as error:
            return Refused(200, Failure(Status.INTERNAL, f"malformed grpc-timeout: {error}"))
    return Accepted(path, handler, timeout)


def unknown_method(path: str) -> str:
    """What clients are told, and look for, in the words of Go's gRPC."""
    service, _, name = path.strip("/").rpartition("/")
    return f"unknown method {name} for service {service}"
