"""A reflector on a scripted API server: its store is what the server has, whatever happens between them."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.kube_client.scripted_client import ScriptedClient, lost, status_error
from trikubelet.api import ObjectMeta, Pod, PodSpec, Problem
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import NODES, PODS, Undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from trikubelet.kube_client.types import Resource


def pod(name: str, node: str = "a") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(node_name=node))


@attrs.define
class Followed:
    """A reflector that runs, and what it follows."""

    client: ScriptedClient
    store: Store[Pod]
    reflector: Reflector[Pod]

    def names(self) -> set[str]:
        return {known.metadata.name for known in self.store.values()}

    def verbs(self) -> list[tuple[str, str]]:
        return [
            ("watch list" if call.options.get("send_initial_events") else call.verb, call.options["resource_version"])
            for call in self.client.calls
            if call.resource == PODS
        ]


def follow(client: ScriptedClient, nursery: trio.Nursery, *, page: int = 500) -> Followed:
    store = Store(PODS)
    rng = random.Random(1)
    reflector = Reflector(client, PODS, store, rng=rng, field_selector="spec.nodeName=a", page=page)
    nursery.start_soon(reflector.run)
    return Followed(client, store, reflector)


async def until_settled(seconds: float = 0.001) -> None:
    """Let everything happen that needs no more than this much time."""
    await trio.sleep(seconds)


async def test_one_request_reads_everything_and_follows(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod("web"), pod("elsewhere", "b")])
    followed = follow(client, nursery)
    await followed.store.wait_synced()
    assert followed.names() == {"web"}
    client.put(pod("db"))
    client.remove(PODS, "web", "default")
    await until_settled()
    assert followed.names() == {"db"}
    assert followed.verbs() == [("watch list", "")]


async def test_a_watch_that_ends_goes_on_from_the_newest_version(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    followed = follow(client, nursery)
    await trio.sleep(2)
    client.bookmark()
    client.end_watches()
    client.put(pod("db"))
    await until_settled()
    assert followed.names() == {"web", "db"}
    assert followed.verbs() == [("watch list", ""), ("watch", "1002")]
    [_, watch] = client.called("watch")
    assert 300 <= watch.options["timeout"] <= 600


@pytest.mark.parametrize("http", [True, False])
async def test_too_much_has_happened_so_everything_is_read_anew(
    http: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web"), pod("old")])
    followed = follow(client, nursery)
    await trio.sleep(2)
    gone: list[str] = []
    followed.store.subscribe(lambda old, new: gone.append(old.metadata.name) if old and not new else None)
    client.refuse_watch_lists()
    client.end_watches(None if http else status_error(410, "Expired", "too old resource version"))
    client.remove(PODS, "old", "default")
    client.put(pod("new"))
    client.compact()
    await trio.sleep(15)
    assert followed.names() == {"web", "new"}
    assert gone == ["old"]
    # The server ignored the wish for initial events, so after a silence a list was made.
    assert [verb for verb, _ in followed.verbs()][-3:] == ["watch list", "list", "watch"]


@pytest.mark.parametrize("code", [400, 403, 422, 500])
async def test_a_server_that_refuses_watch_lists_is_listed(
    code: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    client.fail("watch", PODS, status_error(code))
    with capture_logs() as lines:
        followed = follow(client, nursery)
        await until_settled()
    assert followed.names() == {"web"}
    assert "warning" not in {line["log_level"] for line in lines}, "nothing is wrong with that"
    assert followed.verbs() == [("watch list", ""), ("list", "0"), ("watch", "1001")]


async def test_a_list_after_a_refused_watch_list_that_fails_is_told_of(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    client.fail("watch", PODS, status_error(500))
    client.fail("list", PODS, lost())
    with capture_logs() as lines:
        followed = follow(client, nursery)
        await trio.sleep(10)
    assert followed.names() == {"web"}
    assert [line["log_level"] for line in lines].count("warning") == 1


async def test_a_server_that_ignores_watch_lists_is_listed_after_a_silence(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    client.refuse_watch_lists()
    followed = follow(client, nursery)
    await trio.sleep(9.9)
    assert not followed.store.synced
    await trio.sleep(0.2)
    assert followed.names() == {"web"}
    assert client.watching == 1


async def test_a_long_list_comes_in_pages(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod(f"pod-{number}") for number in range(7)])
    client.fail("watch", PODS, status_error(422))
    followed = follow(client, nursery, page=3)
    await until_settled()
    assert len(followed.names()) == 7
    assert [(call.options["limit"], call.options["resource_version"]) for call in client.called("list")] == [
        (3, "0"),
        (3, ""),
        (3, ""),
    ]


async def test_a_page_that_expired_makes_one_whole_list(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod(f"pod-{number}") for number in range(7)])
    client.fail("watch", PODS, status_error(422))
    client.fail("list", PODS, lambda call: status_error(410, "Expired") if call.options["continue_"] else None)
    followed = follow(client, nursery, page=3)
    await until_settled()
    assert len(followed.names()) == 7
    assert [(call.options["limit"], call.options["resource_version"]) for call in client.called("list")] == [
        (3, "0"),
        (3, ""),
        (0, ""),
    ]


async def test_a_server_that_was_restored_from_a_backup_is_asked_for_its_newest_state(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    followed = follow(client, nursery)
    await trio.sleep(2)
    client.fail(
        "watch",
        PODS,
        lambda call: (
            status_error(504, "Timeout", "Too large resource version: 1001")
            if call.options["resource_version"]
            else None
        ),
        times=math.inf,
    )
    client.end_watches()
    await until_settled()
    assert followed.verbs()[1:] == [
        ("watch", "1001"),
        ("watch list", "1001"),
        ("watch list", ""),
    ]
    assert followed.names() == {"web"}


async def test_too_many_requests_are_a_pause_and_no_new_list(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod("web")])
    followed = follow(client, nursery)
    await trio.sleep(2)
    client.fail("watch", PODS, status_error(429, "TooManyRequests", retry_after=7))
    client.end_watches()
    await trio.sleep(6.5)
    assert client.watching == 0
    await trio.sleep(1)
    assert client.watching == 1
    assert followed.verbs() == [("watch list", ""), ("watch", "1001"), ("watch", "1001")]


async def test_very_short_watches_are_failures(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod("web")])
    followed = follow(client, nursery)
    await trio.sleep(2)
    client.end_watches()
    await until_settled()
    client.end_watches()
    await until_settled()
    assert client.watching == 0
    await trio.sleep(2)
    assert [verb for verb, _ in followed.verbs()] == ["watch list", "watch", "watch list"]


async def test_while_the_server_is_away_the_store_keeps_what_it_had(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    followed = follow(client, nursery)
    await trio.sleep(2)
    client.unreachable()
    client.remove(PODS, "web", "default")
    client.put(pod("db"))
    begin = trio.current_time()
    await trio.sleep(600)
    assert followed.names() == {"web"}
    assert followed.store.synced
    tries = [call.at - begin for call in client.called("watch", PODS)[1:]]
    assert tries[0] < 0.1
    assert 12 <= len(tries) <= 30
    assert max(later - earlier for earlier, later in itertools.pairwise(tries)) <= 60
    assert "connection refused" in followed.reflector.statistics().problem
    client.back()
    # Some other call is answered, which is the sign to go on at once.
    await client.list(NODES)
    await until_settled()
    assert followed.names() == {"db"}
    assert followed.reflector.statistics().problem == ""


async def test_a_server_that_is_away_at_first_is_awaited(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod("web")])
    client.unreachable()
    followed = follow(client, nursery)
    await trio.sleep(100)
    assert not followed.store.synced
    client.back()
    with trio.fail_after(60):
        await followed.store.wait_synced()


@pytest.mark.parametrize("outcome", [status_error(500), status_error(401), lost()])
async def test_the_first_request_may_fail_for_a_while(
    outcome: Exception, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = ScriptedClient([pod("web")])
    client.fail("", PODS, outcome, times=5)  # type: ignore[arg-type]
    followed = follow(client, nursery)
    with trio.fail_after(120):
        await followed.store.wait_synced()
    assert followed.names() == {"web"}


async def test_a_version_that_cannot_be_read_ends_nothing(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = ScriptedClient([pod("web")])
    followed = follow(client, nursery)
    await followed.store.wait_synced()
    problems = (Problem("spec.containers", "expected a list"),)
    client.send_undecodable(PODS, Undecodable(ObjectMeta(name="web", namespace="default"), problems))
    client.put(pod("db"))
    await until_settled()
    assert followed.names() == {"web", "db"}
    assert followed.reflector.statistics().watches == 1


def names_of(client: ScriptedClient, resource: Resource[Pod], node: str) -> set[str]:
    pods: Sequence[Pod] = client.all_of(resource)
    return {known.metadata.name for known in pods if known.spec.node_name == node}


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_in_the_end_the_store_is_what_the_server_has(
    seed: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    client = ScriptedClient()
    followed = follow(client, nursery, page=3)
    seen: dict[str, str] = {}

    def listen(old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            assert seen.pop(old.metadata.uid) == old.metadata.resource_version
        if new is not None:
            assert new.metadata.uid not in seen
            seen[new.metadata.uid] = new.metadata.resource_version

    followed.store.subscribe(listen)
    for _ in range(200):
        name = f"pod-{rng.randrange(12)}"
        match rng.randrange(10):
            case 0:
                client.unreachable()
            case 1:
                client.back()
            case 2:
                client.compact()
            case 3:
                client.end_watches(rng.choice([None, lost(), status_error(410, "Expired")]))
            case 4:
                client.fail(rng.choice(["watch", "list"]), PODS, status_error(rng.choice([410, 422, 429, 500, 504])))
            case 5 | 6 if client.stored(PODS, name, "default") is not None:
                client.remove(PODS, name, "default")
            case _:
                client.put(pod(name, rng.choice("aab")))
        await trio.sleep(rng.choice([0, 0.001, 1, 30]))
    client.back()
    client.heal()
    await trio.sleep(120)
    assert followed.names() == names_of(client, PODS, "a")
    assert seen == {known.metadata.uid: known.metadata.resource_version for known in followed.store.values()}
