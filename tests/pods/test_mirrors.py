"""Mirror pods: when they are made, replaced and removed, and that there is never more than one."""

from __future__ import annotations

import itertools
import math
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import Call, ScriptedClient, lost, status_error
from tests.pods.factories import DELETED_AT, make_mirror, make_pod
from tests.pods.fake_node import NODE, FakeNode, static_pod
from trikubelet.api import Node, OwnerReference, Pod, PodStatus
from trikubelet.api.pod_kinds import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import PODS
from trikubelet.pods.manager import PodManager
from trikubelet.pods.mirrors import (
    CreateMirror,
    MirrorPods,
    RemoveMirror,
    is_outdated,
    may_be_replaced,
    mirror_action,
    mirror_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.kube_client.errors import ApiError


def with_metadata(of: Any, **changes: Any) -> Any:
    return attrs.evolve(of, metadata=attrs.evolve(of.metadata, **changes))


STATIC = static_pod()
MIRROR = make_mirror(STATIC, "mirror")
GOING = with_metadata(MIRROR, deletion_timestamp=DELETED_AT)
OTHER = with_metadata(MIRROR, annotations={CONFIG_MIRROR_ANNOTATION: "another hash"})


# --- Decisions -------------------------------------------------------------------------------------------------------


def test_a_mirror_pod_is_the_pod_with_its_hash_and_the_node_as_its_owner() -> None:
    static = attrs.evolve(with_metadata(STATIC, resource_version="7"), status=PodStatus(phase="Running"))
    mirror = mirror_of(static, NODE)
    assert mirror.spec == static.spec
    assert (mirror.api_version, mirror.kind, mirror.status) == ("v1", "Pod", PodStatus())
    assert mirror.metadata.annotations == {**static.metadata.annotations, CONFIG_MIRROR_ANNOTATION: "static"}
    assert mirror.metadata.owner_references == (
        OwnerReference(api_version="v1", kind="Node", name="n", uid="node-uid", controller=True),
    )
    assert mirror.metadata.resource_version == ""
    assert CONFIG_MIRROR_ANNOTATION not in static.metadata.annotations


@pytest.mark.parametrize(
    ("mirror", "outdated"),
    [(MIRROR, False), (GOING, True), (OTHER, True), (with_metadata(MIRROR, name="other"), True)],
)
def test_a_mirror_pod_is_outdated_when_it_is_going_or_shows_something_else(mirror: Pod, outdated: bool) -> None:
    assert is_outdated(mirror, STATIC) is outdated


@pytest.mark.parametrize(
    ("static", "mirror", "node", "wanted", "unwanted", "expected"),
    [
        (STATIC, None, NODE, True, False, CreateMirror(mirror_of(STATIC, NODE))),
        (STATIC, None, NODE, False, False, None),  # refused by admission
        (STATIC, None, None, True, False, None),  # not registered yet
        (STATIC, None, with_metadata(NODE, uid=""), True, False, None),
        (STATIC, None, with_metadata(NODE, deletion_timestamp=DELETED_AT), True, False, None),
        (STATIC, MIRROR, NODE, True, False, None),
        (STATIC, GOING, NODE, True, False, RemoveMirror(GOING)),
        (STATIC, OTHER, NODE, True, False, RemoveMirror(OTHER)),
        (STATIC, OTHER, None, True, False, RemoveMirror(OTHER)),
        (STATIC, OTHER, NODE, False, True, None),
        (None, MIRROR, NODE, True, False, None),  # perhaps it is still being ended
        (None, MIRROR, NODE, False, True, RemoveMirror(MIRROR)),
        (None, None, NODE, False, True, None),
    ],
)
def test_what_is_done_about_a_mirror_pod(
    static: Pod | None, mirror: Pod | None, node: Node | None, wanted: bool, unwanted: bool, expected: object
) -> None:
    assert mirror_action(static, mirror, node, wanted=wanted, unwanted=unwanted) == expected


def test_only_mirror_pods_of_this_node_give_way() -> None:
    assert may_be_replaced(MIRROR, "n")
    assert not may_be_replaced(MIRROR, "other")
    assert not may_be_replaced(with_metadata(MIRROR, annotations={}), "n")


# --- Effects ---------------------------------------------------------------------------------------------------------


class Stage:
    """Mirror pods beside a server."""

    def __init__(self, *local: Pod, served: tuple[Pod, ...] = (), node: Node | None = NODE) -> None:
        self.client = ScriptedClient()
        for one in served:
            self.client.put(one)
        self.store = Store(PODS)
        self.pods = PodManager(local)
        self.node = FakeNode(node)
        self.terminating: set[str] = set()
        self.reflector = Reflector(self.client, PODS, self.store, rng=Random(1))
        self.mirrors = MirrorPods(
            self.client, self.node, self.pods, self.store, terminating=self.terminating.__contains__, rng=Random(1)
        )

    @property
    def requests(self) -> list[str]:
        return [call.verb for call in self.client.calls if call.verb not in ("watch", "list", "text")]

    def served(self, name: str = "web") -> Pod | None:
        return self.client.stored(PODS, name, "ns")

    def sync(self, static: Pod, mirror: Pod | None = None) -> None:
        """A worker syncs the pod."""
        self.pods.update_pod(static)
        self.mirrors.ensure(static, mirror)

    def mark(self) -> str | None:
        found = self.served()
        return None if found is None else found.metadata.annotations.get(CONFIG_MIRROR_ANNOTATION)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.reflector.run)
            await nursery.start(self.mirrors.run)
            await trio.sleep(0.001)
            yield
            nursery.cancel_scope.cancel()


