"""CRI container events, to any number of subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError
from grpclib.const import Status

from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_MOST_WAITING: Final = 4096


class ContainerEvents:
    """Hands each event to every open stream.

    A subscriber that does not keep up loses its stream (RESOURCE_EXHAUSTED) rather than single events: it then knows
    that it has to list.
    """

    def __init__(self) -> None:
        self._subscribers: set[trio.MemorySendChannel[v1.ContainerEventResponse]] = set()
        self._overflowed: set[trio.MemorySendChannel[v1.ContainerEventResponse]] = set()

    @property
    def wanted(self) -> bool:
        """Whether anybody listens: building an event costs more than sending it."""
        return bool(self._subscribers)

    def publish(self, event: v1.ContainerEventResponse) -> None:
        for subscriber in list(self._subscribers):
            try:
                subscriber.send_nowait(event)
            except trio.WouldBlock:
                self._overflowed.add(subscriber)
                self._subscribers.discard(subscriber)
                subscriber.close()

    async def subscribe(self) -> AsyncIterator[v1.ContainerEventResponse]:
        """Events from now on, until cancelled."""
        sender, receiver = trio.open_memory_channel[v1.ContainerEventResponse](_MOST_WAITING)
        self._subscribers.add(sender)
        try:
            async for event in receiver:
                yield event
            if sender in self._overflowed:
                raise GRPCError(
                    Status.RESOURCE_EXHAUSTED, f"{_MOST_WAITING} events were waiting to be read: list, then ask again"
                )
        finally:
            self._subscribers.discard(sender)
            self._overflowed.discard(sender)
            sender.close()
            receiver.close()
