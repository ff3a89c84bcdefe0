"""One agent's connection: datagrams in, datagrams out, and never a wait."""

from __future__ import annotations

import socket
from collections import deque

from trikubelet.embedded.keeper import event_loop, protocol
from trikubelet.embedded.keeper.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
            protocol.close(descriptors)
            return
        try:
            payload, carrier = protocol.encode(message)
        except OSError as error:
            protocol.close(descriptors)
            if "id" not in message:
                raise
            self.fail(message["id"], "internal", f"answer: {error.strerror or error}")
            return
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
            protocol.close(descriptors)
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
            protocol.close(descriptors)
        self._loop.watch(self._channel.fileno(), self._ready)

    def _receive(self) -> None:
        try:
            payload, control, flags, _ = self._channel.recvmsg(
                protocol.LARGEST_DATAGRAM, protocol.CONTROL_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            payload, control, flags = b"", [], 0
        if not payload:
            self.close()
            return
        descriptors = protocol.passed_descriptors(control)
        try:
            if flags & socket.MSG_CTRUNC:
                self._refuse(payload)
                return
            message = protocol.decode(payload, descriptors)
            self._on_message(self, message, descriptors)
        except protocol.ProtocolError as error:
            log(f"bad message: {error}")
            self.close()
        finally:
            # Receivers that keep one have taken it out of the list or duplicated it.
            protocol.close(descriptors)

    def _refuse(self, payload: bytes) -> None:
        """Answer a request that came without all its descriptors. Raises ProtocolError if it was among them."""
        why = protocol.too_many_open_files().strerror or ""
        log(f"a request came without its descriptors: {why}")
        self.fail(protocol.decode(payload, []).get("id"), "internal", why)
