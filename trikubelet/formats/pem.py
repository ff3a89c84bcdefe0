"""The blocks of a PEM text, in one pass.

An expression that looks for the end of each block begins that search anew at every line that begins one: a megabyte of
such lines keeps it busy for hours. Here each byte is looked at a few times at most, and as in Go the next line that
ends a block ends it, or there is no block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEGIN: Final = b"-----BEGIN "
_END: Final = b"-----END "
_DASHES: Final = b"-----"


class PemBlock(NamedTuple):
    """One block."""

    label: bytes
    """`CERTIFICATE`"""
    body: bytes
    """What stands between the two lines: base64, perhaps with headers before it, as long as nobody has looked."""
    text: bytes
    """All of it, without the line break after it."""


def pem_blocks(text: bytes) -> Iterator[PemBlock]:
    """The blocks whose two lines have the same label; whatever else stands between them is passed over."""
    at = end = 0
    while (begin := text.find(_BEGIN, at)) >= 0:
        label_at = begin + len(_BEGIN)
        label_ends = text.find(_DASHES, label_at)
        if label_ends < 0:
            return
        label, body_at = text[label_at:label_ends], label_ends + len(_DASHES)
        at = label_ends
        if not label or b"\n" in label or not text[body_at : body_at + 1].isspace():
            continue
        if end < body_at:
            end = text.find(_END, body_at)
            if end < 0:
                return
        after = end + len(_END) + len(label) + len(_DASHES)
        if text[end + len(_END) : after] == label + _DASHES:
            yield PemBlock(label, text[body_at:end], text[begin:after])
            at = after
