"""ConfigMaps and Secrets by watches, with the situations of the kubelet's `watch_based_manager_test.go`."""

from __future__ import annotations

import math
import random
import traceback
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.kube_client.pod_scopes import PodScopes
from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.listening import told_by
from trikubelet.api import ConfigMap, ObjectMeta, Pod, Problem, Secret, pod_from_dict
from trikubelet.kube_client.decoding import Known, decode_answer
from trikubelet.kube_client.errors import ApiAnswerError
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.object_watches import ObjectWatches
from trikubelet.kube_client.pod_objects import PodObjects
from trikubelet.kube_client.types import CONFIG_MAPS, SECRETS, Undecodable

if TYPE_CHECKING:
    from trio.testing import MockClock


VOLUME = {"name": "v", "configMap": {"name": "settings"}}


def config_map(text: str, *, immutable: bool | None = None) -> ConfigMap:
    metadata = ObjectMeta(name="settings", namespace="ns")
    return ConfigMap(metadata=metadata, data={"text": text}, immutable=immutable)


def pod(name: str = "web", *, volumes: tuple[dict[str, Any], ...] = (), source: str = "api") -> Pod:
    """A pod with a variable of the ConfigMap `settings`."""
    container = {"name": "main", "image": "x", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    annotations = {"kubernetes.io/config.source": source}
    return pod_from_dict(
        {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": annotations},
            "spec": {"containers": [container], "volumes": list(volumes)},
        }
    )


@attrs.define
class World:
    client: ScriptedClient
    watches: ObjectWatches
    objects: PodObjects
    pods: PodScopes
    told: list[tuple[str, str, str]] = attrs.field(factory=list)

    async def text(self) -> str:
        return (await self.objects.config_map("ns", "settings")).data["text"]


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    client = ScriptedClient([config_map("one")])
    watches = ObjectWatches(client, rng=random.Random(1), sync_frequency=60)
    objects = PodObjects(watches)
    world = World(client, watches, objects, PodScopes(objects))
    world.told = told_by(world.objects.changes)
    await nursery.start(world.objects.run)
    return world


async def test_a_pod_that_is_registered_reads_what_one_watch_tells(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod())
    assert await world.text() == "one"
    world.client.put(config_map("two"))
    await trio.sleep(0.01)
    assert await world.text() == "two"
    [call] = world.client.calls
    assert (call.verb, call.resource, call.namespace) == ("watch", CONFIG_MAPS, "ns")
    assert call.options["field_selector"] == "metadata.name=settings"
    assert 1800 <= call.options["timeout"] <= 3600


async def test_changes_are_told(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod())
    await trio.sleep(0.01)
    world.client.put(config_map("two"))
    world.client.remove(CONFIG_MAPS, "settings", "ns")
    await trio.sleep(0.01)
    assert world.told == [("configmaps", "ns", "settings")] * 2


async def test_what_a_read_waits_for_is_not_told_beside(world: World, autojump_clock: MockClock) -> None:
    gate = world.client.hold("watch", CONFIG_MAPS)
    world.pods.follow(pod())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.text)
        await trio.sleep(0.5)
        gate.set()
    assert world.told == []
    world.client.put(config_map("two"))
    await trio.sleep(0.01)
    assert world.told == [("configmaps", "ns", "settings")]


async def test_a_read_that_did_not_wait_long_enough_is_told(world: World, autojump_clock: MockClock) -> None:
    gate = world.client.hold("watch", CONFIG_MAPS)
    world.pods.follow(pod())
    with pytest.raises(ObjectError):
        await world.text()
    gate.set()
    await trio.sleep(0.01)
    assert world.told == [("configmaps", "ns", "settings")]


async def test_pods_share_a_watch_which_ends_with_the_last(world: World, autojump_clock: MockClock) -> None:
    for name in ("a", "b"):
        world.pods.follow(pod(name))
        world.pods.follow(pod(name))
    await trio.sleep(0.01)
    assert world.client.watching == 1
    world.pods.end("uid-a")
    world.pods.end("uid-a")
    await trio.sleep(0.01)
    assert world.client.watching == 1
    world.pods.end("uid-b")
    await trio.sleep(0.01)
    assert (world.client.watching, world.watches.kept, world.objects.registered) == (0, 0, 0)


async def test_a_pod_that_changes_changes_what_is_watched(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod(volumes=({"name": "s", "secret": {"secretName": "old"}},)))
    await trio.sleep(0.01)
    world.pods.follow(pod(volumes=({"name": "s", "secret": {"secretName": "new"}},)))
    await trio.sleep(0.01)
    selectors = [call.options["field_selector"] for call in world.client.called("watch")]
    assert sorted(selectors) == ["metadata.name=new", "metadata.name=old", "metadata.name=settings"]
    assert world.client.watching == 2


async def test_a_missing_object_is_said_so_until_it_is_there(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod(volumes=({"name": "s", "secret": {"secretName": "key"}},)))
    with pytest.raises(ObjectError, match=r'^secret "key" not found$') as caught:
        await world.objects.secret("ns", "key")
    assert caught.value.problem == "not found"
    world.client.put(Secret(metadata=ObjectMeta(name="key", namespace="ns")))
    await trio.sleep(0.01)
    assert ("secrets", "ns", "key") in world.told
    await world.objects.secret("ns", "key")
    world.client.remove(SECRETS, "key", "ns")
    await trio.sleep(0.01)
    with pytest.raises(ObjectError, match="not found"):
        await world.objects.secret("ns", "key")


