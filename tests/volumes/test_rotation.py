"""What volumes show follows the cluster: tokens before they end, objects when they change, and nothing otherwise.

The volume manager, the kinds, the token cache, the trust bundles and the watches are the agent's own, on a mock clock;
the API server is scripted.
"""

from __future__ import annotations

import math
import os
import random
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.kube_client.pod_scopes import PodScopes
from tests.kube_client.scripted_client import ScriptedClient, status_error
from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.payload.steps import before_each_step
from tests.volumes.real_kinds import running_manager
from tests.volumes.stage import pod as pod_with
from trikubelet.api import ConfigMap, ObjectMeta, Pod, Secret, ServiceAccount, from_dict, set_pod_defaults, to_dict
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_watches import ObjectWatches
from trikubelet.kube_client.pod_credentials import ClusterCredentials
from trikubelet.kube_client.pod_objects import PodObjects
from trikubelet.kube_client.tokens import JITTER, Tokens
from trikubelet.kube_client.trust_bundles import TrustBundles
from trikubelet.kube_client.types import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.manager import VolumeManager
from trikubelet.volumes.operations import LATER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from trio.testing import MockClock

MINUTE, HOUR, DAY = 60, 3600, 86400
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SOON = 1.0
"""Seconds in which a change that was told is in the volume."""
ACCOUNT = ServiceAccount(metadata=ObjectMeta(name="default", namespace="default", uid="uid-account"))


@attrs.define
class World:
    client: ScriptedClient
    objects: PodObjects
    pods: PodScopes
    manager: VolumeManager
    recorder: EventRecorder
    clock: TrioClock

    async def start(self, pod: Pod) -> Path:
        """Have a pod's volumes; the path of the first."""
        self.pods.follow(pod)
        await self.manager.prepare(pod)
        path = self.manager.host_path(pod, pod.spec.volumes[0].name)
        assert path is not None
        return path

    def messages(self, pod: Pod) -> list[str]:
        return [event.message for event in self.recorder.events_of(pod.metadata.uid)]


@asynccontextmanager
async def world(root: Path, *objects: Any) -> AsyncIterator[World]:
    clock = TrioClock()
    recorder = EventRecorder(clock)
    client = ScriptedClient([ACCOUNT, *objects], clock=clock)
    watched = PodObjects(ObjectWatches(client, rng=random.Random(1), sync_frequency=60))
    bundles = TrustBundles(client, rng=random.Random(1))
    tokens = Tokens(client, clock=clock, rng=random.Random(2))
    credentials = ClusterCredentials(tokens=tokens, trust_bundles=bundles, clock=clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(watched.run)
        async with running_manager(
            root, objects=watched, credentials=credentials, mounter=FakeMounter(), clock=clock, recorder=recorder
        ) as manager:
            yield World(client, watched, PodScopes(watched), manager, recorder, clock)
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio.from_thread, "check_cancelled", lambda: None)


def pod(*volumes: dict[str, Any]) -> Pod:
    document = to_dict(pod_with("web", *volumes))
    document["spec"]["serviceAccountName"] = "default"
    return set_pod_defaults(from_dict(Pod, document))


def token_volume(seconds: int = HOUR) -> dict[str, Any]:
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": seconds}}
    return {"name": "api", "projected": {"sources": [source]}}


