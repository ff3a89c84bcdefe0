"""The protocol beside h2, which judges: random conversations mean the same to both, and both answer the same.

750 conversations of each side by day, and a hundred thousand new ones by night (`DOCUMENT_INPUTS`).
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import attrs
import pytest
from hpack import Decoder
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, WindowUpdateFrame

from tests.examples import examples
from tests.rpc.grpc.conversations import PREFACE, REQUEST, Does, Says, conversation
from tests.rpc.grpc.h2_judge import Judge
from tests.watchdog import one_example
from trikubelet.rpc.grpc.http2 import (
    MAX_FRAME_SIZE,
    ErrorCodes,
    Http2,
    Http2Error,
    NoStreamsLeftError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.rpc.grpc.hpack import Headers

INPUTS: Final = int(os.environ.get("DOCUMENT_INPUTS", examples(3000)))

_RESPONSE: Final[Headers] = [(b":status", b"200"), (b"x-many", b"a" * 40), (b"x-one", b"1")]


@pytest.mark.fuzz
@attrs.define
class _Sent:
    """What one of the two has sent."""

    decoder: Decoder = attrs.Factory(Decoder)

    def __attrs_post_init__(self) -> None:
        self.decoder.max_allowed_table_size = 2**32

    def read(self, data: bytes) -> Iterator[tuple[object, ...]]:
        """Its frames, with headers as headers."""
        if data.startswith(PREFACE):
            data = data[len(PREFACE) :]
        while data:
            frame, length = Frame.parse_frame_header(memoryview(data[:9]))
            frame.parse_body(memoryview(data[9 : 9 + length]))
            data = data[9 + length :]
            if isinstance(frame, HeadersFrame | ContinuationFrame):
                assert "END_HEADERS" in frame.flags
                headers = [tuple(header) for header in self.decoder.decode(frame.data, raw=True)]
                yield "HEADERS", frame.stream_id, "END_STREAM" in frame.flags, headers
            elif not isinstance(frame, WindowUpdateFrame):
                # When data that nobody takes is granted again is each one's own affair.
                yield type(frame).__name__, frame.stream_id, sorted(frame.flags), frame.serialize_body()


class _Pair:
    """The two, in the same conversation."""

    def __init__(self, *, client_side: bool) -> None:
        self.ours = Http2(client_side=client_side)
        self.judge = Judge(client_side=client_side)
        self._client_side = client_side
        self._ended: set[int] = set()
        self._answered: set[int] = set()
        self._sent = (_Sent(), _Sent())
        self.ours.start()
        self.judge.start()
        # The settings that each names are its own affair.
        self.ours.data_to_send()
        self.judge.data_to_send()

    def says(self, data: bytes) -> bool:
        """Whether the conversation goes on."""
        ours, judged = self._receive(data), self.judge.receive(data)
        if (ours is None) != (judged is None):
            # One sees with the head of a frame what the other sees with the end of it.
            ours = None if ours is None else self._receive(bytes(2**18))
            judged = None if judged is None else self.judge.receive(bytes(2**24))
        assert ours == judged
        if ours is None:
            return False
        self.compare_sent()
        return True

    def _receive(self, data: bytes) -> list[tuple[object, ...]] | None:
        try:
            events = self.ours.receive_data(data)
        except Http2Error:
            return None
        return [(type(event).__name__, *attrs.astuple(event, recurse=False)) for event in events]

    def does(self, action: Does) -> None:
        """Do it with both, if h2 lets us."""
        stream_id = action.stream_id
        if action.action == "request":
            self._request(end=action.end)
            return
        stream = self.judge.streams.get(stream_id)
        known = stream is not None and not stream.closed
        assert known == (stream_id in self.ours._streams)
        if not known or stream_id in self._ended:
            self.ours.reset_stream(stream_id, ErrorCodes.CANCEL) if not known else None
            return
        match action.action:
            case "headers" if not self._client_side:
                end = action.end or stream_id in self._answered
                self._answered.add(stream_id)
                self.judge.send_headers(stream_id, _RESPONSE, end_stream=end)
                self.ours.send_headers(stream_id, _RESPONSE, end_stream=end)
                self._note(stream_id, end=end)
            case "data" if self._client_side or stream_id in self._answered:
                room = self.judge.local_flow_control_window(stream_id)
                assert self.ours.local_flow_control_window(stream_id) == room
                if room >= 7:
                    self.judge.send_data(stream_id, b"payload", end_stream=action.end)
                    self.ours.send_data(stream_id, b"payload", end_stream=action.end)
                    self._note(stream_id, end=action.end)
            case "end" if self._client_side or stream_id in self._answered:
                self.judge.end_stream(stream_id)
                self.ours.end_stream(stream_id)
                self._note(stream_id, end=True)
            case "reset":
                self.judge.reset_stream(stream_id, ErrorCodes.CANCEL)
                self.ours.reset_stream(stream_id, ErrorCodes.CANCEL)
            case "grow":
                self.judge.increment_flow_control_window(100, stream_id)
                self.ours.increment_flow_control_window(100, stream_id)
        self.compare_sent()

    def compare_sent(self) -> None:
        ours, judged = self._sent
        assert list(ours.read(self.ours.data_to_send())) == list(judged.read(self.judge.data_to_send()))

    def _request(self, *, end: bool) -> None:
        if (
            not self._client_side
            or self.judge.open_outbound_streams >= self.judge.remote_settings.max_concurrent_streams
        ):
            return
        assert self.ours.max_outbound_streams >= self.judge.open_outbound_streams
        stream_id = self.judge.get_next_available_stream_id()
        self.judge.send_headers(stream_id, REQUEST, end_stream=end)
        assert self.ours.open_stream(REQUEST, end_stream=end) == stream_id
        self._note(stream_id, end=end)
        self.compare_sent()

    def _note(self, stream_id: int, *, end: bool) -> None:
        if end:
            self._ended.add(stream_id)


@pytest.mark.parametrize("client_side", [True, False], ids=["client", "server"])
def test_random_conversations_mean_what_they_mean_to_h2(client_side: bool) -> None:
    seed = random.randrange(2**32)
    whole = 0
    for number in range(INPUTS):
        chance = random.Random(f"{seed} {number}")
        pair = _Pair(client_side=client_side)
        try:
            with one_example():
                for step in conversation(chance, client_side=client_side):
                    match step:
                        case Says(data):
                            if not pair.says(data):
                                break
                        case Does():
                            pair.does(step)
                else:
                    whole += 1
        except BaseException:
            print(f"the conversation {number} of the seed {seed}")
            raise
    # Most are no nonsense.
    assert whole > INPUTS / 4


def _client() -> Http2:
    client = Http2(client_side=True)
    client.start()
    client.open_stream(REQUEST)
    client.data_to_send()
    return client


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 4, 8, 9
_END_HEADERS = 4
_OK = b"\x88"


def test_a_preliminary_response_is_no_response() -> None:
    client = _client()
    early = _frame(_HEADERS, _END_HEADERS, 1, b"\x08\x03103")
    assert client.receive_data(early) == []
    [response] = client.receive_data(_frame(_HEADERS, _END_HEADERS, 1, _OK))
    assert type(response).__name__ == "ResponseReceived"
    with pytest.raises(Http2Error, match="preliminary"):
        client.receive_data(early)


def test_late_headers_on_a_stream_that_was_reset_are_refused_alone() -> None:
    client = _client()
    client.reset_stream(1, ErrorCodes.CANCEL)
    client.data_to_send()
    assert client.receive_data(_frame(_HEADERS, _END_HEADERS, 1, b"\x08\x03103")) == []
    assert client.data_to_send() == _frame(3, 0, 1, int(ErrorCodes.STREAM_CLOSED).to_bytes(4, "big"))


def test_data_that_nobody_takes_any_more_is_granted_again() -> None:
    client = _client()
    client.reset_stream(1, ErrorCodes.CANCEL)
    client.data_to_send()
    for _ in range(1000):
        assert client.receive_data(_frame(_DATA, 0, 1, bytes(MAX_FRAME_SIZE))) == []


def test_headers_without_an_end_end_the_connection() -> None:
    client = _client()
    client.receive_data(_frame(_HEADERS, 0, 1, b""))
    with pytest.raises(Http2Error, match="without an end") as caught:
        client.receive_data(100 * _frame(_CONTINUATION, 0, 1, b""))
    assert caught.value.code is ErrorCodes.ENHANCE_YOUR_CALM
    client = _client()
    client.receive_data(_frame(_HEADERS, 0, 1, b""))
    with pytest.raises(Http2Error, match="without an end"):
        client.receive_data(2 * _frame(_CONTINUATION, 0, 1, bytes(MAX_FRAME_SIZE - 5)))


def test_headers_that_do_not_fit_a_frame_are_continued() -> None:
    client, server = Http2(client_side=True), Http2(client_side=False)
    client.start()
    client.data_to_send()
    headers = [(b"x-%d" % number, bytes(3000)) for number in range(20)]
    client.open_stream([*REQUEST, *headers])
    sent = client.data_to_send()
    assert sent[4] == 0, "the first frame is not the last"
    [request] = server.receive_data(PREFACE + sent)
    assert request.headers == [*REQUEST, *headers]  # type: ignore[union-attr]


def test_numbers_of_streams_are_used_up() -> None:
    client = _client()
    client._highest_outbound_stream_id = 2**31 - 3
    assert client.open_stream(REQUEST) == 2**31 - 1
    with pytest.raises(NoStreamsLeftError):
        client.open_stream(REQUEST)


def test_bytes_may_come_one_by_one() -> None:
    client = _client()
    whole = _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, _OK) + _frame(_DATA, 1, 1, b"abc")
    names = [type(event).__name__ for byte in whole for event in client.receive_data(bytes([byte]))]
    assert names == ["SettingsChanged", "ResponseReceived", "DataReceived", "StreamEnded"]
