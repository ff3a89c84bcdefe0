"""The headers of a call: what a request carries, and metadata to and fro.

Headers stay bytes from the wire to the moment that somebody asks for metadata, which hardly anybody does.
"""

from __future__ import annotations

import math
import platform
from typing import TYPE_CHECKING

from grpclib.metadata import decode_metadata as _decode_metadata
from grpclib.metadata import encode_metadata as _encode_metadata

from trikubelet import __version__
from trikubelet.rpc.grpc.hpack import Headers, NeverIndexed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpclib.metadata

    Metadata = grpclib.metadata._Metadata
    MetadataLike = grpclib.metadata._MetadataLike

USER_AGENT = f"grpc-python-trikubelet/{__version__} (python/{platform.python_version()})"

# The protocol allows eight digits.
_MOST_UNITS = 99_999_999


def encode_timeout(seconds: float) -> bytes:
    """The value of `grpc-timeout`, rounded up to the finest unit that fits: the peer never gives up before us.

    (grpclib's encoding rounds down to whole seconds above ten of them.)
    """
    for unit, scale in ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0)):
        count = math.ceil(seconds * scale)
        if count <= _MOST_UNITS:
            return b"%d%s" % (max(count, 0), unit)
    return b"%dH" % min(math.ceil(seconds / 3600), _MOST_UNITS)


def request_headers(path: str, authority: bytes, user_agent: str = USER_AGENT) -> Headers:
    """What every call of the method `path` starts with."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode("ascii")),
        (b":authority", authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", user_agent.encode("ascii")),
    ]


def timeout_header(seconds: float) -> tuple[bytes, bytes]:
    """`grpc-timeout`, kept out of the compression tables: it differs in every call, and would push out what repeats."""
    return NeverIndexed(b"grpc-timeout", encode_timeout(seconds))


def encode_metadata(metadata: MetadataLike) -> Headers:
    """Metadata as headers; values of keys that end in `-bin` are bytes. They are a call's own, and kept out of the
    compression tables as its timeout is.

    Raises `ValueError` or `TypeError` for keys and values that the wire does not allow.
    """
    pairs = _encode_metadata(metadata)
    return [NeverIndexed(key.encode("ascii"), value.encode("ascii")) for key, value in pairs]


def decode_metadata(headers: Sequence[tuple[bytes, bytes]]) -> Metadata:
    """The metadata among `headers`: all but what HTTP/2 and gRPC use themselves.

    Raises `ValueError` when a `-bin` value is not base64.
    """
    return _decode_metadata(
        [(key.decode("ascii", "replace"), value.decode("ascii", "replace")) for key, value in headers]
    )
