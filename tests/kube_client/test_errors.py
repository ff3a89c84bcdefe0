"""What a refused call tells its caller: API servers' own bodies, and those of proxies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trikubelet.api import Status, from_dict
from trikubelet.kube_client.errors import (
    ApiAnswerError,
    ApiError,
    ApiStatusError,
    ApiUnreachable,
    CredentialsError,
    error_event,
    refusal,
)

PATCH = "PATCH /api/v1/namespaces/ns/pods/x/status"
PROPERTIES = (
    "not_found",
    "already_exists",
    "conflict",
    "uid_differs",
    "unauthorized",
    "forbidden",
    "namespace_terminating",
    "invalid",
    "expired",
    "version_too_large",
    "too_many",
    "server_fault",
)


def body(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": message, "reason": reason, "code": code}
    return status | ({"details": details} if details else {})


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
OTHER_UID = "Precondition failed: UID in precondition: u1, UID in object meta: u2"
DELETED_UID = "the UID in the precondition (u1) does not match the UID in record (u2)."
CANNOT = 'Operation cannot be fulfilled on pods "x": '


@pytest.mark.parametrize(
    ("code", "status", "true"),
    [
        (404, body(404, "NotFound", 'pods "x" not found', name="x", kind="pods"), {"not_found"}),
        (409, body(409, "AlreadyExists", 'pods "x" already exists', name="x", kind="pods"), {"already_exists"}),
        (409, body(409, "Conflict", CANNOT + MODIFIED, name="x", kind="pods"), {"conflict"}),
        (409, body(409, "Conflict", CANNOT + OTHER_UID, name="x", kind="pods"), {"conflict", "uid_differs"}),
        (409, body(409, "Conflict", CANNOT + DELETED_UID, name="x", kind="pods"), {"conflict", "uid_differs"}),
        (
            422,
            body(
                422,
                "Invalid",
                'Pod "x" is invalid: metadata.uid: Invalid value: "u1": field is immutable',
                causes=[{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}],
            ),
            {"invalid", "uid_differs"},
        ),
        (401, body(401, "Unauthorized", "Unauthorized"), {"unauthorized"}),
        (403, body(403, "Forbidden", 'pods "x" is forbidden: User "y" cannot get resource "pods"'), {"forbidden"}),
        (
            403,
            body(
                403,
                "Forbidden",
                'events "x.1" is forbidden: unable to create new content in namespace ns, it is being terminated',
                causes=[{"reason": "NamespaceTerminating", "message": "namespace ns is being terminated"}],
            ),
            {"forbidden", "namespace_terminating"},
        ),
        (422, body(422, "Invalid", 'Pod "x" is invalid: metadata.uid: Invalid value', kind="Pod"), {"invalid"}),
        (410, body(410, "Expired", "too old resource version: 5 (1000)"), {"expired"}),
        (410, body(410, "Gone", "The resourceVersion for the provided watch is too old."), {"expired"}),
        (429, body(429, "TooManyRequests", "too many requests, please try again later"), {"too_many"}),
        (500, body(500, "InternalError", "Internal error occurred: etcdserver: no leader"), {"server_fault"}),
        (
            504,
            body(
                504,
                "Timeout",
                "Timeout: Too large resource version: 2000, current: 1000",
                causes=[{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                retryAfterSeconds=1,
            ),
            {"server_fault", "version_too_large"},
        ),
    ],
)
def test_a_refusal_is_what_the_server_says_it_is(code: int, status: dict[str, Any], true: set[str]) -> None:
    for error in (refusal(PATCH, code, json.dumps(status).encode()), error_event(PATCH, from_dict(Status, status))):
        assert {name for name in PROPERTIES if getattr(error, name)} == true
        assert (error.code, error.reason, error.message) == (code, status["reason"], status["message"])


def test_a_refusal_reads_as_request_code_reason_and_the_servers_words() -> None:
    error = refusal(PATCH, 409, json.dumps(body(409, "Conflict", CANNOT + MODIFIED)).encode())
    assert str(error) == f"{PATCH}: 409 Conflict: {CANNOT}{MODIFIED}"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>no healthy upstream</html>\n", "<html>no healthy upstream</html>"),
        (b"", ""),
        (b"x" * 5000, "x" * 1024),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error": "upstream"}', '{"error": "upstream"}'),
        (b'["Status"]', '["Status"]'),
        (b'{"kind": "Status", "message": 5}', '{"kind": "Status", "message": 5}'),
        (b"[" * 100_000, "[" * 1024),
    ],
)
def test_an_answer_that_is_no_status_is_kept_as_text(answer: bytes, message: str) -> None:
    error = refusal("GET /api/v1/pods", 503, answer)
    assert (error.code, error.reason, error.message, error.details) == (503, "", message, None)
    assert error.server_fault
    assert str(error).startswith("GET /api/v1/pods: 503 Service Unavailable")


def test_a_conflict_told_by_a_proxy_is_a_conflict() -> None:
    assert refusal(PATCH, 409, b"conflict").conflict


def test_an_unknown_code_has_no_phrase() -> None:
    assert str(refusal("GET /x", 599, b"")) == "GET /x: 599"


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("5", {}, 5.0),
        (" 5 ", {"retryAfterSeconds": 9}, 5.0),
        ("", {"retryAfterSeconds": 9}, 9.0),
        ("", {"name": "x"}, None),
        ("", {}, None),
        ("0", {}, 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("-1", {}, None),
    ],
)
def test_the_server_may_say_how_long_to_wait(header: str, details: dict[str, Any], seconds: float | None) -> None:
    answer = json.dumps(body(429, "TooManyRequests", "later", **details)).encode()
    assert refusal("GET /x", 429, answer, header).retry_after == seconds


def test_a_proxys_retry_after_counts_too() -> None:
    assert refusal("GET /x", 503, b"busy", "2").retry_after == 2.0


def test_an_error_event_without_a_code_is_the_servers_fault() -> None:
    assert error_event("GET /api/v1/pods?watch=true", Status(status="Failure", message="?")).server_fault


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ApiUnreachable("GET /api/v1/nodes/a", "[Errno 111] Connection refused", sent=False),
            "GET /api/v1/nodes/a: no answer from the API server: [Errno 111] Connection refused",
        ),
        (
            ApiUnreachable("POST /api/v1/nodes", "no answer within 10 s", sent=True),
            "POST /api/v1/nodes: no answer from the API server: no answer within 10 s (the change may have been made)",
        ),
        (
            ApiAnswerError("GET /api/v1/nodes/a", "spec: expected an object, got a list"),
            "GET /api/v1/nodes/a: cannot read the API server's answer: spec: expected an object, got a list",
        ),
        (
            CredentialsError("GET /api/v1/nodes/a", "getting credentials: exec: executable x not found"),
            "GET /api/v1/nodes/a: getting credentials: exec: executable x not found",
        ),
        (ApiStatusError("GET /x", 404, "NotFound", ""), "GET /x: 404 NotFound"),
    ],
)
def test_every_error_says_which_request_failed_and_why(error: ApiError, text: str) -> None:
    assert str(error) == text


async def test_an_error_passes_through_a_nursery_and_can_be_hashed() -> None:
    import trio

    async def fail() -> None:
        raise refusal("GET /x", 404, json.dumps(body(404, "NotFound", "no", name="x")).encode())

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
    (error,) = caught.value.exceptions
    assert isinstance(error, ApiStatusError)
    assert len({error, error}) == 1
