"""What pods refer to, over TLS and HTTP/2, from an API server that lets a node see only what its pods need."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.apiserver.builders import pod_document
from tests.apiserver.storage_controllers import StorageControllers, attachment_name
from tests.apiserver.test_storage_controllers import claim_document, volume_document
from tests.examples import examples
from tests.kube_client.pod_scopes import PodScopes
from tests.kube_client.test_informers_on_server import joined
from tests.listening import told_by
from trikubelet.api import ClusterTrustBundleProjection, Quantity, pod_from_dict
from trikubelet.kube_client.object_getter import ObjectError

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer
    from trikubelet.api import Pod
    from trikubelet.kube_client.informers import Cluster

VOLUME = {"name": "v", "configMap": {"name": "settings"}}
CLAIM = {"name": "c", "persistentVolumeClaim": {"claimName": "data"}}


def config_map(text: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "default"}, "data": {"text": text}}


def bind(server: ApiServer, name: str, *volumes: dict[str, Any]) -> Pod:
    return pod_from_dict(server.admin.create(pod_document(name, node="a", volumes=list(volumes))))


async def text(cluster: Cluster) -> str:
    return (await cluster.watched.config_map("default", "settings")).data["text"]


async def test_a_volume_follows_its_config_map(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        server.admin.create(config_map("one"))
        told: list[tuple[str, str, str]] = []
        told = told_by(cluster.watched.changes)
        pod = bind(server, "web", VOLUME)
        pods = PodScopes(cluster.watched)
        pods.follow(pod)
        assert await text(cluster) == "one"
        begin = trio.current_time()
        server.admin.replace(config_map("two"))
        with trio.fail_after(1):
            while not told:
                await trio.sleep(0.001)
        assert trio.current_time() - begin < 0.1
        assert await text(cluster) == "two"
        # Nothing is missed while the server is away.
        server.faults.unreachable()
        server.admin.replace(config_map("three"))
        await trio.sleep(600)
        assert await text(cluster) == "two"
        server.faults.back()
        await trio.sleep(61)
        assert await text(cluster) == "three"
        pods.end(pod.metadata.uid)
        server.admin.delete("pods", "web", grace=0)
        with pytest.raises(ObjectError, match="no relationship found"):
            await text(cluster)


async def test_a_server_that_does_not_know_of_the_pod_yet(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        server.admin.create(config_map("one"))
        document = pod_document("web", node="a", volumes=[VOLUME])
        document["metadata"]["uid"] = "early"
        pods = PodScopes(cluster.watched)
        pods.follow(pod_from_dict(document))
        with pytest.raises(ObjectError, match=r"timed out waiting for the condition .*no relationship found"):
            await text(cluster)
        bind(server, "web", VOLUME)
        with trio.fail_after(60):
            while True:
                try:
                    assert await text(cluster) == "one"
                    break
                except ObjectError:
                    await trio.sleep(0.5)


async def test_many_objects_are_followed(autojump_clock: MockClock) -> None:
    count = examples(400)
    async with joined() as (server, cluster):
        volumes = [{"name": f"v{index}", "secret": {"secretName": f"s{index}"}} for index in range(count)]
        for index in range(count):
            server.admin.create({"kind": "Secret", "metadata": {"name": f"s{index}"}, "data": {"a": "Yg=="}})
        pods = PodScopes(cluster.watched)
        pods.follow(bind(server, "web", *volumes))
        await trio.sleep(60)
        for index in range(0, count, 50):
            assert (await cluster.watched.secret("default", f"s{index}")).data == {"a": b"b"}
        server.admin.patch("secrets", f"s{count - 1}", body={"data": {"a": "Yw=="}})
        await trio.sleep(1)
        assert (await cluster.watched.secret("default", f"s{count - 1}")).data == {"a": b"c"}


async def test_a_claim_and_what_it_stands_for(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    async with joined() as (server, cluster):
        await nursery.start(StorageControllers(server).run)
        attached: list[None] = []
        attached = told_by(cluster.storage.attached_changes)
        await cluster.node.wait_synced()
        secret = {"name": "stage", "namespace": "storage"}
        source = {"driver": "disk", "volumeHandle": "1", "nodeStageSecretRef": secret}
        server.admin.create({"kind": "Secret", "metadata": secret, "data": {"a": "Yg=="}})
        volume = server.admin.create(volume_document("pv", "2Gi", csi=source))
        server.admin.create(claim_document("data"))
        await trio.sleep(1)
        with pytest.raises(ObjectError, match="no relationship found"):
            await cluster.storage.claim("default", "data")
        bind(server, "web", CLAIM)
        await trio.sleep(1)
        claim = await cluster.storage.claim("default", "data")
        assert (claim.status.phase, claim.spec.volume_name) == ("Bound", "pv")
        found = await cluster.storage.volume("pv")
        assert found.spec.csi is not None
        assert (await cluster.watched.secret("storage", "stage")).data == {"a": b"b"}
        assert (await cluster.storage.attachment(attachment_name(volume, "a"))).status.attached
        assert cluster.storage.attached() == {"kubernetes.io/csi/disk^1": ""}
        assert attached
        growing = await cluster.storage.resizing(claim)
        assert growing.status.allocated_resource_statuses == {"storage": "NodeResizeInProgress"}
        at = datetime(2026, 1, 1, tzinfo=UTC)
        failed = await cluster.storage.resize_failed(claim, "no", infeasible=True, at=at)
        assert failed.status.allocated_resource_statuses == {"storage": "NodeResizeInfeasible"}
        assert [one.type for one in failed.status.conditions] == ["NodeResizeError"]
        grown = await cluster.storage.resized(failed, Quantity("3Gi"))
        assert (grown.status.conditions, grown.status.allocated_resource_statuses) == ((), {})
        assert (await cluster.storage.claim("default", "data")).status.capacity == {"storage": Quantity("3Gi")}


async def test_drivers_and_trust_bundles(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        drivers: list[str] = []
        drivers = told_by(cluster.storage.csi_driver_changes)
        assert await cluster.storage.csi_driver("disk") is None
        server.admin.create({"kind": "CSIDriver", "metadata": {"name": "disk"}, "spec": {"attachRequired": False}})
        await trio.sleep(1)
        assert drivers == ["disk"]
        certificate = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n"
        bundle = {"kind": "ClusterTrustBundle", "metadata": {"name": "x"}, "spec": {"trustBundle": certificate}}
        server.admin.create(bundle)
        source = ClusterTrustBundleProjection(name="x")
        assert (await cluster.credentials.trust_bundle(source)).decode() == certificate


async def test_tokens_are_renewed_for_a_pod(autojump_clock: MockClock) -> None:
    async with joined() as (server, cluster):
        token = {"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}
        pod = bind(server, "web", {"name": "t", **token})
        first = await cluster.credentials.token(pod, ("vault",), 3600)
        await trio.sleep(47 * 60)
        assert await cluster.credentials.token(pod, ("vault",), 3600) == first
        await trio.sleep(61)
        second = await cluster.credentials.token(pod, ("vault",), 3600)
        assert second.token != first.token
        assert not math.isclose((second.expires - first.expires).total_seconds(), 0)
