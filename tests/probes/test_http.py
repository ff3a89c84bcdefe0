"""httpGet probes of real servers: the kubelet's tables, servers that misbehave, and what is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.probes.servers import (
    HOST,
    Request,
    a_closed_port,
    a_silent_port,
    an_encrypted_server,
    listening,
    ports_in_time_wait,
    reply,
    reset,
    serving,
    target,
)
from trikubelet.api import HTTPGetAction, HTTPHeader
from trikubelet.http.client.get import MOST_BODY
from trikubelet.probes.http import ask_http
from trikubelet.probes.types import Outcome, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

TIMED_OUT = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"


async def ask(port: int | str, path: str = "/", *headers: tuple[str, str], timeout: float = 10) -> ProbeAnswer:
    """Probe a server on loopback."""
    named = tuple(HTTPHeader(name=name, value=value) for name, value in headers)
    return await ask_http(target(), HTTPGetAction(path=path, port=port, http_headers=named), timeout)


def echo(request: Request) -> bytes:
    return reply(body="\n".join(f"{name}: {value}" for name, value in request.headers))


def moved(status: int, then: bytes) -> Callable[[Request], bytes]:
    """A server whose first page has moved to its second."""
    return lambda request: reply(status, Location="/new") if request.path == "/" else then


async def test_what_a_server_answers_is_the_output() -> None:
    async with serving(lambda _: reply(body="ok body")) as port:
        assert await ask(port) == ProbeAnswer(Outcome.SUCCESS, "ok body")


@pytest.mark.parametrize("status", [200, 204, 299])
async def test_a_status_of_success_is_success(status: int) -> None:
    async with serving(lambda _: reply(status)) as port:
        assert (await ask(port)).outcome is Outcome.SUCCESS


@pytest.mark.parametrize("status", [400, 404, 500, 599, 999])
async def test_any_other_status_is_a_failure_without_the_body(status: int) -> None:
    async with serving(lambda _: reply(status, "fail body")) as port:
        answer = await ask(port)
    assert answer == ProbeAnswer(Outcome.FAILURE, f"HTTP probe failed with statuscode: {status}")


async def test_a_server_sees_three_headers_and_its_host() -> None:
    async with serving(echo) as port:
        answer = await ask(port)
    names = {line.partition(":")[0] for line in answer.output.split("\n")}
    assert names == {"Accept", "Connection", "Host", "User-Agent"}
    assert "User-Agent: kube-probe/1.36" in answer.output
    assert "Accept: */*" in answer.output
    assert f"Host: {HOST}:{port}" in answer.output


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ([("Accept-Encoding", "gzip")], ["Accept-Encoding: gzip"]),
        ([("Accept-Encoding", "foo")], ["Accept-Encoding: foo"]),
        ([("Accept-Encoding", "")], ["Accept-Encoding: "]),
        ([("X-Muffins-Or-Cupcakes", "muffins")], ["X-Muffins-Or-Cupcakes: muffins"]),
        ([("User-Agent", "foo/1.0")], ["User-Agent: foo/1.0"]),
        ([("User-Agent", "foo/1.0"), ("Accept", "text/html")], ["User-Agent: foo/1.0", "Accept: text/html"]),
        ([("X-Muffins-Or-Cupcakes", "muffins"), ("Accept", "foo/*")], ["Accept: foo/*"]),
        ([("Accept", "foo/*")], ["Accept: foo/*"]),
        ([("Host", "muffins.cupcakes.org")], ["Host: muffins.cupcakes.org"]),
    ],
)
async def test_headers_are_sent_as_given(headers: list[tuple[str, str]], seen: list[str]) -> None:
    async with serving(echo) as port:
        answer = await ask(port, "/", *headers)
    assert answer.outcome is Outcome.SUCCESS
    assert set(seen) <= set(answer.output.split("\n"))


@pytest.mark.parametrize("name", ["User-Agent", "Accept"])
async def test_an_empty_header_takes_the_default_away(name: str) -> None:
    async with serving(echo) as port:
        answer = await ask(port, "/", (name, ""))
    assert answer.outcome is Outcome.SUCCESS
    assert f"{name}:" not in answer.output


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_as_good_as_what_it_leads_to(status: int) -> None:
    async with serving(moved(status, reply(200))) as port:
        assert (await ask(port)).outcome is Outcome.SUCCESS
    async with serving(moved(status, reply(500))) as port:
        assert (await ask(port)).outcome is Outcome.FAILURE


@pytest.mark.parametrize("status", [300, 304, 308])
@pytest.mark.parametrize("body", ["", "ok body"])
async def test_a_redirect_to_nowhere_is_success_with_a_warning(status: int, body: str) -> None:
    last = reply(status, "" if status == 304 else body)
    async with serving(moved(307, last)) as port:
        answer = await ask(port)
    assert answer.outcome is Outcome.WARNING
    assert answer.output == f"Probe terminated redirects, Response body: {'' if status == 304 else body}"


def pages(request: Request) -> bytes:
    page, _, location = request.path.partition("?")
    match page:
        case "/redirect":
            return reply(302, Location=location)
        case "/loop":
            return reply(302, Location="/loop")
        case "/success":
            return reply(200)
        case _:
            return reply(500)


@pytest.mark.parametrize(
    ("location", "outcome"),
    [
        ("/success", Outcome.SUCCESS),
        ("/fail", Outcome.FAILURE),
        ("http://127.0.0.1:{other}/success", Outcome.SUCCESS),
        ("http://127.0.0.1:{other}/fail", Outcome.FAILURE),
        ("http://0.0.0.0/fail", Outcome.WARNING),
        ("http://localhost:{other}/success", Outcome.WARNING),
        ("/loop", Outcome.FAILURE),
    ],
)
async def test_redirects_are_followed_on_the_same_host(location: str, outcome: Outcome) -> None:
    async with serving(pages) as port, serving(pages) as other:
        answer = await ask(port, f"/redirect?{location.format(other=other)}")
    assert answer.outcome is outcome
    assert answer.error == ""
    if location == "/loop":
        assert answer.output == f'Get "http://{HOST}:{port}/loop": stopped after 10 redirects'


@pytest.mark.parametrize(("name", "outcome"), [("www.ok.com", Outcome.SUCCESS), ("www.no.com", Outcome.FAILURE)])
async def test_a_host_header_survives_a_redirect(name: str, outcome: Outcome) -> None:
    def choosy(request: Request) -> bytes:
        if request.path == "/":
            return reply(302, Location="/new")
        return reply(200 if request.header("Host") == "www.ok.com" else 400)

    async with serving(choosy) as port:
        assert (await ask(port, "/", ("Host", name))).outcome is outcome


@pytest.mark.parametrize("length", [MOST_BODY - 1, MOST_BODY, MOST_BODY + 1, 5 * MOST_BODY])
async def test_a_body_is_cut_at_ten_kibibytes_whatever_it_announced(length: int) -> None:
    async with serving(lambda _: reply(body="a" * length)) as port:
        answer = await ask(port)
    assert answer == ProbeAnswer(Outcome.SUCCESS, "a" * min(length, MOST_BODY))


async def test_a_body_without_end_is_no_problem() -> None:
    async def endless(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                await stream.send_all(b"x" * 65536)
        except trio.BrokenResourceError:
            stream.socket.close()

    async with listening(endless) as port:
        assert await ask(port) == ProbeAnswer(Outcome.SUCCESS, "x" * MOST_BODY)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_body_that_breaks_off_says_nothing_about_the_container(status: int) -> None:
    async with serving(lambda _: reply(status, "four")[:-1]) as port:
        assert await ask(port) == ProbeAnswer(Outcome.FAILURE, error="unexpected EOF")


@pytest.mark.parametrize("sent", [b"", b"xx"])
async def test_a_body_that_hangs_says_nothing_about_the_container(sent: bytes) -> None:
    async def hangs(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + sent)
        await stream.receive_some()
        stream.socket.close()

    async with listening(hangs) as port:
        answer = await ask(port, timeout=2)
    problem = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
    assert answer == ProbeAnswer(Outcome.FAILURE, error=problem)


async def test_a_server_that_does_not_answer_in_time_is_a_failure() -> None:
    async with serving(lambda _: None) as port:
        answer = await ask(port, timeout=0.2)
    assert answer == ProbeAnswer(Outcome.FAILURE, f'Get "http://{HOST}:{port}/": {TIMED_OUT}')


async def test_redirects_share_one_timeout() -> None:
    async def slow(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await trio.sleep(0.1)
        await stream.send_all(reply(302, Location="/"))
        await stream.aclose()

    async with listening(slow) as port:
        answer = await ask(port, timeout=0.25)
    assert answer.output.endswith(TIMED_OUT)


async def test_a_server_that_closes_without_an_answer_is_a_failure() -> None:
    async with serving(lambda _: b"") as port:
        assert await ask(port) == ProbeAnswer(Outcome.FAILURE, f'Get "http://{HOST}:{port}/": EOF')


async def test_a_server_that_resets_is_a_failure() -> None:
    async def resets(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await reset(stream)

    async with listening(resets) as port:
        answer = await ask(port)
    problem = f"read tcp {HOST}:{port}: read: connection reset by peer"
    assert answer == ProbeAnswer(Outcome.FAILURE, f'Get "http://{HOST}:{port}/": {problem}')


async def test_a_closed_port_is_a_failure() -> None:
    with a_closed_port() as port:
        answer = await ask(port)
    problem = f"dial tcp {HOST}:{port}: connect: connection refused"
    assert answer == ProbeAnswer(Outcome.FAILURE, f'Get "http://{HOST}:{port}/": {problem}')


async def test_a_port_that_does_not_answer_costs_the_timeout() -> None:
    with a_silent_port() as port:
        answer = await ask(port, timeout=0.2)
    assert answer.outcome is Outcome.FAILURE
    assert answer.output.endswith(TIMED_OUT)


async def test_an_encrypted_server_is_not_asked_who_it_is() -> None:
    async with an_encrypted_server() as server:
        answer = await ask_http(target(), HTTPGetAction(port=server.port, scheme="HTTPS"), 10)
    assert answer == ProbeAnswer(Outcome.SUCCESS, "ok")


async def test_a_plain_server_asked_by_https_is_a_failure() -> None:
    async def talks_plain(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(reply(400))
        await stream.aclose()

    async with listening(talks_plain) as port:
        answer = await ask_http(target(), HTTPGetAction(port=port, scheme="HTTPS"), 10)
    assert answer.outcome is Outcome.FAILURE
    assert answer.output.endswith("http: server gave HTTP response to HTTPS client")


@pytest.mark.parametrize("port", [-1, "", "-1", "not-found"])
async def test_a_port_that_is_none_says_nothing_about_the_container(port: int | str) -> None:
    answer = await ask(port)
    assert answer.outcome is Outcome.UNKNOWN
    assert "port" in answer.error


async def test_a_port_and_a_host_may_be_names() -> None:
    async with serving(lambda request: reply(body=request.path)) as port:
        for host in ("", "localhost"):
            action = HTTPGetAction(host=host, port="found", path="path")
            assert (await ask_http(target(found=port), action, 10)).output == "/path"


async def test_a_pod_without_an_address_is_not_looked_for_on_the_node() -> None:
    async with serving(echo) as port:
        answer = await ask_http(target(""), HTTPGetAction(port=port), 5)
    assert answer == ProbeAnswer(Outcome.UNKNOWN, error="the pod has no IP address")


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(lambda _: reply(body="the proxy")) as proxy, serving(lambda _: reply(body="the pod")) as port:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{HOST}:{proxy}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert (await ask(port)).output == "the pod"


async def test_cancelling_closes_the_connection_at_once() -> None:
    async def waits(stream: trio.SocketStream) -> None:
        async with stream:
            while await stream.receive_some():
                asked.set()
            closed.set()

    asked, closed = trio.Event(), trio.Event()
    async with listening(waits) as port, trio.open_nursery() as nursery:
        nursery.start_soon(ask, port)
        await asked.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await closed.wait()


@pytest.mark.parametrize("closes_first", [True, False])
async def test_a_hundred_probes_leave_no_port_behind(closes_first: bool) -> None:
    async def answers(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(reply(body="ok"))
        if not closes_first:
            assert await stream.receive_some() == b""
        await stream.aclose()

    async with listening(answers) as port:
        before = ports_in_time_wait(port)
        for _ in range(100):
            assert (await ask(port)).output == "ok"
        await trio.sleep(0.05)  # what TIME-WAIT begins with comes from the other side
        assert ports_in_time_wait(port) <= before
