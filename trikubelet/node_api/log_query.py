"""The query of `/containerLogs`: the fields of `v1.PodLogOptions`, checked as the kubelet checks them.

One is our own: `previousFiles`, for what rotation has put aside. It says how many of the older files come before the
present one; `true` is all that are left.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from trikubelet.api.timestamps import parse_time
from trikubelet.formats.values import frozen
from trikubelet.http.messages import HTTPError
from trikubelet.node_api.log_records import LogOptions

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.clock import WallClock
    from trikubelet.http.messages import Request

_STREAMS: Final = {"All": None, "Stdout": "stdout", "Stderr": "stderr"}
_LONGEST: Final = 100 * 365 * 86400
_ALL_FILES: Final = 10**6


@frozen
class LogQuery:
    options: LogOptions
    previous: bool
    """The container before the present one is meant."""


def read_log_query(request: Request, clock: WallClock) -> LogQuery:
    """Raises HTTPError: 400 for what cannot be read, 422 for values that make no sense."""
    tail, limit = _tail_lines(request), request.number("limitBytes")
    if tail is not None and tail < 0:
        raise HTTPError(422, f"query parameter tailLines: expected 0 or more, got {tail}")
    if limit is not None and limit < 1:
        raise HTTPError(422, f"query parameter limitBytes: expected 1 or more, got {limit}")
    stream = request.text("stream") or "All"
    if stream not in _STREAMS:
        raise HTTPError(422, f"query parameter stream: expected All, Stdout or Stderr, got {stream!r}")
    if stream != "All" and tail is not None:
        raise HTTPError(422, "tailLines counts the lines of both streams: expected it without stream, or stream=All")
    options = LogOptions(
        follow=request.flag("follow"),
        tail_lines=tail,
        since=_since(request, clock),
        timestamps=request.flag("timestamps"),
        limit_bytes=limit,
        stream=_STREAMS[stream],
        previous_files=_previous_files(request),
    )
    return LogQuery(options, previous=request.flag("previous"))


def _tail_lines(request: Request) -> int | None:
    """`tail` is the old name, which knows `all`."""
    old = request.text("tail")
    if old == "all":
        return None
    return request.number("tail" if old else "tailLines")


def _previous_files(request: Request) -> int:
    text = request.text("previousFiles") or ""
    if not text.removeprefix("-").isdigit():
        return _ALL_FILES if request.flag("previousFiles") else 0
    number = request.number("previousFiles") or 0
    if number < 0:
        raise HTTPError(422, f"query parameter previousFiles: expected true, or 0 or more, got {number}")
    return min(number, _ALL_FILES)


def _since(request: Request, clock: WallClock) -> datetime | None:
    seconds, text = request.number("sinceSeconds"), request.text("sinceTime")
    if seconds is not None and text:
        raise HTTPError(422, "at most one of sinceTime and sinceSeconds may be given")
    if seconds is not None:
        if seconds < 1:
            raise HTTPError(422, f"query parameter sinceSeconds: expected 1 or more, got {seconds}")
        return clock.now() - timedelta(seconds=min(seconds, _LONGEST))
    if not text:
        return None
    since = parse_time(text)
    if since is None:
        raise HTTPError(400, f"query parameter sinceTime: expected a time like 2026-01-31T12:00:00Z, got {text!r}")
    return since
