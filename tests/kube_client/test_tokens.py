"""Situations of the kubelet's `token_manager_test.go`."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient, lost, status_error
from trikubelet.api import (
    ObjectMeta,
    ServiceAccount,
    TokenRequest,
    TokenRequestSpec,
    TokenRequestStatus,
)
from trikubelet.clock import TrioClock
from trikubelet.kube_client.tokens import BoundPod, TokenError, TokenKey, Tokens, expired, requires_refresh
from trikubelet.kube_client.types import SERVICE_ACCOUNTS, Urgency

if TYPE_CHECKING:
    from trio.testing import MockClock

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR = 60, 3600
POD = BoundPod("web", "uid-1")
KEY = TokenKey("ns", "default", ("vault",), bound=POD)


def token(seconds: int | None, life: int) -> TokenRequest:
    status = TokenRequestStatus("secret", START + timedelta(seconds=life))
    return TokenRequest(spec=TokenRequestSpec(expiration_seconds=seconds), status=status)


@pytest.mark.parametrize(
    ("minutes", "life_minutes", "expected"),
    [(10, 60, False), (50, 60, True), (25 * 60, 60 * 60, True), (70, 60, True)],
)
def test_a_token_is_replaced_in_the_last_fifth_of_its_life_or_after_a_day(
    minutes: int, life_minutes: int, expected: bool
) -> None:
    now = START + timedelta(minutes=minutes)
    life = life_minutes * MINUTE
    assert requires_refresh(token(life, life), now, 0.0) is expected


def test_a_token_of_unknown_life_is_used_on() -> None:
    assert not requires_refresh(token(None, HOUR), START + timedelta(hours=2), 0.0)


def test_the_jitter_brings_a_refresh_forward() -> None:
    now = START + timedelta(seconds=48 * MINUTE - 5)
    assert not requires_refresh(token(HOUR, HOUR), now, 0.0)
    assert requires_refresh(token(HOUR, HOUR), now, 10.0)


def test_a_token_is_expired_after_its_end() -> None:
    assert not expired(token(HOUR, HOUR), START + timedelta(hours=1))
    assert expired(token(HOUR, HOUR), START + timedelta(hours=1, seconds=1))


def test_tokens_are_not_shown() -> None:
    assert "secret" not in repr(token(HOUR, HOUR))


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient([ServiceAccount(metadata=ObjectMeta(name="default", namespace="ns", uid="account"))])


def make(client: ScriptedClient) -> Tokens:
    return Tokens(client, clock=TrioClock(), rng=random.Random(1))


async def test_a_token_is_asked_for_once_with_what_it_is_for(client: ScriptedClient, autojump_clock: MockClock) -> None:
    tokens = make(client)
    key = attrs.evolve(KEY, expiration_seconds=600, account_uid="account")
    first, second = await tokens.get(key), await tokens.get(key)
    assert first.status.token == second.status.token == "token-1"
    [call] = client.calls
    assert (call.resource, call.namespace, call.name, call.subresource) == (SERVICE_ACCOUNTS, "ns", "default", "token")
    assert call.urgency is Urgency.URGENT
    assert call.body.spec == TokenRequestSpec(("vault",), 600, POD.reference())
    assert call.body.metadata.uid == "account"


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(KEY, audiences=("other",)),
        attrs.evolve(KEY, expiration_seconds=600),
        attrs.evolve(KEY, bound=attrs.evolve(POD, uid="uid-2")),
        attrs.evolve(KEY, account_uid="account-made-again"),
    ],
)
async def test_tokens_for_something_else_are_others(
    other: TokenKey, client: ScriptedClient, autojump_clock: MockClock
) -> None:
    tokens = make(client)
    assert (await tokens.get(KEY)).status.token == "token-1"
    assert (await tokens.get(other)).status.token == "token-2"


@pytest.mark.parametrize(("life", "later"), [(HOUR, 50 * MINUTE), (40 * HOUR, 25 * HOUR)])
async def test_a_token_is_renewed_in_time(
    life: int, later: int, client: ScriptedClient, autojump_clock: MockClock
) -> None:
    tokens = make(client)
    key = attrs.evolve(KEY, expiration_seconds=life)
    await tokens.get(key)
    await trio.sleep(later)
    assert (await tokens.get(key)).status.token == "token-2"


async def test_an_old_token_that_is_good_is_used_when_no_new_one_can_be_had(
    client: ScriptedClient, autojump_clock: MockClock
) -> None:
    tokens = make(client)
    await tokens.get(KEY)
    client.unreachable()
    await trio.sleep(50 * MINUTE)
    assert (await tokens.get(KEY)).status.token == "token-1"
    await trio.sleep(11 * MINUTE)
    with pytest.raises(
        TokenError, match=r"token ns/default for vault bound to Pod web \(uid-1\) expired and refresh failed"
    ):
        await tokens.get(KEY)


async def test_the_first_token_that_cannot_be_had_is_an_error(
    client: ScriptedClient, autojump_clock: MockClock
) -> None:
    client.fail("create", SERVICE_ACCOUNTS, status_error(403, "Forbidden", "no"))
    tokens = make(client)
    with pytest.raises(TokenError, match=r"failed to fetch token: .*403 Forbidden: no"):
        await tokens.get(KEY)
    assert (await tokens.get(KEY)).status.token == "token-1"


async def test_those_who_wait_for_a_token_share_a_request(client: ScriptedClient, autojump_clock: MockClock) -> None:
    tokens = make(client)
    client.set_latency(1)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(tokens.get, KEY)
    assert len(client.calls) == 1


async def test_who_is_cancelled_leaves_the_request_to_the_next(
    client: ScriptedClient, autojump_clock: MockClock
) -> None:
    tokens = make(client)
    client.set_latency(2)
    with trio.move_on_after(1):
        await tokens.get(KEY)
    assert (await tokens.get(KEY)).status.token == "token-1"


async def test_tokens_of_a_pod_that_is_gone_and_tokens_that_ended_are_dropped(
    client: ScriptedClient, autojump_clock: MockClock
) -> None:
    tokens = make(client)
    for uid in ("uid-1", "uid-2"):
        await tokens.get(attrs.evolve(KEY, bound=attrs.evolve(POD, uid=uid)))
    tokens.forget_pod("uid-1")
    assert tokens.kept == 1
    await trio.sleep(2 * HOUR)
    client.fail("create", SERVICE_ACCOUNTS, lost())
    with pytest.raises(TokenError):
        await tokens.get(attrs.evolve(KEY, audiences=("other",)))
    assert tokens.kept == 0
