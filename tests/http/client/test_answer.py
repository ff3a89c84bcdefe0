"""Heads are read as Go's client reads them, in whatever pieces they come; what h11 reads, too, is read the same."""

from __future__ import annotations

import h11
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from trikubelet.http.client.answer import MOST_KEPT, AnswerHead, MalformedHeadError

USUAL = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Type: text/plain; charset=utf-8\r\ncontent-length: 2\r\n\r\nok"
Read = tuple[int, str, int | None, bool, bytes]
"""Status, location, length, whether it is chunked, and what follows."""


def read(received: bytes) -> Read | str | None:
    """What is wrong with it; None when it has not ended."""
    return read_in_pieces([received])


def read_in_pieces(pieces: list[bytes]) -> Read | str | None:
    head = AnswerHead()
    for index, piece in enumerate(pieces):
        try:
            rest = head.feed(piece)
        except MalformedHeadError as error:
            return str(error)
        if rest is not None:
            return head.status, head.location, head.length, head.chunked, rest + b"".join(pieces[index + 1 :])
    return None


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


def read_by_h11(received: bytes) -> tuple[int, str] | None:
    """Status and location. None when there is no answer yet, or never."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(received)
    try:
        head = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(head, h11.Response):
        return None
    return head.status_code, next((value.decode("latin-1") for name, value in head.headers if name == b"location"), "")


@pytest.mark.fuzz
@given(damaged())
@example(USUAL)
def test_h11_reads_the_same(received: bytes) -> None:
    answer, judged = read(received), read_by_h11(received)
    both = isinstance(answer, tuple) and judged is not None
    event("both read it" if both else "not both")
    if isinstance(answer, tuple) and judged is not None:
        assert (answer[0], answer[1].encode()) == (judged[0], judged[1].encode("latin-1"))


@pytest.mark.fuzz
@given(damaged(), st.lists(st.integers(1, 40), max_size=20))
@example(USUAL, [1] * 100)
def test_the_pieces_do_not_matter(received: bytes, sizes: list[int]) -> None:
    pieces, place = [], 0
    for size in sizes:
        pieces.append(received[place : place + size])
        place += size
    cut, whole = read_in_pieces([*pieces, received[place:]]), read(received)
    assert type(cut) is type(whole)
    if not isinstance(whole, str):
        assert cut == whole


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (USUAL, (200, "", 2, False, b"ok")),
        (b"HTTP/1.0 503 Not yet\r\nContent-Length:0\r\n\r\n", (503, "", 0, False, b"")),
        (b"HTTP/1.1 302 Found\r\nLocation: /a \r\nLocation: /b\r\n\r\n", (302, "/a", None, False, b"")),
        (b"HTTP/1.1 302 Found\r\nLocation: /\xc3\xa9\r\n\r\n", (302, "/é", None, False, b"")),
        (b"HTTP/1.1 302 Found\r\nLocation: /\xe9\r\n\r\n", (302, "/é", None, False, b"")),
        # The status line.
        (b"HTTP/1.1 200\r\n\r\n", (200, "", None, False, b"")),
        (b"HTTP/1.1   200   OK\n\n", (200, "", None, False, b"")),
        (b"HTTP/9.9 099 \x01\r\n\r\n", (99, "", None, False, b"")),
        (b"HTTP/2 200 OK\r\n\r\n", 'malformed HTTP version "HTTP/2"'),
        (b"HTTP/1.1 2000 OK\r\n\r\n", 'malformed HTTP status code "2000"'),
        (b"HTTP/1.1 -20 OK\r\n\r\n", 'malformed HTTP status code "-20"'),
        (b"HTTP/1.1\r\n\r\n", 'malformed HTTP response "HTTP/1.1"'),
        (b"\r\nHTTP/1.1 200 OK\r\n\r\n", 'malformed HTTP response ""'),
        # Lines.
        (HEAD + b"Server : old\r\nA b: c\r\n\r\n", (200, "", None, False, b"")),
        (HEAD + b"Content-Length : 2\r\n\r\nok", (200, "", None, False, b"ok")),
        (HEAD + b"X: y\nContent-Length: 2\n\nok", (200, "", 2, False, b"ok")),
        (HEAD + b"Content-Length:\r\n 2\r\n\t\r\nX: y\r\n z: 5\r\n\r\nok", (200, "", 2, False, b"ok")),
        (HEAD + b"Location: /a\r\n  b\r\n\r\n", (200, "/a b", None, False, b"")),
        (HEAD + b" X: y\r\n\r\n", 'malformed MIME header initial line: " X: y"'),
        (HEAD + b"X\r\n\r\n", 'malformed MIME header: missing colon: "X"'),
        (HEAD + b": y\r\n\r\n", 'malformed MIME header line: ": y"'),
        (HEAD + b"X\t: y\r\n\r\n", 'malformed MIME header line: "X\\t: y"'),
        (HEAD + b"X: a\0\r\n\r\n", 'malformed MIME header line: "X: a\\x00"'),
        (HEAD + b"X: a\rb\r\n\r\n", 'malformed MIME header line: "X: a\\rb"'),
        (HEAD + b"X: \xff\x80\r\n\r\n", (200, "", None, False, b"")),
        # The body.
        (HEAD + b"Content-Length: 2\r\ncontent-length:2\r\n\r\n", (200, "", 2, False, b"")),
        (HEAD + b"Content-Length: 00000000000000000000002\r\n\r\n", (200, "", 2, False, b"")),
        (HEAD + b"Content-Length: 9223372036854775807\r\n\r\n", (200, "", 2**63 - 1, False, b"")),
        (HEAD + b"Content-Length: 9223372036854775808\r\n\r\n", 'bad Content-Length "9223372036854775808"'),
        (HEAD + b"Content-Length: 2, 2\r\n\r\n", 'bad Content-Length "2, 2"'),
        (HEAD + b"Content-Length: +2\r\n\r\n", 'bad Content-Length "+2"'),
        (HEAD + b"Content-Length: \r\n\r\n", 'invalid empty Content-Length ""'),
        (
            HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n",
            'http: message cannot contain multiple Content-Length headers; got "2" "3"',
        ),
        (HEAD + b"Transfer-Encoding: Chunked\r\nContent-Length: 2\r\n\r\n", (200, "", None, True, b"")),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 'unsupported transfer encoding: "gzip"'),
        (
            HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            'too many transfer encodings: "chunked" "chunked"',
        ),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", (200, "", None, False, b"")),
        (b"HTTP/1.1 204 OK\r\nTransfer-Encoding: chunked\r\n\r\n", (204, "", 0, False, b"")),
        (b"HTTP/1.1 304 OK\r\nContent-Length: 5\r\n\r\n", (304, "", 0, False, b"")),
        (b"HTTP/1.1 101 Switch\r\n\r\nraw", (101, "", 0, False, b"raw")),
        # Not there yet.
        (b"", None),
        (b"HTTP/1.1 200 OK", None),
        (HEAD, None),
        (HEAD + b"X: y\r\n", None),
        (HEAD + b"X: y\r\n\r", None),
    ],
)
def test_a_head_is_read_as_go_reads_it(received: bytes, answer: Read | str | None) -> None:
    assert read(received) == answer
    pieces = read_in_pieces([bytes([byte]) for byte in received])
    assert pieces == answer or (isinstance(answer, str) and isinstance(pieces, str))


@pytest.mark.parametrize(
    "line",
    [b"X: " + b"x" * 99_999 + b"\r\n", b" folded\r\n", b"X:\n", b"Locatio: /next\r\n", b"X: " + b"y" * 16_384 + b"\n"],
)
def test_what_does_not_matter_is_not_kept(line: bytes) -> None:
    head = AnswerHead()
    answer = HEAD + b"X: y\r\n" + line * (2 * 2**20 // len(line)) + b"Content-Length: 2\r\n\r\nok"
    for place in range(0, len(answer), 5000):
        rest = head.feed(answer[place : place + 5000])
        assert len(head._pending) <= MOST_KEPT + 5000
    assert (rest, head.length) == (b"ok", 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 " + b"x" * 99_999,
        HEAD + b"Location: /" + b"x" * 99_999,
        HEAD + b"Location: /next\r\n" * 9_999,
        HEAD + b"Location: /next\r\n" + b" more\r\n" * 9_999,
        HEAD + b"x" * 99_999,
        HEAD + b"X: " + b"x" * 99_999 + b"\0",
    ],
)
def test_what_matters_has_a_limit(answer: bytes) -> None:
    assert isinstance(read_in_pieces([answer[place : place + 5000] for place in range(0, len(answer), 5000)]), str)
