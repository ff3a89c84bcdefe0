"""The client and the test API server, over TLS, as a node meets them."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.apiserver.server import HOST, ApiServer, open_api_server
from trikubelet.api import Container, ObjectMeta, Pod, PodCondition, PodSpec, to_dict
from trikubelet.clock import TrioClock
from trikubelet.kube_client.client import HttpApiClient, open_client
from trikubelet.kube_client.errors import ApiStatusError, ApiUnreachable
from trikubelet.kube_client.patches import POD_LISTS, strategic_patch
from trikubelet.kube_client.types import PODS, RESOURCE_SLICES, PatchType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from trio.testing import MockClock

protocols = pytest.mark.parametrize("http2", [True, False], ids=["h2", "http/1.1"])


class AdminAccess:
    """An `Access` of the server's administrator, on memory streams."""

    user_agent = "trikubelet/test"

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server.url
        self._api = server
        certificate = server.admin_certificate()
        pem = folder / "admin.pem"
        pem.write_bytes(certificate.cert_pem + certificate.key_pem)
        self._context = ssl.create_default_context(cadata=server.ca_pem.decode())
        self._context.load_cert_chain(pem)
        self._context.set_alpn_protocols(["h2", "http/1.1"])

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        stream = trio.SSLStream(await self._api.connect(), self._context, server_hostname=HOST, https_compatible=True)
        await stream.do_handshake()
        return stream, stream.selected_alpn_protocol() or ""

    async def headers(self) -> Mapping[str, str]:
        return {}

    def rejected(self, headers: Mapping[str, str]) -> None: ...

    def on_change(self, listener: Callable[[], None]) -> None: ...


@asynccontextmanager
async def cluster(folder: Path, http2: bool) -> AsyncIterator[tuple[HttpApiClient, ApiServer]]:
    async with open_api_server(TrioClock(), http2=http2) as server:
        async with open_client(AdminAccess(server, folder)) as client:
            yield client, server


def new_pod(name: str = "a") -> Pod:
    metadata = ObjectMeta(name=name, namespace="default")
    return Pod(metadata=metadata, spec=PodSpec(node_name="n", containers=(Container(name="c", image="i"),)))


def ready(pod: Pod, status: str) -> Pod:
    condition = PodCondition(type="Ready", status=status)
    return attrs.evolve(pod, status=attrs.evolve(pod.status, phase="Running", conditions=(condition,)))


@protocols
async def test_the_life_of_a_pod_as_a_watch_tells_it(http2: bool, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, http2) as (client, _):
        created = await client.create(PODS, new_pod())
        assert client.statistics().protocol == ("HTTP/2" if http2 else "HTTP/1.1")
        async with client.watch(
            PODS, field_selector="spec.nodeName=n", send_initial_events=True, timeout=300
        ) as events:
            assert (await anext(events)).type == "ADDED"
            assert (await anext(events)).initial_events_end
            patch = strategic_patch(to_dict(created), to_dict(ready(created, "True")), POD_LISTS)
            patch["metadata"] = {"uid": created.metadata.uid}
            patched = await client.patch(PODS, "a", "default", PatchType.STRATEGIC, patch, subresource="status")
            told = await anext(events)
            assert (told.type, told.object) == ("MODIFIED", patched)
            assert patched.status.phase == "Running"
            await client.delete(PODS, "a", "default", grace_period=0, uid=created.metadata.uid)
            kinds = [(await anext(events)).type]
            if kinds == ["MODIFIED"]:
                kinds = [(await anext(events)).type]
            assert kinds == ["DELETED"]
        with pytest.raises(ApiStatusError, match='pods "a" not found') as caught:
            await client.get(PODS, "a", "default")
        assert caught.value.not_found
        assert (await client.list(PODS)).items == ()


@protocols
async def test_a_pod_that_is_another_one_now_is_told_apart(
    http2: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, http2) as (client, _):
        await client.create(PODS, new_pod())
        patch = {"metadata": {"uid": "other"}, "status": {"phase": "Failed"}}
        with pytest.raises(ApiStatusError) as caught:
            await client.patch(PODS, "a", "default", PatchType.STRATEGIC, patch, subresource="status")
        assert caught.value.uid_differs
        with pytest.raises(ApiStatusError) as caught:
            await client.delete(PODS, "a", "default", uid="other")
        assert caught.value.uid_differs
        with pytest.raises(ApiStatusError) as caught:
            await client.create(PODS, new_pod())
        assert caught.value.already_exists


@protocols
async def test_a_version_that_is_gone_is_expired(http2: bool, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, http2) as (client, server):
        old = await client.create(PODS, new_pod())
        for name in "bcd":
            await client.create(PODS, new_pod(name))
        server.store.compact()

        async def watch() -> None:
            async with client.watch(PODS, resource_version=old.metadata.resource_version, timeout=300) as events:
                await anext(events)

        with pytest.raises(ApiStatusError) as caught:
            await watch()
        assert caught.value.expired


@protocols
async def test_an_outage_is_seen_and_left_behind(http2: bool, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, http2) as (client, server):
        await client.create(PODS, new_pod())
        async with client.watch(PODS, timeout=3000) as events:
            await anext(events)
            server.faults.unreachable()
            with pytest.raises(ApiUnreachable):
                await anext(events)
        seen = client.health.recoveries
        with pytest.raises(ApiUnreachable):
            await client.get(PODS, "a", "default")
        assert not client.health.reachable
        server.faults.back()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.health.wait_recovery, seen)
            assert (await client.get(PODS, "a", "default")).metadata.name == "a"


@protocols
async def test_a_lost_reply_of_a_write_is_told_as_such(http2: bool, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, http2) as (client, server):
        server.faults.lose_reply(times=1)
        with pytest.raises(ApiUnreachable) as caught:
            await client.create(PODS, new_pod())
        assert caught.value.sent
        with pytest.raises(ApiStatusError) as refused:
            await client.create(PODS, new_pod())
        assert refused.value.already_exists


@protocols
async def test_a_server_with_too_much_to_do_is_given_time(
    http2: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, http2) as (client, server):
        server.faults.too_many(retry_after=3, times=2)
        start = trio.current_time()
        await client.create(PODS, new_pod())
        assert trio.current_time() - start == pytest.approx(6, abs=0.1)


async def test_a_node_deletes_the_slices_that_it_chooses(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, http2=True) as (client, server):
        for name, driver, node in (("one", "x", "a"), ("two", "y", "a"), ("far", "x", "b")):
            spec = {"driver": driver, "nodeName": node}
            server.admin.create({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
        await client.delete_collection(RESOURCE_SLICES, field_selector="spec.nodeName=a,spec.driver=x")
        listed = (await client.list(RESOURCE_SLICES)).items
        assert [(one.metadata.name, one.spec.driver, one.spec.node_name) for one in listed] == [
            ("far", "x", "b"),
            ("two", "y", "a"),
        ]
