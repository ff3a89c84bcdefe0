from __future__ import annotations

import pytest
from grpclib import Status
from h2.errors import ErrorCodes
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.rpc.grpc.status import (
    Failure,
    failure_of_reset,
    failure_of_response,
    failure_of_trailers,
    trailers_of,
)


@given(
    status=st.sampled_from([status for status in Status if status is not Status.OK]),
    message=st.text(st.characters(exclude_categories=["Cs"])),
    details=st.none() | st.binary(min_size=1),
)
def test_a_failure_survives_the_way_through_trailers(status: Status, message: str, details: bytes | None) -> None:
    failure = Failure(status, message, details)
    assert failure_of_trailers(dict(trailers_of(failure))) == failure


def test_ok_is_no_failure() -> None:
    assert failure_of_trailers(dict(trailers_of(None))) is None


@pytest.mark.parametrize(
    ("trailers", "text"),
    [({}, "without a grpc-status"), ({b"grpc-status": b"77"}, "'77'"), ({b"grpc-status": b"x"}, "'x'")],
)
def test_trailers_without_a_known_status_are_unknown(trailers: dict[bytes, bytes], text: str) -> None:
    failure = failure_of_trailers(trailers)
    assert failure is not None
    assert failure.status is Status.UNKNOWN
    assert text in failure.message


@pytest.mark.parametrize(
    ("http_status", "status"),
    [
        (b"400", Status.INTERNAL),
        (b"401", Status.UNAUTHENTICATED),
        (b"403", Status.PERMISSION_DENIED),
        (b"404", Status.UNIMPLEMENTED),
        (b"429", Status.UNAVAILABLE),
        (b"502", Status.UNAVAILABLE),
        (b"503", Status.UNAVAILABLE),
        (b"504", Status.UNAVAILABLE),
        (b"418", Status.UNKNOWN),
    ],
)
def test_http_errors_have_a_status(http_status: bytes, status: Status) -> None:
    failure = failure_of_response({b":status": http_status})
    assert failure is not None
    assert failure.status is status


def test_a_grpc_status_outweighs_the_http_status() -> None:
    assert failure_of_response({b":status": b"503", b"grpc-status": b"5"}) is None


def test_a_web_page_is_no_reply() -> None:
    failure = failure_of_response({b":status": b"200", b"content-type": b"text/html"})
    assert failure is not None
    assert failure.status is Status.UNKNOWN
    assert "'text/html'" in failure.message


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCodes.NO_ERROR, Status.INTERNAL),
        (ErrorCodes.INTERNAL_ERROR, Status.INTERNAL),
        (ErrorCodes.REFUSED_STREAM, Status.UNAVAILABLE),
        (ErrorCodes.CANCEL, Status.CANCELLED),
        (ErrorCodes.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (ErrorCodes.INADEQUATE_SECURITY, Status.PERMISSION_DENIED),
        (999, Status.INTERNAL),
    ],
)
def test_resets_have_a_status(code: int, status: Status) -> None:
    assert failure_of_reset(code).status is status
