r"""Whole blocks of a log at once, by a few regular expressions whose work is done in C. Pure.

What a log is read for decides how fast it may be: 200 followers share one core with the agent. Going through records
one by one costs a microsecond each. Here that is done for those only that are unusual: times with fewer than nine
digits (Go leaves zeros at the end out, so a tenth of all). A block with something that needs the eye of
`RecordFilter`, a piece of a line or a line that is no record, is not taken at all.

Replacing by a group (`\1`) would call back into Python for every line before Python 3.12, so what stays of a prefix is
asserted to be there (a lookbehind) and only the rest is deleted.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING, Final

from trikubelet.node_api.log_stamps import SECONDS, STAMP, fixed_width

if TYPE_CHECKING:
    from datetime import datetime

_STREAM: Final = rb"std(?:out|err) "
_WHOLE_LINE: Final = rb"(?!P[: ])[^ \n]* "
"""The tags of a record that is no piece of a line."""
_USUAL_FRACTION: Final = rb"\.\d{9}"
_OTHER_ZONE: Final = rb"[+-](?!00:00)(?:[01]\d|2[0-4]):[0-5]\d"
_USUAL: Final = SECONDS + _USUAL_FRACTION + rb"(?:Z|" + _OTHER_ZONE + rb") "
"""A time that is shown as it is."""
_NOT_SORTABLE: Final = rb"\d{4}-(?:02-(?:29|3\d)|(?:0[469]|11)-31)"
"""Days that may be none: what the reader of times makes of them does not sort like their text."""

_PREFIXES: Final = re.compile(rb"\n" + STAMP + rb" " + _STREAM + _WHOLE_LINE)
_AFTER_USUAL_STAMP: Final = re.compile(
    rb"std(?:(?<=\n"
    + (SECONDS + _USUAL_FRACTION + rb"Z std)|(?<=\n")
    + (SECONDS + _USUAL_FRACTION + _OTHER_ZONE + rb" std))(?:out|err) ")
    + _WHOLE_LINE
)
_UNUSUAL_PREFIXES: Final = re.compile(rb"\n(?!" + _USUAL + rb")(" + STAMP + rb") " + _STREAM + _WHOLE_LINE)
_SORTABLE_SECONDS: Final = re.compile(
    rb"\n(?!" + _NOT_SORTABLE + rb")(" + SECONDS + rb")(?:\.\d+)?Z " + _STREAM + rb"[^ \n]* "
)
_LINES_OF: Final = {
    stream: re.compile(rb"\n" + STAMP + rb" " + stream.encode() + rb" [^ \n]* [^\n]*(?=\n)")
    for stream in ("stdout", "stderr")
}
_OTHER: Final = {"stdout": "stderr", "stderr": "stdout"}


class BlockFilter:
    """What of whole lines a reader wants, if that can be said of all of them together."""

    def __init__(self, since: datetime | None, stream: str | None, *, timestamps: bool) -> None:
        self._since = None if since is None else since.astimezone(UTC).isoformat()[:19].encode()
        self._unwanted = None if stream is None else _LINES_OF[_OTHER[stream]]
        self._timestamps = timestamps

    def filter(self, lines: bytes) -> bytes | None:
        """The reader's part of a block that ends with a newline or is empty; None: look at its records one by one.

        With timestamps the reader must stand at the beginning of a line.
        """
        count = lines.count(b"\n")
        lines = b"\n" + lines
        if self._since is not None:
            seconds = _SORTABLE_SECONDS.findall(lines)
            if len(seconds) != count:
                return None
            if not seconds or max(seconds) < self._since:
                return b""
            if min(seconds) <= self._since:
                return None
        if self._unwanted is not None:
            lines, unwanted = self._unwanted.subn(b"", lines)
            count -= unwanted
        if self._timestamps:
            lines, records = _AFTER_USUAL_STAMP.subn(b"", lines)
            if records < count:
                lines, unusual = _UNUSUAL_PREFIXES.subn(_with_stamp, lines)
                records += unusual
        else:
            lines, records = _PREFIXES.subn(b"\n", lines)
        return lines[1:] if records == count else None


def _with_stamp(prefix: re.Match[bytes]) -> bytes:
    return b"\n" + fixed_width(prefix[1]) + b" "
