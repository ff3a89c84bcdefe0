"""GET requests to real servers on loopback, plain and encrypted. The clock is the real one: sockets do not jump."""

from __future__ import annotations

import re
import ssl

import attrs
import pytest
import trio
import trustme

from tests.probes.servers import OK, a_server, a_silent_port, an_encrypted_server, listening
from trikubelet.http.client.get import MOST_BODY, HTTPGetError, http_get
from trikubelet.http.client.request import HTTPRequest

TOO_LONG = "net/http: server response headers exceeded 10485760 bytes; aborted"


async def problem_of(request: HTTPRequest, *, timeout: float = 10) -> HTTPGetError:
    with pytest.raises(HTTPGetError) as caught:
        await http_get(request, timeout=timeout)
    return caught.value


async def test_a_server_is_asked_and_answers() -> None:
    async with a_server() as server:
        response = await http_get(server.request("/hook?x=1"))
        assert (response.status, response.body, response.body_problem) == (200, b"ok", "")
        [request] = server.requests
        assert request.startswith("GET /hook?x=1 HTTP/1.1\r\n")
        assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in request
        assert "\r\nConnection: close\r\n" in request


@pytest.mark.parametrize("status", [204, 304, 404, 500])
async def test_any_status_is_an_answer(status: int) -> None:
    async with a_server(b"HTTP/1.1 %d Said\r\n\r\n" % status) as server:
        assert (await http_get(server.request())).status == status


async def test_an_encrypted_server_is_not_asked_who_it_is() -> None:
    async with an_encrypted_server() as server:
        for host in ("127.0.0.1", "localhost"):
            response = await http_get(server.request(scheme="https", host=host))
            assert (response.status, response.body) == (200, b"ok")


