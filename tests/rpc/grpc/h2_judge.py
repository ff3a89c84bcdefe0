"""h2 set up as `Http2` is, and what it says in the words of `Http2`: it judges what random conversations mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from trikubelet.rpc.grpc.http2 import CONNECTION_WINDOW, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, STREAM_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame

_DEFAULT_WINDOW: Final = 65_535
_MANY_STREAMS: Final = 2**31 - 1


class Judge(H2Connection):
    """One side of a connection."""

    def __init__(self, *, client_side: bool) -> None:
        super().__init__(
            H2Configuration(
                client_side=client_side,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
        }
        if client_side:
            values[SettingCodes.ENABLE_PUSH] = 0
        else:
            values[SettingCodes.MAX_CONCURRENT_STREAMS] = _MANY_STREAMS
        self.local_settings = Settings(client=client_side, initial_values=values)
        self.max_inbound_frame_size = MAX_FRAME_SIZE

    def start(self) -> None:
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW - _DEFAULT_WINDOW)

    def receive(self, data: bytes) -> list[tuple[object, ...]] | None:
        """What happens; None when it ends the connection."""
        try:
            events = self.receive_data(data)
        except ProtocolError:
            return None
        return [told for event in events if (told := tell(event)) is not None]

    def _receive_headers_frame(self, frame: HeadersFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        if self.config.client_side and frame.stream_id % 2 == 0:
            raise ProtocolError("a server opens no streams")
        told: tuple[list[Frame], list[h2.events.Event]] = super()._receive_headers_frame(frame)
        return told

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        # h2 would take it as the end of all streams.
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data
        return [], [event]


def tell(event: h2.events.Event) -> tuple[object, ...] | None:
    """An event of h2's as kind and values; None for one that `Http2` has no word for."""
    match event:
        case h2.events.RequestReceived() | h2.events.ResponseReceived() | h2.events.TrailersReceived():
            return type(event).__name__, event.stream_id, _pairs(event.headers)
        case h2.events.DataReceived():
            return "DataReceived", event.stream_id, event.data, event.flow_controlled_length
        case h2.events.StreamEnded():
            return "StreamEnded", event.stream_id
        case h2.events.StreamReset():
            return "StreamReset", event.stream_id, int(event.error_code)
        case h2.events.WindowUpdated():
            return "WindowUpdated", event.stream_id
        case h2.events.RemoteSettingsChanged():
            return ("SettingsChanged",)
        case h2.events.ConnectionTerminated():
            last = (event.last_stream_id or 0) & 0x7FFFFFFF
            return "ConnectionTerminated", event.error_code, last, event.additional_data or b""
    return None


def _pairs(headers: Sequence[tuple[object, object]]) -> list[tuple[object, object]]:
    return [(name, value) for name, value in headers]
