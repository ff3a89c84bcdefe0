from __future__ import annotations

import pytest

from trikubelet.api import StatusCause, StatusDetails
from trikubelet.kube_client.errors import ApiAnswerError, ApiError, ApiStatusError, ApiUnreachable, CredentialsError
from trikubelet.kube_client.retries import MAX_ASKED_RETRIES, retry_delay

TOO_LARGE = StatusDetails(causes=(StatusCause(reason="ResourceVersionTooLarge"),), retry_after_seconds=1)


def refused(code: int, retry_after: float | None, details: StatusDetails | None = None) -> ApiStatusError:
    return ApiStatusError("GET /x", code, "", "", details, retry_after)


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        (refused(429, 2), 2, 2),
        (refused(500, 0), 0, 0),
        (refused(503, 30), 30, 30),
        (refused(504, 1), 1, 1),
        (refused(429, None), None, None),
        (refused(500, None), None, None),
        (refused(404, 5), None, None),
        (refused(409, 5), None, None),
        (refused(401, 5), None, None),
        (refused(504, 1, TOO_LARGE), None, None),
        (ApiUnreachable("GET /x", "reset", sent=True), 0.05, None),
        (ApiUnreachable("GET /x", "refused", sent=False), 0.05, None),
        (ApiAnswerError("GET /x", "no JSON"), None, None),
        (CredentialsError("GET /x", "no token"), None, None),
    ],
)
def test_what_is_tried_again(error: ApiError, read: float | None, write: float | None) -> None:
    assert retry_delay(error, 1, reads=True, chance=0) == read
    assert retry_delay(error, 1, reads=False, chance=0) == write


def test_a_server_is_asked_eleven_times_at_most() -> None:
    error = refused(429, 1)
    assert retry_delay(error, MAX_ASKED_RETRIES, reads=False, chance=0) == 1
    assert retry_delay(error, MAX_ASKED_RETRIES + 1, reads=False, chance=0) is None


def test_a_read_without_an_answer_is_sent_three_times_at_most() -> None:
    error = ApiUnreachable("GET /x", "reset", sent=True)
    assert [retry_delay(error, attempts, reads=True, chance=0) for attempts in (1, 2, 3)] == [0.05, 0.5, None]
    assert retry_delay(error, 2, reads=True, chance=0.5) == 0.75