async def test_a_read_waits_a_second_for_the_first_answer(world: World, autojump_clock: MockClock) -> None:
    gate = world.client.hold("watch", CONFIG_MAPS)
    world.pods.follow(pod())
    begin = trio.current_time()
    with pytest.raises(
        ObjectError, match=r"^failed to sync configmap cache: timed out waiting for the condition$"
    ) as caught:
        await world.text()
    assert caught.value.problem == "unavailable"
    assert trio.current_time() - begin == pytest.approx(1)
    gate.set()
    assert await world.text() == "one"


async def test_a_refusal_is_shown_and_tried_again(world: World, autojump_clock: MockClock) -> None:
    refused = status_error(403, "Forbidden", "no relationship found between node 'a' and this object")
    for verb in ("watch", "list"):
        world.client.fail(verb, CONFIG_MAPS, refused, times=math.inf)
    world.pods.follow(pod())
    with pytest.raises(ObjectError, match=r"timed out waiting for the condition .*no relationship found"):
        await world.text()
    world.client.heal()
    await trio.sleep(60)
    assert world.told
    assert await world.text() == "one"


async def test_a_second_pod_does_not_wait_for_the_pause_after_a_refusal(
    world: World, autojump_clock: MockClock
) -> None:
    for verb in ("watch", "list"):
        world.client.fail(verb, CONFIG_MAPS, status_error(403, "Forbidden", "no"), times=math.inf)
    world.pods.follow(pod("a"))
    await trio.sleep(100)
    world.client.heal()
    world.pods.follow(pod("b"))
    assert await world.text() == "one"


async def test_while_the_server_is_away_the_last_version_is_used(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod())
    assert await world.text() == "one"
    world.client.unreachable()
    await trio.sleep(3600)
    assert world.watches.watching == 0
    assert await world.text() == "one"
    world.client.put(config_map("two"))
    world.client.back()
    await trio.sleep(61)
    assert await world.text() == "two"


async def test_an_immutable_object_is_not_watched_any_longer(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod(volumes=(VOLUME,)))
    assert await world.text() == "one"
    world.client.put(config_map("two", immutable=True))
    await trio.sleep(0.01)
    assert world.client.watching == 0
    world.client.unreachable()
    world.pods.follow(pod("b", volumes=(VOLUME,)))
    assert await world.text() == "two"
    await trio.sleep(600)
    assert await world.text() == "two"
    assert len(world.client.called("watch")) == 1


async def test_what_nobody_reads_is_not_watched_any_longer(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod())
    assert await world.text() == "one"
    await trio.sleep(299)
    assert world.client.watching == 1
    await trio.sleep(70)
    assert world.client.watching == 0
    world.client.put(config_map("two"))
    assert await world.text() == "two"
    assert world.client.watching == 1


async def test_what_a_volume_shows_is_watched_for_ever(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod("a"))
    world.pods.follow(pod("b", volumes=(VOLUME,)))
    await trio.sleep(3000)
    world.client.put(config_map("two"))
    await trio.sleep(0.01)
    assert world.told[-1] == ("configmaps", "ns", "settings")
    world.pods.end("uid-b")
    await trio.sleep(400)
    assert world.client.watching == 0
    # Such a pod again.
    world.pods.follow(pod("c", volumes=(VOLUME,)))
    await trio.sleep(0.01)
    assert world.client.watching == 1


async def test_a_watch_that_was_not_answered_is_not_idle(world: World, autojump_clock: MockClock) -> None:
    world.client.unreachable()
    world.pods.follow(pod())
    await trio.sleep(1000)
    assert world.watches.watching == 1


async def test_static_pods_refer_to_nothing(world: World, autojump_clock: MockClock) -> None:
    world.pods.follow(pod(source="file"))
    assert world.watches.kept == 0


async def test_what_no_pod_refers_to_is_asked_for_each_time(world: World, autojump_clock: MockClock) -> None:
    assert await world.text() == "one"
    world.client.put(config_map("two"))
    assert await world.text() == "two"
    assert [call.verb for call in world.client.calls] == ["get", "get"]
    with pytest.raises(ObjectError, match=r'^secret "other" not found$'):
        await world.objects.secret("ns", "other")


async def test_an_object_that_cannot_be_read_is_not_missing(world: World, autojump_clock: MockClock) -> None:
    world.client.remove(CONFIG_MAPS, "settings", "ns")
    world.pods.follow(pod())
    await trio.sleep(0.01)
    metadata = ObjectMeta(name="settings", namespace="ns", uid="u")
    world.client.send_undecodable(CONFIG_MAPS, Undecodable(metadata, (Problem("data", "expected an object"),)))
    await trio.sleep(0.01)
    with pytest.raises(ObjectError, match="cannot be read by this agent") as caught:
        await world.text()
    assert caught.value.problem == "unavailable"


async def test_pods_may_come_before_the_watching_begins(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    client = ScriptedClient([config_map("one")])
    objects = PodObjects(ObjectWatches(client, rng=random.Random(1), sync_frequency=60))
    pods = PodScopes(objects)
    pods.follow(pod())
    await nursery.start(objects.run)
    assert (await objects.config_map("ns", "settings")).data == {"text": "one"}


async def test_a_hundred_pods_with_the_same_object_ask_once(world: World, autojump_clock: MockClock) -> None:
    world.client.set_latency(0.5)
    for index in range(100):
        world.pods.follow(pod(f"pod-{index}"))
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(world.text)
    assert len(world.client.calls) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"Secret","metadata":{"name":"key"},"data":{"password":"hunter2!"}}',
        b'{"kind":"Secret","data":{"password":"hunter2',
        b'{"kind":"Secret","metadata":{"name":"key"},"data":{"a":1},"stringData":{"hunter2":2}',
    ],
)
def test_a_secret_that_cannot_be_read_is_not_shown(body: bytes) -> None:
    with pytest.raises(ApiAnswerError) as caught:
        decode_answer(Secret, body, "GET /", Known())
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown
    assert "GET /" in shown
