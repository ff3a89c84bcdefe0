"""The cache of what was last observed: whom it asks, and what it answers by itself."""

from __future__ import annotations

import trio

from tests.status.builders import observed, seen
from trikubelet.container.model import PodRuntimeStatus
from trikubelet.pleg.cache import PodStatusCache


def cache_and_questions() -> tuple[PodStatusCache, list[tuple[str, float]]]:
    asked: list[tuple[str, float]] = []
    return PodStatusCache(lambda uid, since: asked.append((uid, since))), asked


async def test_each_complete_list_tells_of_the_pods_that_it_does_not_hold() -> None:
    cache, asked = cache_and_questions()
    for began in (10.0, 20.0, 30.0):
        cache.record_complete_list(began)
        with trio.fail_after(1):
            assert (await cache.get_newer_than("unknown", began - 1)).container_statuses == ()
    assert asked == []


async def test_a_pod_that_no_list_since_can_tell_of_is_inspected() -> None:
    cache, asked = cache_and_questions()
    cache.record_complete_list(10.0)
    with trio.move_on_after(0.01):
        await cache.get_newer_than("unknown", 11.0)
    assert asked == [("unknown", 11.0)]


def test_a_container_is_found_while_its_pod_was_last_seen_with_it() -> None:
    cache, _ = cache_and_questions()
    first = observed(seen("a"))
    container_id = first.container_statuses[0].id.id
    cache.publish("u", first, 1.0)
    assert cache.pod_of(container_id) == "u"
    cache.publish_removal("u", container_id)
    assert cache.pod_of(container_id) is None
    cache.publish("u", first, 2.0)
    cache.publish("u", PodRuntimeStatus(uid="u", name="p", namespace="default"), 3.0)
    assert cache.pod_of(container_id) is None
    cache.publish("u", first, 4.0)
    cache.publish_error("u", RuntimeError("away"), 5.0)
    assert cache.pod_of(container_id) == "u", "what was seen before counts while the runtime is away"
    cache.forget("u")
    assert cache.pod_of(container_id) is None
