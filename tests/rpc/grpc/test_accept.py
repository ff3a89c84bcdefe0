from __future__ import annotations

import math
from typing import Any

import pytest
from grpclib import Status

from tests.rpc.grpc.echo import WHOLE, Echo
from trikubelet.rpc.grpc.accept import Accepted, Refused, accept
from trikubelet.rpc.grpc.metadata import request_headers

_HANDLERS = Echo().__mapping__()


def _request(**changed: bytes | None) -> dict[bytes, bytes]:
    headers: dict[bytes, Any] = dict(request_headers(WHOLE, b"localhost"))
    headers.update({key.replace("_", "-").encode(): value for key, value in changed.items()})
    if "path" in changed:
        headers[b":path"] = headers.pop(b"path")
    if "method" in changed:
        headers[b":method"] = headers.pop(b"method")
    return {key: value for key, value in headers.items() if value is not None}


def test_a_call_is_accepted_with_its_handler_and_timeout() -> None:
    assert accept(_request(grpc_timeout=b"1500m"), _HANDLERS) == Accepted(WHOLE, _HANDLERS[WHOLE], 1.5)
    assert accept(_request(grpc_timeout=b"99999999S"), _HANDLERS) == Accepted(WHOLE, _HANDLERS[WHOLE], 99_999_999)


def test_a_call_without_a_timeout_may_take_forever() -> None:
    accepted = accept(_request(), _HANDLERS)
    assert isinstance(accepted, Accepted)
    assert accepted.timeout == math.inf


@pytest.mark.parametrize("content_type", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_variants_of_the_content_type_are_accepted(content_type: bytes) -> None:
    assert isinstance(accept(_request(content_type=content_type), _HANDLERS), Accepted)


@pytest.mark.parametrize(
    ("changed", "http_status", "status", "text"),
    [
        ({"method": b"GET"}, 405, Status.INTERNAL, "'GET'"),
        ({"content_type": b"text/html"}, 415, Status.INTERNAL, "'text/html'"),
        ({"content_type": None}, 415, Status.INTERNAL, "''"),
        ({"grpc_encoding": b"gzip"}, 200, Status.UNIMPLEMENTED, "'gzip'"),
        ({"path": b"/test.Echo/Nothing"}, 200, Status.UNIMPLEMENTED, "unknown method Nothing for service test.Echo"),
        ({"path": b"/test.Other/Whole"}, 200, Status.UNIMPLEMENTED, "unknown service test.Other"),
        ({"path": b"nonsense"}, 200, Status.UNIMPLEMENTED, "unknown service"),
        ({"grpc_timeout": b"soon"}, 200, Status.INTERNAL, "soon"),
        ({"grpc_timeout": b"9" * 400 + b"m"}, 200, Status.INTERNAL, "grpc-timeout"),
        ({"grpc_timeout": b"9" * 9 + b"H"}, 200, Status.INTERNAL, "grpc-timeout"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    changed: dict[str, bytes | None], http_status: int, status: Status, text: str
) -> None:
    refused = accept(_request(**changed), _HANDLERS)
    assert isinstance(refused, Refused)
    assert refused.http_status == http_status
    assert refused.failure.status is status
    assert text in refused.failure.message
    assert (b":status", b"%d" % http_status) in refused.headers
