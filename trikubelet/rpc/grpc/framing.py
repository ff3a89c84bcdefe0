"""Messages in the bytes of a stream: a flag byte, four bytes of length, the message.

A reply to a unary call is nearly always one DATA frame that holds exactly one message, so that case is tried first and
costs one slice. All else goes through a buffer, which never grows past one message of the allowed size: the length is
checked as soon as it is read, not when the message is there.
"""

from __future__ import annotations

import struct

from grpclib import GRPCError, Status

PREFIX_SIZE = 5
DEFAULT_MAX_MESSAGE_SIZE = 16 * 2**20
"""Bytes. The kubelet's limit for messages of the runtime (cri-client: `maxMsgSize`)."""
SHORT_REPLY = 16 * 2**10
"""Bytes: enough for replies that say little. betterproto takes 50 ms for one that is nothing but fields of a byte."""

_PREFIX = struct.Struct(">BI")


def frame_message(payload: bytes, max_size: int) -> bytes:
    """`payload` with its prefix, uncompressed. Raises RESOURCE_EXHAUSTED when it is larger than `max_size` bytes."""
    size = len(payload)
    if size > max_size:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, f"trying to send message larger than max ({size} vs. {max_size})")
    return _PREFIX.pack(0, size) + payload


class MessageReader:
    """Puts the messages of one direction of one stream together from pieces of any size."""

    __slots__ = ("_buffer", "_max_size", "_size")

    def __init__(self, max_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        self._max_size = max_size
        self._buffer = bytearray()
        # The length of the message whose prefix has been read and taken from the buffer.
        self._size: int | None = None

    @property
    def mid_message(self) -> bool:
        """Whether the pieces so far end within a message."""
        return bool(self._buffer) or self._size is not None

    def feed(self, piece: bytes) -> list[bytes]:
        """The messages that `piece` completes, in order.

        Raises `GRPCError`: RESOURCE_EXHAUSTED for a message over the limit, UNIMPLEMENTED for a compressed one. The
        reader must not be used after that.
        """
        if not self._buffer and self._size is None and len(piece) >= PREFIX_SIZE:
            size = self._read_prefix(piece)
            if len(piece) == PREFIX_SIZE + size:
                return [piece[PREFIX_SIZE:]]
        self._buffer += piece
        return self._cut()

    def _cut(self) -> list[bytes]:
        buffer = self._buffer
        messages: list[bytes] = []
        while True:
            if self._size is None:
                if len(buffer) < PREFIX_SIZE:
                    return messages
                self._size = self._read_prefix(buffer)
                del buffer[:PREFIX_SIZE]
            if len(buffer) < self._size:
                return messages
            messages.append(bytes(memoryview(buffer)[: self._size]))
            del buffer[: self._size]
            self._size = None

    def _read_prefix(self, data: bytes | bytearray) -> int:
        compressed, size = _PREFIX.unpack_from(data)
        if compressed:
            raise GRPCError(
                Status.UNIMPLEMENTED, "received a compressed message, but no compression was offered to the peer"
            )
        if size > self._max_size:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"received message larger than max ({size} vs. {self._max_size})"
            )
        return int(size)