async def test_a_static_pod_gets_a_mirror_pod_once(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.open():
        for _ in range(3):
            stage.sync(STATIC)
            await trio.sleep(1)
    assert stage.requests == ["create"]
    assert stage.mark() == "static"


async def test_a_pod_of_the_api_server_gets_none(autojump_clock: MockClock) -> None:
    of = make_pod("u", "web")
    stage = Stage()
    async with stage.open():
        stage.sync(of, None)
        await trio.sleep(1)
    assert stage.requests == []


async def test_all_static_pods_are_shown_as_soon_as_the_node_is_registered(autojump_clock: MockClock) -> None:
    rejected = static_pod("rejected", "rejected")
    stage = Stage(STATIC, rejected, node=None)
    async with stage.open():
        stage.sync(STATIC)
        await trio.sleep(10)
        assert stage.requests == []
        stage.node.register()
        await trio.sleep(0.001)
        assert stage.mark() == "static"
        # Also one that no sync has asked for.
        assert stage.served("rejected") is not None


async def test_an_edited_manifest_replaces_the_mirror_pod(autojump_clock: MockClock) -> None:
    stage = Stage(served=(OTHER,))
    async with stage.open():
        stage.sync(STATIC, OTHER)
        await trio.sleep(1)
        assert stage.mark() == "static"
    assert stage.requests == ["delete", "create"]
    call = stage.client.called("delete")[0]
    assert (call.body, call.options["grace_period"]) == ("mirror", 0)


async def test_a_version_that_waits_for_the_end_of_the_one_before_is_not_shown_yet(autojump_clock: MockClock) -> None:
    newer = static_pod("newer")
    stage = Stage(served=(MIRROR,))
    async with stage.open():
        stage.sync(STATIC, MIRROR)
        stage.pods.update_pod(newer)
        stage.mirrors.ensure(STATIC, None)  # the last sync of the one that is to end
        await trio.sleep(30)
        assert stage.mark() == "static"
        stage.sync(newer, MIRROR)
        await trio.sleep(1)
        assert stage.mark() == "newer"
    assert stage.requests == ["delete", "create"]


async def test_a_manifest_that_is_written_ten_times_a_second_makes_a_mirror_pod_a_second(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    async with stage.open():
        for number in range(50):
            stage.sync(static_pod(f"version-{number}"), stage.served())
            await trio.sleep(0.1)
        assert stage.requests.count("create") in (5, 6)
        await trio.sleep(1.1)
        assert stage.mark() == "version-49", "the newest wins"
        await trio.sleep(60)
        assert stage.requests.count("create") in (6, 7)


async def test_an_edit_long_after_the_last_is_shown_at_once(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.open():
        stage.sync(STATIC)
        await trio.sleep(5)
        stage.sync(static_pod("newer"), stage.served())
        await trio.sleep(0.1)
        assert stage.mark() == "newer"


async def test_a_mirror_pod_that_somebody_deletes_is_made_anew(autojump_clock: MockClock) -> None:
    stage = Stage(served=(MIRROR,))
    async with stage.open():
        await stage.client.delete(PODS, "web", "ns")
        await trio.sleep(0.01)
        stage.sync(STATIC, GOING)
        await trio.sleep(1)
        found = stage.served()
        assert found is not None
        assert (found.metadata.deletion_timestamp, found.metadata.uid == "mirror") == (None, False)
        stage.client.remove(PODS, "web", "ns")
        await trio.sleep(0.01)
        stage.sync(STATIC)
        await trio.sleep(1)
        assert stage.mark() == "static"


async def test_an_orphan_is_removed_but_not_while_its_pod_is_being_ended(autojump_clock: MockClock) -> None:
    stage = Stage(served=(MIRROR,))
    async with stage.open():
        stage.terminating.add("web_ns")
        stage.mirrors.delete("web_ns")
        await trio.sleep(1)
        assert stage.requests == []
        stage.terminating.clear()
        for _ in range(3):
            stage.mirrors.delete("web_ns")
            await trio.sleep(2)
    assert stage.requests == ["delete"]
    assert stage.served() is None


async def test_a_pod_that_came_back_keeps_its_mirror_pod(autojump_clock: MockClock) -> None:
    stage = Stage(served=(MIRROR,))
    async with stage.open():
        stage.client.fail("delete", PODS, status_error(500), times=2)
        stage.mirrors.delete("web_ns")
        await trio.sleep(0.05)
        stage.sync(STATIC, MIRROR)
        await trio.sleep(10)
        assert stage.served() is not None
    assert stage.requests == ["delete"]


async def test_after_a_lost_reply_there_is_one_mirror_pod(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.open():
        stage.client.fail("create", PODS, lost(), after=True)
        gate = stage.client.hold("watch", PODS)
        stage.client.end_watches()
        stage.sync(STATIC)
        await trio.sleep(5)
        assert stage.requests == ["create", "create", "get"]
        found = stage.served()
        gate.set()
        await trio.sleep(5)
        assert stage.served() is found
    assert stage.requests == ["create", "create", "get"]


async def test_an_unknown_mirror_pod_of_an_older_manifest_is_replaced(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.open():
        gate = stage.client.hold("watch", PODS)
        stage.client.end_watches()
        await trio.sleep(1)
        stage.client.put(OTHER)
        stage.sync(STATIC)
        await trio.sleep(1)
        assert stage.mark() == "static"
        assert stage.requests == ["create", "get", "delete", "create"]
        gate.set()
        await trio.sleep(20)
    assert len(stage.requests) == 4


async def test_a_pod_of_a_user_with_the_same_name_is_left_alone(autojump_clock: MockClock) -> None:
    theirs = make_pod("theirs", "web")
    stage = Stage(served=(theirs,))
    async with stage.open():
        stage.sync(STATIC)
        await trio.sleep(60)
        assert stage.served() is not None
        assert "delete" not in stage.requests
        # Rarely tried again, and made when the other goes.
        assert len(stage.client.called("create")) < 15
        stage.client.remove(PODS, "web", "ns")
        await trio.sleep(13)
        assert stage.mark() == "static"


@pytest.mark.parametrize("error", [status_error(403, "Forbidden"), status_error(500), lost(sent=False)])
async def test_what_fails_is_tried_again_with_growing_pauses(autojump_clock: MockClock, error: ApiError) -> None:
    stage = Stage()
    async with stage.open():
        stage.client.fail("create", PODS, error, times=5)
        stage.sync(STATIC)
        await trio.sleep(6)
        times = [call.at for call in stage.client.called("create")]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) == 6
        assert pauses == sorted(pauses)
        assert stage.mark() == "static"


async def test_when_the_api_server_is_back_it_is_tried_at_once(autojump_clock: MockClock) -> None:
    stage = Stage()
    async with stage.open():
        stage.client.unreachable()
        for _ in range(60):  # each sync asks
            stage.sync(STATIC)
            await trio.sleep(10)
        assert len(stage.client.called("create")) < 75
        stage.client.back()
        await stage.client.get_text("/healthz")
        await trio.sleep(0.2)
        assert stage.mark() == "static"


async def test_a_mirror_pod_is_made_again_when_the_first_is_lost_in_a_race(autojump_clock: MockClock) -> None:
    stage = Stage(served=(OTHER,))

    def gone(call: Call) -> ApiError | None:
        stage.client.remove(PODS, "web", "ns")
        return None

    async with stage.open():
        stage.client.fail("delete", PODS, gone, times=math.inf)
        stage.sync(STATIC, OTHER)
        await trio.sleep(1)
        assert stage.mark() == "static"


async def test_a_mirror_pod_with_finalizers_is_not_asked_to_go_all_the_time(autojump_clock: MockClock) -> None:
    stage = Stage(served=(with_metadata(GOING, finalizers=("example.com/keep",)),))
    async with stage.open():
        stage.client.fail("delete", PODS, lambda _call: status_error(409), times=math.inf)
        stage.sync(STATIC, GOING)
        await trio.sleep(60)
        assert 5 < len(stage.client.called("create")) < 20
        stage.client.remove(PODS, "web", "ns")
        await trio.sleep(13)
        assert stage.mark() == "static"


def test_the_hash_of_a_static_pod_is_its_annotation() -> None:
    assert STATIC.metadata.annotations[CONFIG_HASH_ANNOTATION] == "static"
