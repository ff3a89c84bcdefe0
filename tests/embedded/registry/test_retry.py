from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trikubelet.backoff import Backoff
from trikubelet.embedded.registry.errors import HostError, PullFailure
from trikubelet.embedded.registry.retry import Timeouts, bytes_to_skip, read_retry_after, wait_before_retry, worst

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUTS = Timeouts(tries=3, longest_retry_after=60, backoff=Backoff(first=1, longest=4))


def failed(*, may_pass: bool = True, retry_after: float | None = None) -> HostError:
    return HostError(PullFailure.UNREACHABLE, "h answered 503", may_pass, retry_after)


@pytest.mark.parametrize(
    ("error", "failures", "last_host", "wait"),
    [
        (failed(), 1, True, 1),
        (failed(), 2, True, 2),
        (failed(), 3, True, None),
        (failed(), 1, False, None),
        (failed(may_pass=False), 1, True, None),
        (failed(retry_after=30), 1, True, 30),
        (failed(retry_after=0.1), 1, True, 1),
        (failed(retry_after=61), 1, True, None),
    ],
)
def test_how_long_to_wait(error: HostError, failures: int, last_host: bool, wait: float | None) -> None:
    assert wait_before_retry(error, failures, TIMEOUTS, last_host=last_host, chance=0.5) == wait


def test_the_registrys_own_failure_says_what_kind_it_is_and_comes_first() -> None:
    mirror, own = failed(), HostError(PullFailure.NOT_FOUND, "own: not found")
    error = worst([mirror, own])
    assert (error.failure, error.reason) == (PullFailure.NOT_FOUND, "own: not found; h answered 503")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", None),
        ("9" * 400, 9999999999.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2015 00:00:30 GMT", 0.0),
        ("soon", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert read_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "content_range", "skip"),
    [(200, None, 100), (206, "bytes 100-199/200", 0), (206, "bytes 90-199/*", 10)],
)
def test_what_is_there_already_is_skipped(status: int, content_range: str | None, skip: int) -> None:
    assert bytes_to_skip(status, content_range, 100, "h") == skip


@pytest.mark.parametrize("content_range", [None, "", "bytes 101-199/200", "bytes x-y/z", "items 1-2/3"])
def test_another_part_than_the_one_asked_for_is_refused(content_range: str | None) -> None:
    with pytest.raises(HostError, match="with the range"):
        bytes_to_skip(206, content_range, 100, "h")
