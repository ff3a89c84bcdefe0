"""The double that other tests stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.kube_client.scripted_client import ScriptedClient, lost, status_error
from tests.kube_client.scripted_patches import patched
from trikubelet.api import Node, ObjectMeta, Pod, PodSpec, PodStatus, ServiceAccount, TokenRequest
from trikubelet.kube_client.errors import ApiStatusError, ApiUnreachable
from trikubelet.kube_client.types import NODES, PODS, SERVICE_ACCOUNTS, PatchType

if TYPE_CHECKING:
    import trio

    from trikubelet.kube_client.types import ApiClient


def pod(name: str, node: str = "a") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(node_name=node))


async def test_it_is_an_api_client() -> None:
    client: ApiClient = ScriptedClient([pod("web")])
    assert (await client.get(PODS, "web", "default")).metadata.resource_version == "1001"
    with pytest.raises(ApiStatusError, match='404 NotFound: pods "other" not found'):
        await client.get(PODS, "other", "default")


async def test_a_watch_sees_objects_come_into_and_leave_its_selector() -> None:
    client = ScriptedClient([pod("web"), pod("elsewhere", "b")])
    listing = await client.list(PODS, field_selector="spec.nodeName=a")
    assert [item.metadata.name for item in listing.items] == ["web"]
    seen = []
    async with client.watch(
        PODS, field_selector="spec.nodeName=a", resource_version=listing.resource_version, timeout=60
    ) as events:
        client.put(pod("elsewhere", "a"))
        client.put(pod("web", "b"))
        client.remove(PODS, "elsewhere", "default")
        client.end_watches()
        async for event in events:
            seen.append((event.type, event.object.metadata.name))
    assert seen == [("ADDED", "elsewhere"), ("DELETED", "web"), ("DELETED", "elsewhere")]
    assert client.watching == 0


async def test_a_watch_may_begin_with_what_is_there() -> None:
    client = ScriptedClient([pod("web")])
    async with client.watch(PODS, send_initial_events=True, timeout=60) as events:
        first, second = await anext(events), await anext(events)
    assert first.object.metadata.name == "web"
    assert second.initial_events_end


async def test_a_status_is_patched_by_itself_and_only_of_the_right_pod() -> None:
    client = ScriptedClient([pod("web")])
    uid = (await client.get(PODS, "web", "default")).metadata.uid
    body = {"metadata": {"uid": uid}, "spec": {"nodeName": "b"}, "status": {"phase": "Running"}}
    written = await client.patch(PODS, "web", "default", PatchType.STRATEGIC, body, subresource="status")
    assert (written.status.phase, written.spec.node_name) == ("Running", "a")
    body["metadata"] = {"uid": "other"}
    with pytest.raises(ApiStatusError) as caught:
        await client.patch(PODS, "web", "default", PatchType.STRATEGIC, body, subresource="status")
    assert caught.value.uid_differs


async def test_a_running_pod_is_deleted_gracefully_and_a_terminal_one_at_once() -> None:
    client = ScriptedClient([pod("web")])
    await client.delete(PODS, "web", "default")
    stored = client.stored(PODS, "web", "default")
    assert stored is not None
    assert stored.metadata.deletion_grace_period_seconds == 30
    client.put(attrs.evolve(stored, status=PodStatus(phase="Failed")))
    await client.delete(PODS, "web", "default")
    assert client.stored(PODS, "web", "default") is None


async def test_failures_and_lost_replies_are_scripted() -> None:
    client = ScriptedClient()
    client.fail("create", NODES, status_error(500))
    client.fail("create", NODES, lost(), after=True)
    node = Node(metadata=ObjectMeta(name="a"))
    with pytest.raises(ApiStatusError):
        await client.create(NODES, node)
    assert client.stored(NODES, "a") is None
    with pytest.raises(ApiUnreachable):
        await client.create(NODES, node)
    assert client.stored(NODES, "a") is not None
    assert not client.health.reachable


async def test_a_held_call_ends_with_its_deadline(autojump_clock: trio.abc.Clock) -> None:
    client = ScriptedClient([pod("web")])
    client.hold("get", PODS)
    with pytest.raises(ApiUnreachable, match="no answer within 2 s"):
        await client.view(limit=None, timeout=2).get(PODS, "web", "default")


async def test_a_server_that_is_away_breaks_watches_and_its_return_is_noticed() -> None:
    client = ScriptedClient([pod("web")])
    async with client.watch(PODS, timeout=60) as events:
        client.unreachable()
        with pytest.raises(ApiUnreachable):
            await anext(events)
    with pytest.raises(ApiUnreachable):
        await client.get(PODS, "web", "default")
    seen = client.health.recoveries
    client.back()
    await client.get(PODS, "web", "default")
    await client.health.wait_recovery(seen)


async def test_a_token_is_issued_for_an_account() -> None:
    client = ScriptedClient([ServiceAccount(metadata=ObjectMeta(name="default", namespace="default"))])
    answer = await client.create_subresource(SERVICE_ACCOUNTS, "default", "default", "token", TokenRequest())
    assert answer.status.token == "token-1"


A, B = {"type": "A", "s": 1}, {"type": "B", "s": 1}
DOCUMENT = {"a": 1, "l": [1], "conditions": [A, B]}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"a": None}, {"l": [1], "conditions": [A, B]}),
        ({"l": [2]}, DOCUMENT | {"l": [2]}),
        ({"conditions": [{"type": "B", "s": 2}]}, DOCUMENT | {"conditions": [A, {"type": "B", "s": 2}]}),
        ({"conditions": [{"$patch": "delete", "type": "A"}]}, DOCUMENT | {"conditions": [B]}),
        (
            {"$setElementOrder/conditions": [{"type": "B"}, {"type": "A"}], "conditions": []},
            DOCUMENT | {"conditions": [B, A]},
        ),
        ({"conditions": [{"$patch": "replace"}, {"type": "C"}]}, DOCUMENT | {"conditions": [{"type": "C"}]}),
    ],
)
def test_strategic_patches(patch: dict[str, object], expected: dict[str, object]) -> None:
    assert patched(DOCUMENT, PatchType.STRATEGIC, patch) == expected
