from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from tests.node_api.auth.people import ReviewServer, away, refused
from trikubelet.api import to_dict
from trikubelet.http.messages import User
from trikubelet.node_api.auth.attributes import Attributes
from trikubelet.node_api.auth.authorization import AlwaysAllow, AuthorizationError, ReviewedAccess
from trikubelet.node_api.auth.reviews import SubjectAccessReviewStatus

ANN = User("ann", "u-1", ("dev", "system:authenticated"), {"example.com/k": ("v",)})
STATS = Attributes("get", "stats", "node-a", "/stats/summary")
ALLOWED_TTL, DENIED_TTL = 300.0, 30.0


async def start(nursery: trio.Nursery, server: ReviewServer, *, capacity: int = 9) -> ReviewedAccess:
    access = ReviewedAccess(server.reviewer(), allowed_ttl=ALLOWED_TTL, denied_ttl=DENIED_TTL, capacity=capacity)
    await nursery.start(access.run)
    return access


async def test_the_question_names_the_user_and_the_nodes_subresource(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    access = await start(nursery, server)
    assert await access.allows(ANN, STATS)
    assert to_dict(server.asked[0])["spec"] == {
        "resourceAttributes": {
            "verb": "get",
            "version": "v1",
            "resource": "nodes",
            "subresource": "stats",
            "name": "node-a",
        },
        "user": "ann",
        "uid": "u-1",
        "groups": ["dev", "system:authenticated"],
        "extra": {"example.com/k": ["v"]},
    }


@pytest.mark.parametrize(("allowed", "ttl"), [(True, ALLOWED_TTL), (False, DENIED_TTL)])
async def test_an_answer_is_remembered_as_long_as_it_may_be(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, allowed: bool, ttl: float
) -> None:
    server = ReviewServer()
    server.answer_access = SubjectAccessReviewStatus(allowed=allowed, denied=False, reason="x" * 1000)
    access = await start(nursery, server)
    assert await access.allows(ANN, STATS) is allowed
    server.answer_access = SubjectAccessReviewStatus(allowed=not allowed)
    await trio.sleep(ttl - 1)
    assert await access.allows(ANN, STATS) is allowed
    assert len(server.asked) == 1
    await trio.sleep(1)
    assert await access.allows(ANN, STATS) is not allowed


@pytest.mark.parametrize(
    ("user", "attributes"),
    [
        (attrs.evolve(ANN, name="bob"), STATS),
        (attrs.evolve(ANN, uid="u-2"), STATS),
        (attrs.evolve(ANN, groups=()), STATS),
        (attrs.evolve(ANN, extra={}), STATS),
        (ANN, attrs.evolve(STATS, verb="create")),
        (ANN, attrs.evolve(STATS, subresource="proxy")),
    ],
)
async def test_nobody_is_answered_with_what_another_question_was(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, user: User, attributes: Attributes
) -> None:
    server = ReviewServer()
    access = await start(nursery, server)
    assert await access.allows(ANN, STATS)
    server.answer_access = SubjectAccessReviewStatus()
    assert not await access.allows(user, attributes)


async def test_another_path_with_the_same_rights_is_the_same_question(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    access = await start(nursery, server)
    await access.allows(ANN, STATS)
    await access.allows(ANN, attrs.evolve(STATS, path="/stats"))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        (SubjectAccessReviewStatus(), False),
        (SubjectAccessReviewStatus(denied=True), False),
        (SubjectAccessReviewStatus(evaluation_error="broken rule"), False),
        (SubjectAccessReviewStatus(allowed=True, evaluation_error="broken rule"), True),
    ],
)
async def test_only_allowed_is_allowed(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    status: SubjectAccessReviewStatus,
    allowed: bool,
) -> None:
    server = ReviewServer()
    server.answer_access = status
    assert await (await start(nursery, server)).allows(ANN, STATS) is allowed


async def test_allowed_and_denied_is_an_error_also_from_memory(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    server.answer_access = SubjectAccessReviewStatus(allowed=True, denied=True)
    access = await start(nursery, server)
    for _ in range(2):
        with pytest.raises(AuthorizationError, match="both"):
            await access.allows(ANN, STATS)
    assert len(server.asked) == 1


@pytest.mark.parametrize("trouble", [away(), away(sent=True), refused(403, "Forbidden"), refused(500)])
async def test_without_an_answer_only_what_is_remembered_goes_on(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, trouble: Exception
) -> None:
    server = ReviewServer()
    access = await start(nursery, server)
    await access.allows(ANN, STATS)
    server.fail(trouble, 50)  # type: ignore[arg-type]
    assert await access.allows(ANN, STATS)
    for _ in range(2):
        with pytest.raises(AuthorizationError):
            await access.allows(User("bob"), STATS)
    await trio.sleep(ALLOWED_TTL)
    with pytest.raises(AuthorizationError):
        await access.allows(ANN, STATS)


async def test_a_silent_server_costs_half_a_minute_and_one_question_for_all(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    server.latency = 1e9
    access = await start(nursery, server)

    async def refused_ask() -> None:
        with pytest.raises(AuthorizationError):
            await access.allows(ANN, STATS)

    begun = trio.current_time()
    async with trio.open_nursery() as askers:
        for _ in range(50):
            askers.start_soon(refused_ask)
    assert trio.current_time() - begun == pytest.approx(30)
    assert len(server.asked) == 3


async def test_few_answers_are_kept_and_none_to_a_very_long_question(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = ReviewServer()
    access = await start(nursery, server, capacity=3)
    for number in range(20):
        await access.allows(User(f"u{number}"), STATS)
    assert access.statistics().cached == 3
    asked = len(server.asked)
    for _ in range(2):
        await access.allows(ANN, attrs.evolve(STATS, path="/stats/" + "x" * 10_000))
    assert len(server.asked) == asked + 2


async def test_a_name_that_is_no_text_is_refused(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    server = ReviewServer()
    server.fail(refused(400, "BadRequest"))
    with pytest.raises(AuthorizationError, match="400"):
        await (await start(nursery, server)).allows(User("\ud800"), STATS)


async def test_always_allow_allows_always() -> None:
    assert await AlwaysAllow().allows(User("anybody"), STATS)
