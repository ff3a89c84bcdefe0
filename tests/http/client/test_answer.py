"""What is read at a glance is what h11 reads, and the usual is read at a glance."""

from __future__ import annotations

import h11
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from trikubelet.http.client.answer import SimpleAnswer, read_simple_answer

MOST = 100
USUAL = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Type: text/plain; charset=utf-8\r\ncontent-length: 2\r\n\r\nok"

names = st.sampled_from(
    ["Content-Length", "content-length", "Location", "Transfer-Encoding", "X-Any", "Con tent", " X", "", "Connection"]
)
values = st.sampled_from(
    ["0", "2", "5", "2, 2", "+2", "", " 2 ", "chunked", "identity", "/next", "\t", "é", "\f", "a\0"]
)
answers = st.builds(
    lambda version, status, reason, headers, end, body: (
        f"HTTP/{version} {status}{reason}\r\n".encode("latin-1")
        + "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")
        + end
        + body
    ),
    st.sampled_from(["1.1", "1.1", "1.0", "2"]),
    st.sampled_from(["200", "204", "302", "304", "404", "500", "100", "999", "20", "2000"]),
    st.sampled_from([" OK", "", " ", " so\tso", " \v"]),
    st.lists(st.tuples(names, values), max_size=4),
    st.sampled_from([b"\r\n", b"\r\n", b"\n", b""]),
    st.binary(max_size=8),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An answer, or one with a few bytes changed."""
    answer = bytearray(draw(answers | st.just(USUAL)))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(answer)))
        answer[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\r", b"\n", b" ", b":", b"\0", b"7"])
        )
    return bytes(answer)


def read_by_h11(received: bytes) -> SimpleAnswer | None:
    """None when there is no answer yet, or never."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(received)
    head, body = None, b""
    try:
        while not isinstance(found := connection.next_event(), h11.EndOfMessage):
            if not isinstance(found, h11.Event):
                return None
            if isinstance(found, h11.Response):
                head = found
            elif isinstance(found, h11.Data):
                body += bytes(found.data)
    except h11.RemoteProtocolError:
        return None
    assert head is not None
    location = next((value.decode("latin-1") for name, value in head.headers if name == b"location"), "")
    return SimpleAnswer(head.status_code, location, body)


@pytest.mark.fuzz
@given(damaged())
@example(USUAL)
def test_h11_reads_the_same(received: bytes) -> None:
    answer = read_simple_answer(received, MOST)
    event("simple" if answer else "not simple")
    assert answer is None or answer == read_by_h11(received)


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (USUAL, SimpleAnswer(200, "", b"ok")),
        (USUAL + b" and more", SimpleAnswer(200, "", b"ok")),
        (b"HTTP/1.0 503 Not yet\r\nContent-Length:0\r\n\r\n", SimpleAnswer(503, "", b"")),
        (b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", SimpleAnswer(204, "", b"")),
        (b"HTTP/1.1 302 Found\r\nLocation: /a \r\nContent-Length: 0\r\n\r\n", SimpleAnswer(302, "/a", b"")),
    ],
)
def test_the_usual_is_read_at_a_glance(received: bytes, answer: SimpleAnswer) -> None:
    assert read_simple_answer(received, MOST) == answer


@pytest.mark.parametrize(
    "received",
    [
        b"",
        USUAL[:-1],
        b"HTTP/1.1 200 OK\r\n\r\nuntil it closes",
        b"HTTP/1.1 100 Continue\r\n\r\n" + USUAL,
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n folded\r\n\r\nok",
        b"SSH-2.0-nonsense\r\n\r\n",
    ],
)
def test_the_rest_is_not(received: bytes) -> None:
    assert read_simple_answer(received, MOST) is None
