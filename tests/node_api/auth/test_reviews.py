from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.node_api.auth.people import ReviewServer, away, refused
from trikubelet.api import from_dict, to_dict
from trikubelet.node_api.auth.reviews import (
    ATTEMPT_TIMEOUT,
    TIMEOUT,
    TOKEN_REVIEWS,
    ReviewError,
    SubjectAccessReview,
    TokenReview,
    TokenReviewSpec,
    TokenReviewStatus,
    UserInfo,
)

if TYPE_CHECKING:
    from trikubelet.kube_client.errors import ApiError

QUESTION = TokenReview(spec=TokenReviewSpec("t0ken"))


async def ask(server: ReviewServer, codes: Counter[str] | None = None) -> TokenReview:
    return await server.reviewer().ask(TOKEN_REVIEWS, QUESTION, Counter() if codes is None else codes)


async def test_an_answer_is_the_review_with_its_status(autojump_clock: trio.testing.MockClock) -> None:
    server = ReviewServer()
    server.tokens["t0ken"] = UserInfo("ann")
    answer = await ask(server)
    assert (answer.status.authenticated, answer.status.user.username) == (True, "ann")


@pytest.mark.parametrize(
    "trouble",
    [
        refused(500, "InternalError"),
        refused(504, "Timeout"),
        refused(429, "TooManyRequests"),
        refused(503, "ServiceUnavailable", retry_after=1.0),
        away(sent=True),
    ],
)
async def test_a_moments_trouble_is_waited_for(autojump_clock: trio.testing.MockClock, trouble: ApiError) -> None:
    server = ReviewServer()
    server.fail(trouble, 4)
    codes: Counter[str] = Counter()
    begun = trio.current_time()
    await ask(server, codes)
    shortest = 0.5 + 0.75 + 1.125 + 1.6875
    assert shortest <= trio.current_time() - begun <= shortest * 1.2
    assert codes == {"201": 1, str(getattr(trouble, "code", "<error>")): 4}


async def test_five_attempts_are_enough(autojump_clock: trio.testing.MockClock) -> None:
    server = ReviewServer()
    server.fail(refused(500), 9)
    with pytest.raises(ReviewError, match="500"):
        await ask(server)
    assert len(server.asked) == 5


@pytest.mark.parametrize("trouble", [refused(403, "Forbidden"), refused(401), refused(503), away()])
async def test_a_server_that_is_away_or_refuses_is_not_waited_for(
    autojump_clock: trio.testing.MockClock, trouble: ApiError
) -> None:
    server = ReviewServer()
    server.fail(trouble)
    begun = trio.current_time()
    with pytest.raises(ReviewError):
        await ask(server)
    assert trio.current_time() == begun
    assert len(server.asked) == 1


async def test_a_server_that_is_silent_is_left_in_time(autojump_clock: trio.testing.MockClock) -> None:
    server = ReviewServer()
    server.latency = 1e6
    begun = trio.current_time()
    with pytest.raises(ReviewError, match="no answer within 10 s"):
        await ask(server)
    assert trio.current_time() - begun == pytest.approx(TIMEOUT)
    assert server.timeout == ATTEMPT_TIMEOUT
    assert len(server.asked) == 3


def test_the_wire_form_is_kubernetes() -> None:
    assert to_dict(QUESTION)["spec"] == {"token": "t0ken"}
    status = {
        "authenticated": True,
        "user": {"username": "ann", "uid": "1", "groups": ["dev"], "extra": {"example.com/k": ["a", "b"]}},
        "audiences": ["api"],
    }
    answer = from_dict(TokenReview, {"kind": "TokenReview", "spec": {"token": "t0ken"}, "status": status})
    assert answer.status.user == UserInfo("ann", "1", ("dev",), {"example.com/k": ("a", "b")})
    assert from_dict(SubjectAccessReview, {"status": {"allowed": True}}).status.allowed
    assert TokenReviewStatus().authenticated is False


def test_a_token_is_in_no_text() -> None:
    assert "t0ken" not in repr(QUESTION)
