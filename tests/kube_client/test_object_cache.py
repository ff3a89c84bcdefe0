"""ConfigMaps and Secrets that are asked for, with the situations of the kubelet's `cache_based_manager_test.go`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.kube_client.pod_scopes import PodScopes
from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.kube_client.test_object_watches import config_map, pod
from tests.listening import told_by
from trikubelet.api import Node, ObjectMeta, Secret
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.pod_objects import PodObjects, copies_by
from trikubelet.kube_client.types import CONFIG_MAPS

if TYPE_CHECKING:
    from trio.testing import MockClock

PULL_SECRET = Secret(metadata=ObjectMeta(name="pull", namespace="ns"))
USES_SECRET = {"name": "s", "secret": {"secretName": "pull"}}


@attrs.define
class World:
    client: ScriptedClient
    node: Node | None = None
    told: list[tuple[str, str, str]] = attrs.field(factory=list)
    scopes: dict[PodObjects, PodScopes] = attrs.field(factory=dict)

    def objects(self, strategy: str = "Cache", *names: str) -> PodObjects:
        made = PodObjects(
            copies_by(strategy, self.client, node=lambda: self.node, sync_frequency=60, rng=random.Random(1))
        )
        self.told = told_by(made.changes)
        for name in names:
            self.pods_of(made).follow(pod(name, volumes=(USES_SECRET,)))
        return made

    def pods_of(self, objects: PodObjects) -> PodScopes:
        return self.scopes.setdefault(objects, PodScopes(objects))

    def asked(self) -> list[str]:
        return [call.options["resource_version"] for call in self.client.called("get")]


@pytest.fixture
async def world() -> World:
    return World(ScriptedClient([config_map("one"), PULL_SECRET]))


async def text(objects: PodObjects) -> str:
    return (await objects.config_map("ns", "settings")).data["text"]


async def test_an_object_is_asked_for_once_a_minute(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    assert await text(objects) == "one"
    world.client.put(config_map("two"))
    await trio.sleep(59)
    assert await text(objects) == "one"
    await trio.sleep(2)
    assert await text(objects) == "two"
    # What is known already may come from the server's memory.
    assert world.asked() == ["", "0"]
    assert len(world.told) == 2


async def test_the_node_says_how_long_objects_are_kept(world: World, autojump_clock: MockClock) -> None:
    world.node = Node(metadata=ObjectMeta(name="a", annotations={"node.alpha.kubernetes.io/ttl": "0"}))
    objects = world.objects("Cache", "web")
    await text(objects)
    await text(objects)
    assert len(world.asked()) == 2


async def test_a_value_that_is_no_number_is_the_default(world: World, autojump_clock: MockClock) -> None:
    world.node = Node(metadata=ObjectMeta(name="a", annotations={"node.alpha.kubernetes.io/ttl": "bad"}))
    objects = world.objects("Cache", "web")
    await text(objects)
    await text(objects)
    assert len(world.asked()) == 1


async def test_a_new_pod_finds_the_newest_version(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    await text(objects)
    world.client.put(config_map("two"))
    await trio.sleep(1)
    world.pods_of(objects).follow(pod("db"))
    assert await text(objects) == "two"
    world.pods_of(objects).follow(pod("db"))
    await text(objects)
    assert world.asked() == ["", ""]


async def test_a_hundred_pods_ask_once(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", *(f"pod-{index}" for index in range(100)))
    world.client.set_latency(1)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(text, objects)
    assert len(world.asked()) == 1


async def test_while_the_server_is_away_the_last_version_is_used(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    await text(objects)
    world.client.unreachable()
    await trio.sleep(600)
    assert await text(objects) == "one"
    with pytest.raises(ObjectError, match=r"failed to sync secret cache: .*connection refused") as caught:
        await objects.secret("ns", "pull")
    assert caught.value.problem == "unavailable"
    world.client.back()
    await objects.secret("ns", "pull")


async def test_a_failure_is_told_to_all_who_waited_for_it(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    world.client.hold("get", CONFIG_MAPS)
    failed = []

    async def ask() -> None:
        try:
            await text(objects)
        except ObjectError as error:
            failed.append(error.problem)

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert failed == ["unavailable"] * 20
    # One attempt, and one for those who came while it was made.
    assert trio.current_time() - begin <= 20


async def test_an_object_that_was_deleted_is_not_used_any_longer(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    await text(objects)
    world.client.remove(CONFIG_MAPS, "settings", "ns")
    await trio.sleep(61)
    for _ in range(2):
        with pytest.raises(ObjectError, match=r'^configmap "settings" not found$'):
            await text(objects)
    assert len(world.asked()) == 3
    world.client.put(config_map("two"))
    assert await text(objects) == "two"


async def test_an_older_answer_is_ignored(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    newest = await objects.config_map("ns", "settings")
    old = attrs.evolve(config_map("old"), metadata=attrs.evolve(newest.metadata, resource_version="7"))

    async def remembered(*_: object, **__: object) -> object:
        return old

    world.client.get = remembered  # type: ignore[assignment]
    await trio.sleep(61)
    assert await text(objects) == "one"


async def test_a_refusal_is_no_proof_that_the_object_is_missing(world: World, autojump_clock: MockClock) -> None:
    world.client.fail("get", CONFIG_MAPS, status_error(403, "Forbidden", "no relationship found"))
    with pytest.raises(ObjectError, match="no relationship found") as caught:
        await text(world.objects("Cache", "web"))
    assert caught.value.problem == "unavailable"


async def test_what_no_pod_refers_to_is_not_kept(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Cache", "web")
    await text(objects)
    world.pods_of(objects).end("uid-web")
    world.client.unreachable()
    with pytest.raises(ObjectError):
        await text(objects)


async def test_nothing_is_kept_when_the_strategy_is_to_ask(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects("Get", "web")
    assert await text(objects) == "one"
    world.client.put(config_map("two"))
    assert await text(objects) == "two"
    assert world.asked() == ["", ""]
    assert not world.client.watching


async def test_there_are_three_strategies(world: World) -> None:
    with pytest.raises(ValueError, match="Watch, Cache or Get, got 'Poll'"):
        world.objects("Poll")
