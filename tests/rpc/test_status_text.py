"""Failed calls read as Go's gRPC prints them."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.status_text import code_name, status_text


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (Status.OK, "OK"),
        (Status.CANCELLED, "Canceled"),
        (Status.UNKNOWN, "Unknown"),
        (Status.INVALID_ARGUMENT, "InvalidArgument"),
        (Status.DEADLINE_EXCEEDED, "DeadlineExceeded"),
        (Status.NOT_FOUND, "NotFound"),
        (Status.ALREADY_EXISTS, "AlreadyExists"),
        (Status.PERMISSION_DENIED, "PermissionDenied"),
        (Status.RESOURCE_EXHAUSTED, "ResourceExhausted"),
        (Status.FAILED_PRECONDITION, "FailedPrecondition"),
        (Status.ABORTED, "Aborted"),
        (Status.OUT_OF_RANGE, "OutOfRange"),
        (Status.UNIMPLEMENTED, "Unimplemented"),
        (Status.INTERNAL, "Internal"),
        (Status.UNAVAILABLE, "Unavailable"),
        (Status.DATA_LOSS, "DataLoss"),
        (Status.UNAUTHENTICATED, "Unauthenticated"),
    ],
)
def test_each_code_has_its_name_in_go(status: Status, name: str) -> None:
    assert code_name(status) == name


def test_every_code_is_in_the_table() -> None:
    assert len(Status) == 17


def test_a_failed_call_says_its_code_and_the_peers_words() -> None:
    assert status_text(Status.UNAVAILABLE, None) == "rpc error: code = Unavailable desc = "
    unknown = "unknown method CheckpointContainer for service runtime.v1.RuntimeService"
    error = CRIError("CheckpointContainer", Status.UNIMPLEMENTED, unknown)
    assert str(error) == f"rpc error: code = Unimplemented desc = {unknown}"
