"""The head of an answer to a GET request, read as Go's client reads it (`net/http`: `ReadResponse`). Pure.

A probe must not fail for a server that the kubelet takes for healthy. So this is as lenient as Go's client, and no
more: lines may end in a bare LF, names may have spaces, values may be folded, reason phrases may be missing.

A head may have 10 MiB, and a node has many probes: what comes is taken apart at once, however it is cut into pieces,
and only the status and the few fields that matter are kept. Other lines are passed over many at a time.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from trikubelet.formats.go_quote import go_quote_bytes
from trikubelet.formats.values import define

MOST_HEAD: Final = 10 * 2**20
"""Bytes of a head, with the interim answers before it (Go: `MaxResponseHeaderBytes`)."""
MOST_KEPT: Final = 16 * 2**10
"""Bytes of the status line, of a field's name, and of all fields that matter together. Go knows no such limit."""
_MOST_QUOTED: Final = 200
_NAME: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z -]+"
_VALUE: Final = rb"[\t\x20-\x7e\x80-\xff]*"
_MATTERS: Final = (b"content-length", b"transfer-encoding", b"location")
_OTHERS: Final = re.compile(
    rb"(?:(?!(?:%b):)(?:%b:|[ \t])%b\r?\n)*" % (b"|".join(_MATTERS), _NAME, _VALUE), re.IGNORECASE
)
"""Fields that do not matter, and lines that go on with the field before. Nothing follows, so it never goes back. A
possessive `*+` would say so, but Python before 3.11.3 then loses the end of the match."""
_FIELD: Final = re.compile(rb"(%b):(%b)" % (_NAME, _VALUE))
_BAD: Final = re.compile(rb"[^\t\x20-\x7e\x80-\xff]")
_STATUS: Final = re.compile(rb"\+?[0-9]+|-0+")
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_WITHOUT_BODY: Final = (204, 304)
SWITCHING_PROTOCOLS: Final = 101


class MalformedHeadError(Exception):
    """The answer is none of HTTP/1. The text says what is wrong, in the words of Go's client."""


