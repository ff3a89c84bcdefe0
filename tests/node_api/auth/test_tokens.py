from __future__ import annotations

import base64
from contextlib import suppress

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.node_api.auth.people import ReviewServer, away, refused, request
from trikubelet.http.messages import Request
from trikubelet.node_api.auth.reviews import TokenReviewStatus, UserInfo
from trikubelet.node_api.auth.tokens import (
    BEARER_PROTOCOL,
    BearerTokens,
    ProtocolTokens,
    ReviewedTokens,
    bearer_token,
    protocol_token,
    without_credentials,
)
from trikubelet.node_api.auth.union import AuthenticationError

TTL = 120.0


@pytest.fixture
def server() -> ReviewServer:
    made = ReviewServer()
    made.tokens["good"] = UserInfo("ann", "u-1", ("dev",), {"k": ("v",)})
    return made


async def start(nursery: trio.Nursery, server: ReviewServer, *, ttl: float = TTL, capacity: int = 9) -> ReviewedTokens:
    tokens = ReviewedTokens(server.reviewer(), ttl=ttl, capacity=capacity)
    await nursery.start(tokens.run)
    return tokens


async def refusal(tokens: ReviewedTokens, token: str) -> str:
    with pytest.raises(AuthenticationError) as caught:
        await tokens.user_of(token)
    return str(caught.value)


# What the API server says.


