"""SPDY/3's header blocks: pairs of length-prefixed strings, compressed in one zlib stream per direction.

Every block is flushed, so that it can be read when it arrives, and the stream goes on with the next block: a block that
was compressed must be sent, and in order. A block that cannot be read ends the session, since the state of the other
side's compressor is lost with it.

Names are lower case, and no name comes twice; several values of one name are joined by NUL bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

Headers = Mapping[str, str]

_NAMES: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age "
    "allow authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status "
)
_MORE_NAMES: Final = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_CODES: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
)
_VALUES: Final = (
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)

DICTIONARY: Final = (
    b"".join(len(name).to_bytes(4, "big") + name.encode() for name in (*_NAMES.split(), *_MORE_NAMES))
    + (_CODES + _VALUES).encode()
)
"""What both sides' compressors know before the first block (draft-mbelshe-httpbis-spdy-00, section 2.6.10.1)."""

_WINDOW_BITS: Final = 11
_MEMORY_LEVEL: Final = 1


class HeaderBlockError(Exception):
    """A header block that breaks the rules. The text says which one, and what came."""


class HeaderEncoder:
    """One direction's compressor, kept small: the headers are few and short."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(
            9, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, DICTIONARY
        )

    def encode(self, headers: Headers) -> bytes:
        """The block of these headers; names are put into lower case. What it returns must be sent."""
        block = bytearray(len(headers).to_bytes(4, "big"))
        for name, value in headers.items():
            for text in (name.lower(), value):
                data = text.encode("latin-1")
                block += len(data).to_bytes(4, "big") + data
        return self._zlib.compress(bytes(block)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class HeaderDecoder:
    """One direction's decompressor. `limit`: of a block, decompressed, in bytes."""

    def __init__(self, limit: int) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)
        self._limit = limit

    def decode(self, compressed: bytes) -> dict[str, str]:
        """The headers of one block. Raises HeaderBlockError; then nothing more can be decoded."""
        try:
            block = self._zlib.decompress(compressed, self._limit + 1)
        except zlib.error as error:
            raise HeaderBlockError(f"expected a block compressed with SPDY/3's dictionary, got {error}") from error
        if len(block) > self._limit:
            raise HeaderBlockError(f"expected at most {self._limit} bytes of headers, got more from {len(compressed)}")
        if self._zlib.eof:
            raise HeaderBlockError("expected a block that ends with a flush, got the end of the compressed stream")
        return _parse(block)


def _parse(block: bytes) -> dict[str, str]:
    count, position = _number(block, 0)
    headers: dict[str, str] = {}
    for _ in range(count):
        name, position = _text(block, position)
        value, position = _text(block, position)
        if not name or name != name.lower():
            raise HeaderBlockError(f"expected a name in lower case, got {name[:100]!r}")
        if name in headers:
            raise HeaderBlockError(f"expected every name once, got {name[:100]!r} again")
        headers[name] = value
    if position != len(block):
        raise HeaderBlockError(f"expected {count} headers in {position} bytes, got {len(block) - position} bytes more")
    return headers


def _text(block: bytes, position: int) -> tuple[str, int]:
    length, start = _number(block, position)
    if length > len(block) - start:
        raise HeaderBlockError(f"expected a text of {length} bytes, got {len(block) - start}")
    return block[start : start + length].decode("latin-1"), start + length


def _number(block: bytes, position: int) -> tuple[int, int]:
    if len(block) - position < 4:
        raise HeaderBlockError(f"expected a length of 4 bytes, got {len(block) - position}")
    return int.from_bytes(block[position : position + 4], "big"), position + 4
