r"""The CRI log format, and what of a log a reader wants. Pure: blocks of a file in, bytes for the reader out.

A record is one line of the file: `2026-01-31T12:00:00.123456789Z stdout F text\n`. The tag P instead of F says that
the text goes on in a later record; further tags may follow after colons, and mean nothing to us. Pieces are joined by
leaving their newlines out, in the order of the file, as the kubelet does (cri-client's `ReadLogs`), so a piece of
stdout and one of stderr may share a line.

A block is handled as a whole (log_blocks.py) where that gives the same as going through its records one by one, which
is the case for all but few. A record that is longer than a block (runtimes may be configured not to split lines) is
passed on as it comes, so memory stays bounded whatever a container writes. Lines that are no records are left out and
counted: the kubelet skips them too, but gives up when the first line is one.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node_api.log_blocks import BlockFilter
from trikubelet.node_api.log_stamps import STAMP, fixed_width, nanoseconds, nanoseconds_of

_PREFIX: Final = re.compile(rb"(" + STAMP + rb") (stdout|stderr) ([^ \n]*) ")

LONGEST_WAITING: Final = 256 * 2**10
"""An unfinished record longer than this is passed on before its end is there."""


@frozen
class LogOptions:
    """What of a container's log is wanted (`v1.PodLogOptions`)."""

    follow: bool = False
    tail_lines: int | None = None
    """The last so many records; as in the kubelet, pieces of a line count one by one."""
    since: datetime | None = None
    """Records of this time and later."""
    timestamps: bool = False
    """Each line begins with its time, nanoseconds at full width."""
    limit_bytes: int | None = None
    stream: str | None = None
    """`stdout` or `stderr` only."""
    previous_files: int = 0
    """So many of the files that the log was in before its present one come first."""


@frozen
class _Record:
    """What is decided of a record by its prefix."""

    lead: bytes
    wanted: bool
    partial: bool


class RecordFilter:
    """Turns the bytes of a log into the bytes that the reader gets. Feed it blocks of any size, in order."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._since = None if options.since is None else nanoseconds_of(options.since)
        self._blocks = BlockFilter(options.since, options.stream, timestamps=options.timestamps)
        self._stream = None if options.stream is None else options.stream.encode()
        self._left = options.limit_bytes
        self._rest = b""
        self._open: _Record | None = None
        """A record longer than we wait for, whose text is being passed on."""
        self._at_line_start = True
        self.skipped = 0
        """Lines that were no records."""

    @property
    def done(self) -> bool:
        """`limit_bytes` is reached: nothing more will come out."""
        return self._left is not None and self._left <= 0

    @property
    def mid_record(self) -> bool:
        """The last record lacks its newline."""
        return bool(self._rest) or self._open is not None

    def feed(self, block: bytes) -> bytes:
        """What the reader gets for the next block of the file. An unfinished record waits for its end."""
        begun, block = self._go_on(block)
        data = self._rest + block
        end = data.rfind(b"\n") + 1
        finished, self._rest = data[:end], data[end:]
        out = begun + self._whole(finished)
        if len(self._rest) > LONGEST_WAITING:
            out += self._open_long()
        return self._cut(out)

    def finish(self) -> bytes:
        """What is left at the end of the file: the text of a record that has no newline (yet)."""
        rest, self._rest = self._rest, b""
        self._open = None
        record, text = self._read_prefix(rest) if rest else (None, b"")
        return self._cut(self._text(record, text)) if record is not None else b""

    def _go_on(self, block: bytes) -> tuple[bytes, bytes]:
        """The rest of an opened record, and of the block."""
        record = self._open
        if record is None:
            return b"", block
        text, newline, after = block.partition(b"\n")
        if newline:
            self._open = None
        ending = b"" if record.partial else newline
        return self._text(attrs.evolve(record, lead=b""), text + ending), after

    def _open_long(self) -> bytes:
        rest, self._rest = self._rest, b""
        record, text = self._read_prefix(rest)
        if record is None:
            self.skipped += 1
            record = _Record(b"", wanted=False, partial=True)
        self._open = record
        return self._text(record, text)

    def _whole(self, lines: bytes) -> bytes:
        if self._at_line_start or not self._options.timestamps:
            text = self._blocks.filter(lines)
            if text is not None:
                self._at_line_start = self._at_line_start or bool(text)
                return text
        return b"".join(map(self._one, lines.split(b"\n")[:-1]))

    def _one(self, line: bytes) -> bytes:
        record, text = self._read_prefix(line)
        if record is None:
            self.skipped += 1
            return b""
        return self._text(record, text if record.partial else text + b"\n")

    def _read_prefix(self, line: bytes) -> tuple[_Record | None, bytes]:
        match = _PREFIX.match(line)
        if match is None:
            return None, b""
        stamp, stream, tags = match.groups()
        wanted = self._stream in (None, stream)
        if wanted and self._since is not None:
            wanted = nanoseconds(stamp) >= self._since
        lead = fixed_width(stamp) + b" " if self._options.timestamps else b""
        return _Record(lead, wanted, partial=tags.split(b":", 1)[0] == b"P"), line[match.end() :]

    def _text(self, record: _Record, text: bytes) -> bytes:
        if not record.wanted:
            return b""
        out = record.lead + text if self._at_line_start else text
        if out:
            self._at_line_start = out.endswith(b"\n")
        return out

    def _cut(self, out: bytes) -> bytes:
        if self._left is None:
            return out
        out = out[: max(self._left, 0)]
        self._left -= len(out)
        return out
