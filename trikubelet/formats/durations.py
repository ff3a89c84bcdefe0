"""Go's duration strings (`1m30s`), as every Kubernetes configuration writes them.

Values become `timedelta`, which is exact to the microsecond; a shorter remainder is refused rather than lost.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # U+00B5, micro sign
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_TERM: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_LIMIT: Final = 2**63
_LONGEST: Final = 1000
"""Characters; a duration that is written with all that nanoseconds can tell has 30."""


def parse_duration(text: str) -> timedelta:
    """Read `300ms`, `-1.5h`, `1h2m3s` or `0`. Raises ValueError that says what was expected."""
    if len(text) > _LONGEST:
        raise ValueError(f"expected a duration of at most {_LONGEST} characters, got {len(text)}")
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return timedelta(0)
    scale = len(body)  # exact, whatever is behind a point (and without `fractions`, which brings `decimal`)
    total = 0
    position = 0
    while position < len(body):
        term = _TERM.match(body, position)
        if term is None:
            break
        whole, _, rest = term[1].partition(".")
        total += int(whole + rest) * 10 ** (scale - len(rest)) * _NANOSECONDS[term[2]]
        position = term.end()
    if not body or position < len(body):
        raise ValueError(f'expected a duration such as "1m30s" (units us, ms, s, m, h), got {text!r}')
    nanoseconds = total // 10**scale
    if nanoseconds >= _LIMIT:
        raise ValueError(f"expected a duration under 292 years, got {text!r}")
    if nanoseconds % 1000:
        raise ValueError(f"expected a duration in whole microseconds, got {text!r}")
    value = timedelta(microseconds=nanoseconds // 1000)
    return -value if text.startswith("-") else value


def format_duration(value: timedelta) -> str:
    """The shortest form that Go prints: `1m30s`, `1h0m0s`, `100ms`, `0s`."""
    microseconds = value // timedelta(microseconds=1)
    sign, rest = ("-", -microseconds) if microseconds < 0 else ("", microseconds)
    if rest == 0:
        return "0s"
    if rest < 10**3:
        return f"{sign}{rest}µs"
    if rest < 10**6:
        return f"{sign}{_decimal(rest, 3)}ms"
    minutes, micro = divmod(rest, 60 * 10**6)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(micro, 6)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(number: int, places: int) -> str:
    """The number with its last `places` digits behind a point."""
    whole, rest = divmod(number, 10**places)
    digits = f"{rest:0{places}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
