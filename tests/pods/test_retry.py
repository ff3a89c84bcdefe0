from __future__ import annotations

import pytest

from trikubelet.pods.phases import Failed, Retry, RetryReason
from trikubelet.pods.retry import BackoffError, NetworkNotReadyError, RetryPolicy, failure

POLICY = RetryPolicy(resync_interval=20, backoff=10)


@pytest.mark.parametrize(
    ("retry", "least"),
    [
        (Retry(RetryReason.RESYNC), 20),
        (Retry(RetryReason.ERROR), 10),
        (Retry(RetryReason.NETWORK_NOT_READY), 1),
        (Retry(RetryReason.ERROR, not_before=105), 5),
        (Retry(RetryReason.ERROR, not_before=95), 0),
        (Retry(RetryReason.ERROR, not_before=140), 20),
    ],
)
def test_intervals_and_their_jitter(retry: Retry, least: float) -> None:
    assert POLICY.delay(retry, now=100, fraction=0) == least
    assert POLICY.delay(retry, now=100, fraction=1) == least * 1.5


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("x"), Failed()),
        (BackoffError("x", 5), Failed(retry_at=5)),
        (ExceptionGroup("x", [ValueError("y"), BackoffError("z", 7)]), Failed(retry_at=7)),
        (ExceptionGroup("x", [BackoffError("y", 10), BackoffError("z", 3)]), Failed(retry_at=3)),
        (NetworkNotReadyError("x"), Failed(network_not_ready=True)),
        (_caused(ValueError("x"), NetworkNotReadyError("y")), Failed(network_not_ready=True)),
        (_caused(ValueError("x"), BackoffError("y", 2)), Failed(retry_at=2)),
        (
            ExceptionGroup("x", [NetworkNotReadyError("y"), BackoffError("z", 3)]),
            Failed(network_not_ready=True, retry_at=3),
        ),
    ],
    ids=repr,
)
def test_what_an_error_says_about_the_next_attempt(error: Exception, says: Failed) -> None:
    assert failure(error) == says


def test_the_network_error_says_what_users_search_for() -> None:
    assert str(NetworkNotReadyError("cni plugin not initialized")) == "network is not ready: cni plugin not initialized"
