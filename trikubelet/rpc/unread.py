"""Messages of a stranger's stream that need not all be read: of those that are there only the newest counts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio
from grpclib import GRPCError

if TYPE_CHECKING:
    from trikubelet.rpc.grpc import ClientStream

PAUSE: Final = 0.125
"""Seconds between two looks at what a stream has sent."""
PAUSE_PER_BYTE: Final = 5e-6
"""Seconds; about twenty times what it takes to read one."""
MESSAGES_AT_A_LOOK: Final = 100


class Unread(bytes):
    """A message that may never be parsed."""

    @classmethod
    def FromString(cls, data: bytes) -> Unread:  # noqa: N802 - the name that messages have
        return cls(data)


async def newest_of(stream: ClientStream[Any, Unread], newest: Unread) -> Unread:
    """The last message that is there already. Whether the stream has ended after it is for the next look."""
    for _ in range(MESSAGES_AT_A_LOOK - 1):
        later = None
        with suppress(GRPCError), trio.move_on_after(0):
            later = await stream.recv_message()
        if later is None:
            break
        newest = later
    return newest


async def pause_after(message: Unread) -> None:
    """Before the next look, so that a stream that never stops costs a few percent of a processor."""
    await trio.sleep(max(PAUSE, PAUSE_PER_BYTE * len(message)))
