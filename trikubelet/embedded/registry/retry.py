"""When a request to a registry is tried again, and where a broken blob goes on. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import attrs

from trikubelet.backoff import Backoff
from trikubelet.embedded.registry.errors import HostError, PullFailure
from trikubelet.formats.values import frozen

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that say nothing of the request, but of the moment."""

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


@frozen
class Timeouts:
    """How long a pull waits, in seconds, and how often it tries."""

    connect: float = 30.0
    answer: float = 60.0
    """For the next bytes of an answer."""
    document: float = 60.0
    """For a whole manifest, configuration or token."""
    progress: float = 300.0
    """For 64 KiB of a layer."""
    tries: int = 4
    """At the last of a registry's hosts. Each of its mirrors gets one, as the next host is the better second try."""
    longest_retry_after: float = 60.0
    """A server that asks for a longer wait is taken as unreachable: the agent comes back later."""
    backoff: Backoff = attrs.field(factory=lambda: Backoff(first=0.5, longest=8.0, jitter=0.3))


def wait_before_retry(
    error: HostError, failures: int, timeouts: Timeouts, *, last_host: bool, chance: float
) -> float | None:
    """Seconds to wait before the same host is asked again; None to ask it no more.

    `failures` in a row, at least 1; `chance` is uniform in [0, 1).
    """
    if not error.may_pass or failures >= (timeouts.tries if last_host else 1):
        return None
    wait = timeouts.backoff.delay(failures, chance)
    if error.retry_after is None:
        return wait
    return None if error.retry_after > timeouts.longest_retry_after else max(wait, error.retry_after)


def worst(errors: list[HostError]) -> HostError:
    """One error for all hosts that were asked, in their order: the last (the registry itself) says which kind it is."""
    reasons = dict.fromkeys(error.reason for error in reversed(errors))
    return HostError(errors[-1].failure, "; ".join(reasons))


def read_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header (a number, or a date); None where there is none to be understood."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return float(value[:10])
    from email.utils import parsedate_to_datetime  # which no registry but a busy one needs

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def bytes_to_skip(status: int, content_range: str | None, offset: int, host: str) -> int:
    """How many bytes of an answer we have already, of which we asked for all from `offset` on.

    Raises HostError where the answer is another part than the one asked for.
    """
    if status == 200:  # it knows no ranges
        return offset
    match = _CONTENT_RANGE.fullmatch((content_range or "").strip())
    if match is None or int(match.group(1)) > offset:
        raise HostError(
            PullFailure.WRONG_CONTENT,
            f"{host} answered a request for the bytes from {offset} on with the range {content_range!r}",
        )
    return offset - int(match.group(1))