async def test_a_plain_server_asked_by_https_is_told_from_a_broken_one() -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

    async def talks_plain(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with listening(talks_plain) as port:
        error = await problem_of(HTTPRequest("https", "127.0.0.1", port, "/"))
    assert error.plain_http
    assert str(error) == f'Get "https://127.0.0.1:{port}/": http: server gave HTTP response to HTTPS client'


@pytest.mark.parametrize("answer", [b"SSH-2.0-nonsense\r\n", b""])
async def test_a_server_that_speaks_something_else_is_no_http_server(answer: bytes) -> None:
    async def talks(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with listening(talks) as port:
        for scheme in ("http", "https"):
            error = await problem_of(HTTPRequest(scheme, "127.0.0.1", port, "/"))
            assert not error.plain_http
            assert re.search(r"EOF|malformed HTTP response|tls: ", error.problem)


async def test_nobody_listening_is_said_as_go_says_it() -> None:
    async with a_server() as server:
        request = server.request()
    error = await problem_of(request)
    assert str(error) == f'Get "{request.url}": dial tcp {request.address}: connect: connection refused'


async def test_a_name_that_is_none_is_an_error() -> None:
    for host in ("bad..name", "x" * 300):
        error = await problem_of(HTTPRequest("http", host, 80))
        assert error.problem == f"dial tcp: lookup {host}: no such host"


async def test_redirects_to_the_same_host_are_followed() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /next\r\n\r\n"
    async with a_server(moved, OK) as server:
        assert (await http_get(server.request())).status == 200
        assert [request.split()[1] for request in server.requests] == ["/", "/next"]


async def test_a_redirect_to_another_host_is_the_answer() -> None:
    async with a_server(b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n\r\n") as server:
        assert (await http_get(server.request())).status == 302


async def test_endless_redirects_end_after_ten() -> None:
    async with a_server(b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n") as server:
        error = await problem_of(server.request())
        assert error.problem == "stopped after 10 redirects"
        assert len(server.requests) == 10


async def test_a_long_body_is_cut() -> None:
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with a_server(head + chunk * 4, stays_open=True) as server:
        response = await http_get(server.request())
        assert len(response.body) == MOST_BODY
        assert response.body_problem == ""


async def test_a_body_announced_as_long_is_not_read() -> None:
    async with a_server(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nxx", stays_open=True) as server:
        response = await http_get(server.request())
        assert (response.status, response.body, response.body_problem) == (200, b"", "")


async def test_a_body_announced_as_long_may_be_wanted_all_the_same() -> None:
    async with a_server(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99_999) as server:
        response = await http_get(server.request(), skip_long_body=False)
        assert (response.status, response.body, response.body_problem) == (200, b"x" * MOST_BODY, "")


async def test_a_connection_that_takes_too_long_is_told_from_an_answer_that_does() -> None:
    with a_silent_port() as port:
        request = HTTPRequest("http", "127.0.0.1", port)
        with pytest.raises(HTTPGetError) as caught:
            await http_get(request, connect_timeout=0.1)
        assert caught.value.problem == f"dial tcp {request.address}: i/o timeout"
        error = await problem_of(request, timeout=0.1)
        assert error.problem == "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


async def test_encryption_that_breaks_later_is_told_as_such() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("somebody.else").configure_cert(context)

    async def forgets_to_encrypt(stream: trio.SocketStream) -> None:
        encrypted = trio.SSLStream(stream, context, server_side=True)
        await encrypted.receive_some()
        await stream.send_all(OK)
        await stream.aclose()

    async with listening(forgets_to_encrypt) as port:
        error = await problem_of(HTTPRequest("https", "127.0.0.1", port))
    assert error.problem == "tls: WRONG_VERSION_NUMBER"


async def test_a_body_that_breaks_off_is_an_answer_with_a_problem() -> None:
    async with a_server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nxx") as server:
        response = await http_get(server.request())
        assert (response.status, response.body, response.body_problem) == (200, b"xx", "unexpected EOF")


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_server_that_does_not_answer_costs_the_timeout(said: bytes) -> None:
    async with a_server(said or b"H", stays_open=True) as server:
        error = await problem_of(server.request(), timeout=0.2)
        assert error.problem == "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


async def test_a_body_that_does_not_end_costs_the_timeout() -> None:
    async with a_server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nxx", stays_open=True) as server:
        response = await http_get(server.request(), timeout=2)
        assert (response.status, response.body) == (200, b"xx")
        assert "context cancellation while reading body" in response.body_problem


async def test_a_server_that_never_shakes_hands_costs_the_timeout() -> None:
    async def says_nothing(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with listening(says_nothing) as port:
        error = await problem_of(HTTPRequest("https", "127.0.0.1", port), timeout=0.2)
        assert "Client.Timeout exceeded" in error.problem


async def test_interim_answers_are_skipped_but_not_without_end() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    long = interim.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
    async with a_server(interim * 2 + OK, interim * 50 + OK, long * 106 + OK) as server:
        assert (await http_get(server.request())).status == 200
        assert (await http_get(server.request())).status == 200
        assert (await problem_of(server.request())).problem == TOO_LONG


async def test_a_head_without_end_is_given_up() -> None:
    async with a_server(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_600_000, stays_open=True) as server:
        assert (await problem_of(server.request())).problem == TOO_LONG


@pytest.mark.parametrize("pieces", [[2**24], [1000] * 400, [16384, 1, 16383, 5], [15, 1, 1, 1]])
@pytest.mark.parametrize("size", [10_000, 16_370, 16_384, 40_000, 300_000])
async def test_a_long_head_is_read_however_it_comes(pieces: list[int], size: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\nX: " + b"x" * size + b"\r\nContent-Length: 2\r\nY: " + b"y" * size + b"\r\n\r\nok"

    async def answers_in_pieces(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        place = 0
        for piece in pieces:
            await stream.send_all(answer[place : place + piece])
            place += piece
            await trio.lowlevel.checkpoint()
        await stream.send_all(answer[place:])

    async with listening(answers_in_pieces) as port:
        response = await http_get(HTTPRequest("http", "127.0.0.1", port, "/"), timeout=10)
    assert (response.status, response.body, response.body_problem) == (200, b"ok", "")


@pytest.mark.parametrize(
    ("answer", "status", "body", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\nServer : old\r\n\r\nend", 200, b"end", ""),
        (b"HTTP/1.1 200\nX: y\n\nend", 200, b"end", ""),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nend", 200, b"end", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nend and more", 200, b"end", ""),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, b"", ""),
        (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", 304, b"", ""),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 101, b"", ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nend\r\n0\r\n\r\n", 200, b"end", ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nend\r\n", 200, b"end", "unexpected EOF"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 200, b"", "malformed chunked encoding"),
        (b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nend", 200, b"end", ""),
    ],
)
async def test_answers_are_read_as_gos_client_reads_them(answer: bytes, status: int, body: bytes, problem: str) -> None:
    async with a_server(answer) as server:
        response = await http_get(server.request())
    assert (response.status, response.body, response.body_problem) == (status, body, problem)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b'220 "mail" ready\r\n\r\n', r'malformed HTTP status code "\"mail\""'),
        (b'"SSH"-2.0\r\n', r'malformed HTTP response "\"SSH\"-2.0"'),
        (b"HTTP/1.1 200 OK\r\nX: \x1b[2J\r\n\r\n", r'malformed MIME header line: "X: \x1b[2J"'),
        (b"HTTP/1.1 200 OK\r\nX: y", "unexpected EOF"),
    ],
)
async def test_what_is_no_answer_is_quoted_as_go_quotes_it(said: bytes, problem: str) -> None:
    async with a_server(said) as server:
        broken = (await problem_of(server.request())).problem
        assert broken == f"net/http: HTTP/1.x transport connection broken: {problem}"


async def test_a_header_is_sent_as_utf_8() -> None:
    async with a_server() as server:
        await http_get(attrs.evolve(server.request(), headers=(("X-Owner", "Jérôme"),)))
        assert "X-Owner: Jérôme\r\n" in server.requests[0]


async def test_a_header_that_cannot_be_sent_is_an_error() -> None:
    async with a_server() as server:
        request = attrs.evolve(server.request(), headers=(("No spaces", "x"),))
        assert "invalid request" in (await problem_of(request)).problem
        assert server.requests == []
