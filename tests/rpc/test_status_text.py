"""Failed calls read as Go's gRPC prints them."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status

from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.status_text import code_name, connection_error, status_text, system_text


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


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (FileNotFoundError(2, "No such file or directory", "/run/none"), "no such file or directory"),
        (OSError("all attempts to connect failed"), "all attempts to connect failed"),
        (trio.ClosedResourceError(), "ClosedResourceError"),
    ],
)
def test_the_systems_errors_are_in_the_words_of_go(error: Exception, text: str) -> None:
    assert system_text(error) == text


def test_what_is_said_of_a_connection_is_in_quotes() -> None:
    assert connection_error('error reading from server: "x"') == (
        'connection error: desc = "error reading from server: \\"x\\""'
    )
