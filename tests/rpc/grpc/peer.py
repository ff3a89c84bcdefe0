"""The other end of a connection, under a test's control frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event

if TYPE_CHECKING:
    import trio
    from hyperframe.frame import Frame

EventT = TypeVar("EventT", bound=Event)

HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]


class Peer:
    """Plain h2 on a Trio stream."""

    def __init__(self, stream: trio.abc.Stream, *, client_side: bool) -> None:
        self.stream = stream
        self.h2 = H2Connection(H2Configuration(client_side=client_side, validate_outbound_headers=False))
        self._events: list[Event] = []

    async def start(self) -> None:
        self.h2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    async def send_frame(self, frame: Frame) -> None:
        """Past h2, which would end its own connection with some frames."""
        await self.stream.send_all(frame.serialize())

    async def expect(self, kind: type[EventT]) -> EventT:
        """Read until an event of this kind has come; those before it are dropped."""
        while True:
            while self._events:
                event = self._events.pop(0)
                if isinstance(event, kind):
                    return event
            data = await self.stream.receive_some()
            if not data:
                raise AssertionError(f"the connection has ended before any {kind.__name__}")
            self._events += self.h2.receive_data(data)
            await self.flush()

    async def reply(self, stream_id: int, message: bytes) -> None:
        self.h2.send_headers(stream_id, HEADERS)
        self.h2.send_data(stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
        self.h2.send_headers(stream_id, TRAILERS, end_stream=True)
        await self.flush()
