"""What a client takes, by the headers of its request, and packing what it gets. For pages of megabytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SMALL: Final = 64 * 1024
"""Bytes up to which a body is packed at once: a millisecond. What is larger is left to a thread."""
_LEVEL: Final = 1
"""Of gzip: names that repeat need no more."""


def header_entries(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What a header lists, in small letters, with the parameters of each."""
    for entry in header.lower().split(","):
        kind, *rest = entry.split(";")
        pairs = (parameter.partition("=") for parameter in rest)
        yield kind.strip(), {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def weight(parameters: Mapping[str, str]) -> float:
    """How much an entry is wanted; 0 for one that is not, or cannot be read."""
    text = parameters.get("q", "1")
    digits = text.replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdigit() and len(digits) <= 4 else 0.0


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a client's `Accept-Encoding` names gzip."""
    return any(kind == "gzip" and weight(parameters) > 0 for kind, parameters in header_entries(accept_encoding))


async def gzipped(body: bytes) -> bytes:
    """May be cancelled freely; a thread is left to its end."""
    import gzip  # which not every node is asked for

    pack = partial(gzip.compress, body, _LEVEL, mtime=0)
    return pack() if len(body) <= SMALL else await trio.to_thread.run_sync(pack, abandon_on_cancel=True)