def config(**data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"), data=data)


def secret(**data: bytes) -> Secret:
    return Secret(metadata=ObjectMeta(name="password", namespace="default"), data=data)


def shown(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith("..")}


async def changes_of(read: Callable[[], str], seconds: float, *, every: float = 1.0) -> list[tuple[float, str]]:
    """When a text was another, in seconds from now, and what."""
    began, before, found = trio.current_time(), read(), []
    while trio.current_time() - began < seconds:
        await trio.sleep(every)
        if (now := read()) != before:
            found.append((trio.current_time() - began, now))
            before = now
    return found


# Tokens


@pytest.mark.parametrize(
    ("life", "age", "rounds"), [(HOUR, 48 * MINUTE, 6), (10 * MINUTE, 8 * MINUTE, 6), (40 * HOUR, DAY, 2)]
)
async def test_a_token_is_another_after_four_fifths_of_its_life_or_a_day(
    tmp_path: Path, life: int, age: int, rounds: int, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as stage:
        path = await stage.start(pod(token_volume(life)))
        assert shown(path) == {"token": "token-1"}
        often = age / 480
        changes = await changes_of((path / "token").read_text, age * (rounds + 0.5), every=often)
        assert [token for _, token in changes] == [f"token-{number}" for number in range(2, rounds + 2)]
        times = [0.0, *(at for at, _ in changes)]
        ages = [later - earlier for earlier, later in pairwise(times)]
        assert all(age - JITTER <= one <= age + LATER + often for one in ages), ages
        assert len(stage.client.called("create", SERVICE_ACCOUNTS)) == rounds + 1


async def test_a_renewal_that_fails_leaves_the_valid_token_and_is_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as stage:
        web = pod(token_volume())
        path = await stage.start(web)
        stage.client.fail("create", SERVICE_ACCOUNTS, status_error(500, "InternalError", "no"), times=math.inf)
        await trio.sleep(59 * MINUTE)
        assert shown(path) == {"token": "token-1"}
        assert stage.manager.mounted(web, "api") is not None
        tries = len(stage.client.called("create", SERVICE_ACCOUNTS))
        assert 5 <= tries <= 30, "again and again, and not as fast as possible"
        assert stage.messages(web) == [], "the pod has what it needs"
        stage.client.heal()
        changes = await changes_of((path / "token").read_text, 2 * MINUTE)
        assert [token for _, token in changes] == ["token-2"]


async def test_a_pod_whose_token_has_ended_keeps_running_and_its_events_tell(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as stage:
        web = pod(token_volume())
        path = await stage.start(web)
        stage.client.unreachable()
        await trio.sleep(70 * MINUTE)
        assert shown(path) == {"token": "token-1"}
        assert stage.manager.mounted(web, "api") is not None
        assert any("expired and refresh failed" in message for message in stage.messages(web))
        assert not any("token-1" in message for message in stage.messages(web))
        stage.client.back()
        changes = await changes_of((path / "token").read_text, 5 * MINUTE)
        assert [token for _, token in changes] == ["token-2"]


async def test_the_tokens_of_many_pods_are_not_renewed_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as stage:
        for number in range(50):
            document = to_dict(pod(token_volume()))
            document["metadata"] |= {"name": f"web-{number}", "uid": f"uid-{number}"}
            await stage.start(set_pod_defaults(from_dict(Pod, document)))
        stage.client.calls.clear()
        await trio.sleep(50 * MINUTE)
        times = sorted(call.at for call in stage.client.called("create", SERVICE_ACCOUNTS))
        assert len(times) == 50
        assert times[-1] - times[0] > 5
        assert all(sum(at <= other < at + 1 for other in times) < 25 for at in times)


async def test_the_tokens_of_a_pod_that_has_ended_are_not_renewed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as stage:
        web = pod(token_volume())
        path = await stage.start(web)
        await stage.manager.release(web.metadata.uid)
        stage.client.calls.clear()
        await trio.sleep(DAY)
        assert not path.exists()
        assert stage.client.calls == []


# Objects


async def test_a_change_of_an_object_reaches_volumes_without_anybody_asking(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    sources = [{"configMap": {"name": "settings"}}, {"secret": {"name": "password"}}]
    async with world(tmp_path, config(a="1"), secret(b=b"1")) as stage:
        web = pod(
            {"name": "config", "configMap": {"name": "settings"}}, {"name": "all", "projected": {"sources": sources}}
        )
        path = await stage.start(web)
        both = stage.manager.host_path(web, "all")
        assert both is not None
        await trio.sleep(10)
        stage.client.calls.clear()
        for number in range(20):
            stage.client.put(config(a=f"new {number}"))
            stage.client.put(secret(b=f"new {number}".encode()))
            await trio.sleep(SOON)
            assert shown(path) == {"a": f"new {number}"}
            assert shown(both) == {"a": f"new {number}", "b": f"new {number}"}
        assert stage.client.calls == [], "the watches told it"


async def test_nothing_is_written_while_nothing_changes(tmp_path: Path, autojump_clock: MockClock) -> None:
    sources = [{"configMap": {"name": "settings"}}, {"serviceAccountToken": {"path": "token"}}]
    name = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": "settings"}},
        {"name": "password", "secret": {"secretName": "password"}},
        {"name": "names", "downwardAPI": {"items": [name]}},
        {"name": "all", "projected": {"sources": sources}},
    ]
    written: list[str] = []

    def look(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        reads = event in ("os.listdir", "os.scandir") or (event == "open" and not int(str(flags)) & WRITES)
        if not reads and str(tmp_path) in str(arguments[0]):
            written.append(f"{event} {arguments}")

    async with world(tmp_path, config(a="1"), secret(b=b"1")) as stage:
        web = pod(*volumes)
        path = await stage.start(web)
        await trio.sleep(MINUTE)
        versions = {one: (one / "..data").readlink() for one in path.parents[1].glob("*/*")}
        assert len(versions) == 4
        with before_each_step(look):
            for _ in range(40):
                stage.manager.refresh(web)
                await trio.sleep(MINUTE)
            assert written == []
            stage.client.put(config(a="2"))
            await trio.sleep(SOON)
        assert written, "a change is written, and seen here"
        changed = {one.name for one, before in versions.items() if (one / "..data").readlink() != before}
        assert changed == {"config", "all"}


async def test_optional_objects_come_and_go_while_the_pod_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    sources = [
        {"configMap": {"name": "settings", "optional": True}},
        {"secret": {"name": "password", "optional": True}},
    ]
    async with world(tmp_path) as stage:
        path = await stage.start(pod({"name": "all", "projected": {"sources": sources}}))
        assert shown(path) == {}
        stage.client.put(config(a="1"))
        await trio.sleep(SOON)
        assert shown(path) == {"a": "1"}
        stage.client.put(secret(b=b"1"))
        await trio.sleep(SOON)
        assert shown(path) == {"a": "1", "b": "1"}
        stage.client.remove(CONFIG_MAPS, "settings", "default")
        await trio.sleep(SOON)
        assert shown(path) == {"b": "1"}
        stage.client.remove(SECRETS, "password", "default")
        await trio.sleep(SOON)
        assert shown(path) == {}


async def test_an_object_that_must_be_there_is_waited_for_and_stays_shown_when_it_goes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as stage:
        web = pod({"name": "config", "configMap": {"name": "settings"}})
        took: list[float] = []

        async def start() -> None:
            began = trio.current_time()
            await stage.start(web)
            took.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            await trio.sleep(100)  # after so many failures, the next attempt would be a minute away
            assert not took
            assert 'MountVolume.SetUp failed for volume "config" : configmap "settings" not found' in stage.messages(
                web
            )
            stage.client.put(config(a="1"))
        assert took[0] - 100 < SOON
        path = stage.manager.host_path(web, "config")
        assert path is not None
        stage.client.remove(CONFIG_MAPS, "settings", "default")
        await trio.sleep(MINUTE)
        assert shown(path) == {"a": "1"}
        assert stage.manager.mounted(web, "config") is not None
        stage.client.put(config(a="2"))
        await trio.sleep(SOON)
        assert shown(path) == {"a": "2"}


async def test_an_api_server_that_was_away_is_caught_up_with(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path, config(a="1")) as stage:
        path = await stage.start(pod({"name": "config", "configMap": {"name": "settings"}}))
        stage.client.unreachable()
        await trio.sleep(10 * MINUTE)
        assert shown(path) == {"a": "1"}
        stage.client.put(config(a="2"))
        stage.client.back()
        with trio.fail_after(timedelta(minutes=1).total_seconds()):
            while shown(path) != {"a": "2"}:
                await trio.sleep(1)
