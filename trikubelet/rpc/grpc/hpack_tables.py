"""The two tables of RFC 7541: static headers (appendix A), and the lengths of the Huffman codes (appendix B).

The code is canonical: codes of one length follow each other in the order of their symbols, so the lengths say it all.
"""

from __future__ import annotations

from typing import Final

STATIC_TABLE: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
"""Index 1 is the first."""

CODE_LENGTHS: Final = bytes.fromhex(
    """
    0d 17 1c 1c 1c 1c 1c 1c 1c 18 1e 1c 1c 1e 1c 1c 1c 1c 1c 1c 1c 1c 1e 1c 1c 1c 1c 1c 1c 1c 1c 1c
    06 0a 0a 0c 0d 06 08 0b 0a 0a 08 0b 08 06 06 06 05 05 05 06 06 06 06 06 06 06 07 08 0f 06 0c 0a
    0d 06 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 07 08 07 08 0d 13 0d 0e 06
    0f 05 06 05 06 05 06 06 06 05 07 07 06 06 06 05 06 07 06 05 05 06 07 07 07 07 07 0f 0b 0e 0d 1c
    14 16 14 14 16 16 16 17 16 17 17 17 17 17 18 17 18 18 16 17 18 17 17 17 17 15 16 17 16 17 17 18
    16 15 14 16 16 17 17 15 17 16 16 18 15 16 17 17 15 15 16 15 17 16 17 17 14 16 16 16 17 16 16 17
    1a 1a 14 13 16 17 16 19 1a 1a 1a 1b 1b 1a 18 19 13 15 1a 1b 1b 1a 1b 18 15 15 1a 1a 1c 1b 1b 1b
    14 18 14 15 16 15 15 17 16 16 19 19 18 18 1a 17 1a 1b 1a 1a 1b 1b 1b 1b 1b 1c 1b 1b 1b 1b 1b 1a
    1e
    """
)
"""Bits of the code of each byte, and last of the symbol that ends a string and must not occur."""
