from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.node_api.auth.people import UNDECIDED, Says, request
from trikubelet.http.messages import AnyResponse, Request, Response, User
from trikubelet.node_api.auth import guard
from trikubelet.node_api.auth.guard import Guarded
from trikubelet.node_api.auth.union import ANONYMOUS, AuthenticationError, Union

ANN = User("ann")
BAD = AuthenticationError("bad certificate")


class Handler:
    def __init__(self) -> None:
        self.seen: list[Request] = []

    async def __call__(self, request: Request) -> AnyResponse:
        await trio.lowlevel.checkpoint()
        self.seen.append(request)
        return Response(b"served")


def guarded(handler: Handler, user: User | Exception | None = ANN, **rights: bool | Exception) -> Guarded:
    return Guarded(handler, Says(user), Says(None, **rights), "node-a")


async def answer(guarded: Guarded, method: str = "GET", path: str = "/pods", token: str = "") -> tuple[int, str]:
    response = await guarded(request(method, path, token=token))
    assert isinstance(response, Response)
    return response.status, response.body.decode()


async def test_who_may_is_served_as_who_he_is_and_without_his_credential() -> None:
    handler = Handler()
    assert await answer(guarded(handler, proxy=True), token="s3cret") == (200, "served")
    [seen] = handler.seen
    assert seen.user == ANN
    assert "s3cret" not in str(seen)


@pytest.mark.parametrize("user", [None, BAD])
async def test_nobody_and_a_bad_credential_are_unauthorized(user: Exception | None) -> None:
    handler = Handler()
    assert await answer(guarded(handler, user, proxy=True)) == (401, "Unauthorized")
    assert handler.seen == []


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("GET", "/pods", "Forbidden (user=ann, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"),
        ("POST", "/exec/a/b/c", "Forbidden (user=ann, verb=create, resource=nodes, subresource(s)=[proxy])\n"),
        ("HEAD", "/metrics", "Forbidden (user=ann, verb=, resource=nodes, subresource(s)=[metrics])\n"),
    ],
)
async def test_a_refusal_is_in_the_kubelets_words(method: str, path: str, text: str) -> None:
    assert await answer(guarded(Handler()), method, path) == (403, text)


async def test_the_first_right_that_suffices_suffices() -> None:
    authorizer = Says(None, pods=True, proxy=UNDECIDED)
    made = Guarded(Handler(), Says(ANN), authorizer, "node-a")
    assert await answer(made) == (200, "served")
    assert [attributes.subresource for _, attributes in authorizer.asked] == ["pods"]
    assert {attributes.node_name for _, attributes in authorizer.asked} == {"node-a"}


async def test_the_right_to_everything_is_enough_for_pods() -> None:
    assert await answer(guarded(Handler(), pods=False, proxy=True)) == (200, "served")


async def test_the_right_to_everything_is_not_enough_for_what_had_its_own_right_before() -> None:
    status, _ = await answer(guarded(Handler(), proxy=True), path="/stats/summary")
    assert status == 403


async def test_when_nobody_can_say_it_is_an_error_even_if_the_next_right_were_there() -> None:
    handler = Handler()
    text = "Authorization error (user=ann, verb=get, resource=nodes, subresource=pods)"
    assert await answer(guarded(handler, pods=UNDECIDED, proxy=True)) == (500, text)
    text = "Authorization error (user=ann, verb=get, resource=nodes, subresource=proxy)"
    assert await answer(guarded(handler, pods=False, proxy=UNDECIDED)) == (500, text)
    assert handler.seen == []


async def test_a_name_that_is_no_text_can_still_be_refused() -> None:
    status, _ = await answer(guarded(Handler(), User("\ud800")))
    assert status == 403


async def test_everything_is_counted() -> None:
    made = guarded(Handler(), ANN, stats=True, metrics=UNDECIDED)
    for path in ("/stats", "/stats", "/metrics", "/exec"):
        await answer(made, path=path)
    statistics = made.statistics()
    assert (statistics.passed, statistics.undecided, statistics.forbidden) == (2, 1, 1)
    assert statistics.by_attributes == {("get", "stats"): 2}
    for user, count in ((None, (1, 0)), (BAD, (0, 1))):
        made = guarded(Handler(), user)
        await answer(made)
        assert (made.statistics().without_credential, made.statistics().unauthenticated) == count


async def test_refusals_without_end_fill_no_log(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, object]] = []

    class Log:
        def info(self, event: str, **fields: object) -> None:
            lines.append(fields)

    monkeypatch.setattr(guard, "log", Log())
    made = guarded(Handler(), BAD)
    for _ in range(1000):
        await answer(made)
    await trio.sleep(2)
    await answer(made)
    assert len(lines) == 2
    assert lines[1]["left_out"] == 999


# Several authenticators.


async def test_a_good_token_helps_although_the_certificate_is_bad() -> None:
    user = await Union([Says(BAD), Says(None), Says(ANN), Says(User("later"))]).authenticate(request())
    assert user == User("ann", groups=("system:authenticated",))


async def test_all_reasons_are_told_when_nobody_knows_the_user() -> None:
    union = Union([Says(BAD), Says(None), Says(AuthenticationError("bad token")), Says(BAD)])
    with pytest.raises(AuthenticationError, match=r"^bad certificate; bad token$"):
        await union.authenticate(request())


async def test_nobody_in_particular_is_only_who_shows_nothing() -> None:
    assert await Union([Says(None)]).authenticate(request()) is None
    assert await Union([]).authenticate(request()) is None
    assert await Union([Says(None)], anonymous=True).authenticate(request()) == ANONYMOUS
    assert (ANONYMOUS.name, ANONYMOUS.groups) == ("system:anonymous", ("system:unauthenticated",))
    with pytest.raises(AuthenticationError):
        await Union([Says(BAD)], anonymous=True).authenticate(request())


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        (User("ann", groups=("dev",)), ("dev", "system:authenticated")),
        (User("ann", groups=("system:authenticated", "dev")), ("system:authenticated", "dev")),
        (User("ann", groups=("system:unauthenticated",)), ("system:unauthenticated",)),
        (User("system:anonymous"), ()),
    ],
)
async def test_every_user_is_in_the_group_of_all_once(user: User, groups: tuple[str, ...]) -> None:
    found = await Union([Says(user)]).authenticate(request())
    assert found is not None
    assert found.groups == groups
