"""The times in the lines of a log: RFC 3339 as runtimes write it, any digits of the second, any zone. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

SECONDS: Final = rb"(?!0000)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
"""Regular expression of a time without fraction and zone. Has no groups."""
ZONE: Final = rb"(?:Z|[+-](?:[01]\d|2[0-4]):[0-5]\d)"
STAMP: Final = SECONDS + rb"(?:\.\d+)?" + ZONE
"""Regular expression of a whole time. Has no groups."""

_SECONDS_LENGTH: Final = len("2026-01-31T12:00:00")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def nanoseconds(stamp: bytes) -> int:
    """A record's time in nanoseconds since 1970. Digits beyond the ninth are cut off."""
    fraction, zone = _fraction_and_zone(stamp)
    return _seconds(stamp[:_SECONDS_LENGTH], zone) * 10**9 + int(fraction)


def nanoseconds_of(time: datetime) -> int:
    """The same of an aware datetime, exactly."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def fixed_width(stamp: bytes) -> bytes:
    """A record's time with nine digits of the second, zone as it was, so that lines stay aligned."""
    fraction, zone = _fraction_and_zone(stamp)
    if zone in (b"+00:00", b"-00:00"):
        zone = b"Z"
    return stamp[:_SECONDS_LENGTH] + b"." + fraction + zone


def _fraction_and_zone(stamp: bytes) -> tuple[bytes, bytes]:
    tail = stamp[_SECONDS_LENGTH:]
    fraction, zone = (tail[:-1], b"Z") if tail.endswith(b"Z") else (tail[:-6], tail[-6:])
    return fraction[1:10].ljust(9, b"0"), zone


@lru_cache(maxsize=64)
def _seconds(text: bytes, zone: bytes) -> int:
    # The 31st of a short month is the next month's 1st: what the pattern lets through has a time.
    day = date(int(text[:4]), int(text[5:7]), 1).toordinal() + int(text[8:10]) - 1 - _EPOCH_DAY
    seconds = day * 86400 + int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    if zone == b"Z":
        return seconds
    offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return seconds - offset if zone.startswith(b"+") else seconds + offset