async def test_a_good_token_is_its_users(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    user = await BearerTokens(tokens).authenticate(request(token="good"))
    assert user is not None
    assert (user.name, user.uid, user.groups, user.extra) == ("ann", "u-1", ("dev",), {"k": ("v",)})
    [asked] = server.asked
    assert (asked.spec.token, asked.spec.unknown_fields) == ("good", {})  # no audiences, as the kubelet


async def test_a_good_token_is_asked_about_once_in_two_minutes(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    for _ in range(3):
        await tokens.user_of("good")
        await trio.sleep(TTL / 4)
    assert len(server.asked) == 1
    await trio.sleep(TTL / 4)
    await tokens.user_of("good")
    assert len(server.asked) == 2
    assert (tokens.statistics().hits, tokens.statistics().misses) == (2, 2)


async def test_a_token_that_ends_is_taken_until_what_is_remembered_ends(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    await tokens.user_of("good")
    del server.tokens["good"]
    await trio.sleep(TTL - 1)
    await tokens.user_of("good")
    await trio.sleep(1)
    assert await refusal(tokens, "good") == "invalid bearer token"


async def test_a_refusal_with_a_reason_is_not_remembered_and_a_plain_one_is(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    assert await refusal(tokens, "new") == "invalid bearer token"
    server.tokens["new"] = UserInfo("bob")
    assert (await tokens.user_of("new")).name == "bob"

    server.answer_token = lambda _: TokenReviewStatus()
    asked = len(server.asked)
    for _ in range(3):
        assert await refusal(tokens, "plain") == "invalid bearer token"
    assert len(server.asked) == asked + 1
    await trio.sleep(TTL)
    await refusal(tokens, "plain")
    assert len(server.asked) == asked + 2


@pytest.mark.parametrize("trouble", [away(), away(sent=True), refused(403, "Forbidden"), refused(500)])
async def test_without_an_answer_only_what_is_remembered_goes_on(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer, trouble: Exception
) -> None:
    tokens = await start(nursery, server)
    await tokens.user_of("good")
    server.tokens["other"] = UserInfo("bob")
    server.fail(trouble, 5)  # type: ignore[arg-type]
    assert (await tokens.user_of("good")).name == "ann"
    await refusal(tokens, "other")
    server._failures.clear()
    assert (await tokens.user_of("other")).name == "bob"


async def test_a_silent_server_costs_half_a_minute_and_one_question_for_all(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    server.latency = 1e9
    begun = trio.current_time()
    async with trio.open_nursery() as askers:
        for _ in range(50):
            askers.start_soon(refusal, tokens, "good")
    assert trio.current_time() - begun == pytest.approx(30)
    assert len(server.asked) == 3  # attempts


async def test_an_answer_without_a_name_is_none(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    server.answer_token = lambda _: TokenReviewStatus(authenticated=True)
    assert "does not say whose" in await refusal(tokens, "x")


async def test_few_tokens_are_remembered_and_none_by_itself(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    server.answer_token = lambda _: TokenReviewStatus(authenticated=True, user=UserInfo("ann"))
    tokens = await start(nursery, server, capacity=3)
    for number in range(20):
        await tokens.user_of(f"s3cret-token-{number}")
    assert tokens.statistics().cached == 3
    keys = list(tokens._cache._entries)
    assert all(len(key) == 32 for key in keys)
    assert "s3cret" not in repr((tokens._cache._entries, tokens._lookups._running))


async def test_with_no_time_nothing_is_remembered(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server, ttl=0)
    for _ in range(2):
        await tokens.user_of("good")
    assert len(server.asked) == 2


async def test_a_token_that_no_header_can_carry_is_not_asked_about(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = await start(nursery, server)
    assert await refusal(tokens, "gööd") == "invalid bearer token"
    assert server.asked == []


# Where tokens are found.


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("  BEARER abc  ", "abc"),
        ("Bearer abc def", "abc"),
        ("Bearer  abc", ""),
        ("Bearer", ""),
        ("Bearer ", ""),
        ("Basic abc", ""),
        ("abc", ""),
        ("", ""),
    ],
)
def test_the_word_after_bearer_is_the_token(header: str, token: str) -> None:
    assert bearer_token(request(headers=[("authorization", header)])) == token


def test_the_first_of_several_headers_counts() -> None:
    asked = request(headers=[("authorization", "Bearer one"), ("authorization", "Bearer two")])
    assert bearer_token(asked) == "one"
    assert bearer_token(Request("GET", "/", headers={"authorization": "Bearer one"})) == "one"


def as_protocol(token: bytes) -> str:
    return BEARER_PROTOCOL + base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def websocket(*protocols: str, connection: str = "keep-alive, Upgrade", upgrade: str = "WebSocket") -> Request:
    headers = [("connection", connection), ("upgrade", upgrade)]
    return request(headers=[*headers, *(("sec-websocket-protocol", value) for value in protocols)])


@pytest.mark.parametrize("protocols", [(f"{as_protocol(b'good')}, v4"), (as_protocol(b"good"), "v4")])
def test_a_websocket_may_have_its_token_among_the_subprotocols(protocols: str | tuple[str, ...]) -> None:
    asked = websocket(*([protocols] if isinstance(protocols, str) else protocols))
    assert protocol_token(asked) == "good"


async def test_that_token_is_its_users_too(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, server: ReviewServer
) -> None:
    tokens = ProtocolTokens(await start(nursery, server))
    user = await tokens.authenticate(websocket(as_protocol(b"good"), "v4"))
    assert user is not None
    assert user.name == "ann"
    with pytest.raises(AuthenticationError):
        await tokens.authenticate(websocket(as_protocol(b"bad"), "v4"))
    assert await tokens.authenticate(websocket("v4")) is None


def test_only_a_websocket_may() -> None:
    protocols = (as_protocol(b"good"), "v4")
    assert protocol_token(websocket(*protocols, upgrade="SPDY/3.1")) == ""
    assert protocol_token(websocket(*protocols, connection="keep-alive")) == ""
    assert protocol_token(websocket("v4")) == ""
    assert protocol_token(websocket(BEARER_PROTOCOL, "v4")) == ""


@pytest.mark.parametrize(
    ("protocols", "words"),
    [
        ([as_protocol(b"a"), as_protocol(b"b"), "v4"], "multiple"),
        ([as_protocol(b"a")], "another WebSocket subprotocol"),
        ([BEARER_PROTOCOL + "YQ==", "v4"], "base64url"),
        ([BEARER_PROTOCOL + "a+b/", "v4"], "base64url"),
        ([BEARER_PROTOCOL + "abcde", "v4"], "base64url"),
        ([as_protocol(b"\xff\xfe"), "v4"], "invalid bearer token"),
    ],
)
def test_a_subprotocol_that_is_no_good_token_is_refused(protocols: list[str], words: str) -> None:
    with pytest.raises(AuthenticationError, match=words):
        protocol_token(websocket(*protocols))


@given(st.text(max_size=60))
def test_no_header_breaks_the_reading(text: str) -> None:
    assert isinstance(bearer_token(request(headers=[("authorization", text)])), str)
    with suppress(AuthenticationError):
        protocol_token(websocket(BEARER_PROTOCOL + text, text))


def test_no_handler_sees_a_credential() -> None:
    asked = websocket(f"v5, {as_protocol(b'good')}", "v4")
    asked = Request(
        "GET",
        "/exec",
        headers={**asked.headers, "authorization": "Bearer good"},
        raw_headers=(*asked.raw_headers, ("authorization", "Bearer good"), ("accept", "*/*")),
    )
    clean = without_credentials(asked)
    assert "authorization" not in clean.headers
    assert clean.headers["sec-websocket-protocol"] == "v5, v4"
    assert [name for name, _ in clean.raw_headers] == ["connection", "upgrade", "accept", "sec-websocket-protocol"]
    assert "good" not in str(clean.raw_headers)
    assert BEARER_PROTOCOL not in str(clean)


def test_a_request_without_credentials_stays_as_it_is() -> None:
    asked = websocket("v4", "v5")
    assert without_credentials(asked) is asked
