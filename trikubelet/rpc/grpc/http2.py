"""h2, set up for gRPC between two programs of one machine.

h2 speaks HTTP/2 without I/O. Three things differ from its defaults:

- Headers are neither validated nor normalized, and stay bytes: both ends are gRPC, and the few headers that matter are
  looked at by their exact names.
- GOAWAY does not end the conversation at once. h2 closes its state machine, but gRPC servers announce a shutdown with
  GOAWAY and then finish the calls that they have accepted. The override below is the one place that reaches into h2
  (`_receive_goaway_frame`); `tests/rpc/grpc` shows a connection that finishes its calls after GOAWAY.
- A peer that opens one stream too many has that stream refused, where h2 would end the connection.

Receive windows are generous (memory is bounded by `STREAM_WINDOW` for each stream, and messages by their size limit),
so that a reply is hardly ever held up by flow control.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

STREAM_WINDOW = 4 * 2**20
CONNECTION_WINDOW = 64 * 2**20
MAX_FRAME_SIZE = 256 * 2**10

_INITIAL_CONNECTION_WINDOW = 65_535


class Http2(H2Connection):
    """One side of an HTTP/2 connection, with this package's settings."""

    # How many closed streams h2 remembers, to tell late frames from wrong ones: its default takes megabytes.
    MAX_CLOSED_STREAMS = 4096

    def __init__(self, *, client_side: bool, max_concurrent_streams: int = 100) -> None:
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
            SettingCodes.MAX_HEADER_LIST_SIZE: self.DEFAULT_MAX_HEADER_LIST_SIZE,
        }
        if client_side:
            values[SettingCodes.ENABLE_PUSH] = 0
        else:
            values[SettingCodes.MAX_CONCURRENT_STREAMS] = max_concurrent_streams
        self.local_settings = Settings(client=client_side, initial_values=values)
        self.max_inbound_frame_size = MAX_FRAME_SIZE

    def start(self) -> None:
        """Queue the preface, our settings, and the connection's window."""
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW - _INITIAL_CONNECTION_WINDOW)

    def send_goaway(self, last_stream_id: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Queue GOAWAY, and keep serving the streams up to `last_stream_id`."""
        self._prepare_for_sending([GoAwayFrame(stream_id=0, last_stream_id=last_stream_id, error_code=code)])

    @property
    def largest_data_frame(self) -> int:
        """Bytes that we put into one frame: no more than the peer takes, nor than lets others have their turn."""
        return min(self.max_outbound_frame_size, MAX_FRAME_SIZE)

    @property
    def open_inbound_streams(self) -> int:
        """Always 0 to h2, so that it never ends a connection for one stream too many: the server refuses that
        stream."""
        super().open_inbound_streams  # noqa: B018 - it forgets closed streams as it counts
        return 0

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]