@define
class AnswerHead:
    """Takes a head in pieces."""

    status: int = -1
    """-1 before it is known."""
    version: bytes = b""
    location: str = ""
    length: int | None = None
    """Bytes of the body; None: it ends with the connection, or is chunked."""
    chunked: bool = False
    _pending: bytes = b""
    """The beginning of a line."""
    _at_first_field: bool = True
    _skipping: bool = False
    """In a long line of which nothing matters."""
    _open: bytes = b""
    """The field that the last line belongs to, if it matters."""
    _fields: dict[bytes, list[bytes]] = attrs.field(factory=dict)
    _kept: int = 0

    @property
    def is_interim(self) -> bool:
        """True if another answer follows."""
        return 100 <= self.status < 200 and self.status != SWITCHING_PROTOCOLS

    def feed(self, data: bytes) -> bytes | None:
        """Take the next piece. Return what follows the head, or None if the head has not ended.

        Raises MalformedHeadError.
        """
        pending, place = self._pending + data, 0
        if b"\n" not in data:
            self._wait_for_line(pending)
            return None
        if self.status < 0:
            place = pending.index(b"\n") + 1
            self._take_status(_without_end(pending[: place - 1]))
        while True:
            if not (self._at_first_field or self._open or self._skipping) and (lines := _OTHERS.match(pending, place)):
                place = lines.end()
            end = pending.find(b"\n", place)
            if end < 0:
                break
            line, place = _without_end(pending[place:end]), end + 1
            if self._skipping:
                self._pass_over(line)
                self._skipping = False
            elif line:
                self._take_line(line)
            else:
                self._finish()
                return pending[place:]
        self._wait_for_line(pending[place:])
        return None

    def _wait_for_line(self, begun: bytes) -> None:
        """Keep the beginning of a line; of a long one that does not matter, only a CR that may end it."""
        if not self._skipping and len(begun) > MOST_KEPT:
            if self.status < 0:
                raise MalformedHeadError(f"malformed HTTP response {_quoted(begun)}")
            self._take_line(_without_end(begun))
            if self._open:
                raise MalformedHeadError(f"headers longer than {MOST_KEPT} bytes: {_quoted(begun)}")
            self._skipping = True
            begun = begun[-1:]
        if self._skipping:
            self._pass_over(_without_end(begun))
            begun = b"\r" if begun.endswith(b"\r") else b""
        self._pending = begun

    def _pass_over(self, part: bytes) -> None:
        if _BAD.search(part) is not None:
            raise MalformedHeadError(f"malformed MIME header line: {_quoted(part)}")

    def _take_status(self, line: bytes) -> None:
        version, space, rest = line.partition(b" ")
        if not space:
            raise MalformedHeadError(f"malformed HTTP response {_quoted(line)}")
        code, _, _ = rest.lstrip(b" ").partition(b" ")
        if len(code) != 3 or _STATUS.fullmatch(code) is None:
            raise MalformedHeadError(f"malformed HTTP status code {_quoted(code)}")
        if _VERSION.fullmatch(version) is None:
            raise MalformedHeadError(f"malformed HTTP version {_quoted(version)}")
        self.status, self.version = int(code), version

    def _take_line(self, line: bytes) -> None:
        goes_on, is_first = line[0] in b" \t", self._at_first_field
        self._at_first_field = False
        if goes_on and is_first:
            raise MalformedHeadError(f"malformed MIME header initial line: {_quoted(line)}")
        if goes_on:
            self._pass_over(line)
            if self._open:
                last = self._fields[self._open]
                last[-1] = (last[-1] + b" " + line.strip(b" \t")).strip(b" \t")
                self._count(line)
            return
        if b":" not in line:
            raise MalformedHeadError(f"malformed MIME header: missing colon: {_quoted(line)}")
        found = _FIELD.fullmatch(line)
        if found is None:
            raise MalformedHeadError(f"malformed MIME header line: {_quoted(line)}")
        name = found[1].lower()
        self._open = name if name in _MATTERS else b""
        if self._open:
            self._fields.setdefault(name, []).append(found[2].strip(b" \t"))
            self._count(line)

    def _count(self, line: bytes) -> None:
        self._kept += len(line)
        if self._kept > MOST_KEPT:
            raise MalformedHeadError(f"headers longer than {MOST_KEPT} bytes: {_quoted(line)}")

    def _finish(self) -> None:
        """Find out where the body ends (Go: `readTransfer`)."""
        self.location = _text(self._fields.get(b"location", [b""])[0])
        codings = self._fields.get(b"transfer-encoding", [])
        if codings and self.version > b"HTTP/1.0":
            if len(codings) > 1:
                raise MalformedHeadError(f"too many transfer encodings: {' '.join(map(_quoted, codings))}")
            if codings[0].lower() != b"chunked":
                raise MalformedHeadError(f"unsupported transfer encoding: {_quoted(codings[0])}")
            self.chunked = True
        length = _length(self._fields.get(b"content-length", []))
        if 100 <= self.status < 200 or self.status in _WITHOUT_BODY:
            self.length, self.chunked = 0, False
        else:
            self.length = None if self.chunked else length


def _length(given: list[bytes]) -> int | None:
    """The same length may be given several times. Raises MalformedHeadError."""
    if not given:
        return None
    if len(set(given)) > 1:
        said = " ".join(map(_quoted, given))
        raise MalformedHeadError(f"http: message cannot contain multiple Content-Length headers; got {said}")
    if not given[0]:
        raise MalformedHeadError('invalid empty Content-Length ""')
    digits = given[0].lstrip(b"0") or b"0"
    if not given[0].isdigit() or len(digits) > 19 or int(digits) >= 2**63:
        raise MalformedHeadError(f"bad Content-Length {_quoted(given[0])}")
    return int(digits)


def _without_end(line: bytes) -> bytes:
    """The line without the CR before its LF."""
    return line.removesuffix(b"\r")


def _text(value: bytes) -> str:
    """UTF-8 where it is that."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _quoted(text: bytes) -> str:
    return go_quote_bytes(text[:_MOST_QUOTED])
