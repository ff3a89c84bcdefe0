"""One agent's connection: datagrams in, datagrams out, and never a wait."""

from __future__ import annotations

import os
import socket
from collections import deque

from trikubelet.embedded.keeper import event_loop, protocol
from trikubelet.embedded.keeper.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trikubelet.embedded.keeper.event_loop import EventLoop
    from trikubelet.embedded.keeper.protocol import Message

_MOST_WAITING = 10_000


class Connection:
    """`on_message(connection, message, descriptors)` for each request, `on_closed(connection)` once."""

    def __init__(
        self,
        loop: EventLoop,
        channel: socket.socket,
        *,
        on_message: Callable[[Connection, Message, list[int]], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._on_message = on_message
        self._on_closed = on_closed
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self.closed = False
        channel.setblocking(False)
        loop.watch(channel.fileno(), self._ready)

    def reply(self, request: object, content: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Answer; `descriptors` are closed here once they are sent."""
        self.send({"id": request, "ok": content}, descriptors)

    def fail(self, request: object, kind: str, message: str) -> None:
        self.send({"id": request, "error": {"kind": kind, "message": message}})

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send now or when the other side has read; one that stops reading for good is cut off."""
        if self.closed:
            _close(descriptors)
            return
        payload, carrier = protocol.encode(message)
        self._waiting.append((payload, [*descriptors, *([] if carrier is None else [carrier])]))
        if len(self._waiting) > _MOST_WAITING:
            log("an agent does not read its messages: connection closed")
            self.close()
            return
        self._flush()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for _, descriptors in self._waiting:
            _close(descriptors)
        self._waiting.clear()
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        self._on_closed(self)

    def _ready(self, events: int) -> None:
        if events & event_loop.WRITE:
            self._flush()
        if not self.closed and events & event_loop.READ:
            self._receive()

    def _flush(self) -> None:
        while self._waiting:
            payload, descriptors = self._waiting[0]
            try:
                self._channel.sendmsg([payload], protocol.ancillary(descriptors))
            except BlockingIOError:
                self._loop.watch(self._channel.fileno(), self._ready, event_loop.READ_WRITE)
                return
            except OSError:
                self.close()
                return
            self._waiting.popleft()
            _close(descriptors)
        self._loop.watch(self._channel.fileno(), self._ready)

    def _receive(self) -> None:
        try:
            payload, control, _, _ = self._channel.recvmsg(
                protocol.LARGEST_DATAGRAM, protocol.CONTROL_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            payload, control = b"", []
        if not payload:
            self.close()
            return
        descriptors = protocol.passed_descriptors(control)
        try:
            message = protocol.decode(payload, descriptors)
            self._on_message(self, message, descriptors)
        except protocol.ProtocolError as error:
            log(f"bad message: {error}")
            self.close()
        finally:
            # Receivers that keep one have taken it out of the list or duplicated it.
            _close(descriptors)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
