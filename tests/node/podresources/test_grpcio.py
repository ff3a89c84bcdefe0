"""Others' client: grpcio and Google's protobuf, with the messages that they make of the proto files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import trio

from tests.node.podresources.stage import GIB, Managers, make_pod, make_server
from trikubelet.node.podresources.server import BURST

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from trikubelet.node.podresources.server import PodResourcesServer

PROTOS = Path(__file__).resolve().parents[3] / "protos"
PODS = (make_pod("web", "main", sidecars=["proxy"]), make_pod("done", "main", namespace="team", phase="Succeeded"))


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`await ask(server, version, client)` runs `client(stub, messages)` in a thread."""
    monkeypatch.syspath_prepend(PROTOS)

    async def ask(server: PodResourcesServer, version: str, client: Callable[[Any, Any], None]) -> None:
        path = tmp_path / "pod-resources" / "kubelet.sock"
        messages, services = grpc.protos_and_services(f"podresources_{version}.proto")

        def run() -> None:
            with grpc.insecure_channel(f"unix://{path}") as channel:
                client(services.PodResourcesListerStub(channel), messages)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run, path)
                await trio.to_thread.run_sync(run)
                nursery.cancel_scope.cancel()

    return ask


async def test_v1_is_understood(ask: Callable[..., Any]) -> None:
    def client(stub: Any, messages: Any) -> None:
        (pod,) = stub.List(messages.ListPodResourcesRequest(), timeout=10).pod_resources
        assert (pod.name, pod.namespace) == ("web", "default")
        proxy, main = pod.containers
        assert (proxy.name, [*proxy.devices], [*proxy.cpu_ids]) == ("proxy", [], [])
        assert main.name == "main"
        gpu, key = main.devices
        assert (gpu.resource_name, [*gpu.device_ids]) == ("example.com/gpu", ["gpu-0"])
        assert [node.ID for node in gpu.topology.nodes] == [1]
        assert not key.HasField("topology")
        assert [*main.cpu_ids] == [12, 23, 30]
        assert [(one.memory_type, one.size) for one in main.memory] == [("memory", GIB), ("hugepages-1Gi", GIB)]
        assert [node.ID for node in main.memory[1].topology.nodes] == [0, 1]
        (claim,) = main.dynamic_resources
        assert (claim.claim_name, claim.claim_namespace) == ("claim", "team")
        (device,) = claim.claim_resources
        assert (device.driver_name, device.pool_name, device.device_name) == ("dra.example.com", "pool-1", "gpu-1")
        assert [one.name for one in device.cdi_devices] == ["example.com/gpu=a", "example.com/gpu=b"]
        assert device.share_id == "share-1"

        all_there_is = stub.GetAllocatableResources(messages.AllocatableResourcesRequest(), timeout=10)
        assert [*all_there_is.cpu_ids] == [12, 23, 30, 31]
        assert [one.device_ids[0] for one in all_there_is.devices] == ["gpu-0", "key-7", "gpu-9", "gpu-9"]
        assert all_there_is.memory[-1].size == 64 * GIB

        request = messages.GetPodResourcesRequest(pod_name="done", pod_namespace="team")
        answer = stub.Get(request, timeout=10)
        assert [one.name for one in answer.pod_resources.containers] == ["main"]

    managers = Managers(frozenset({("uid-web", "main")}))
    await ask(make_server(PODS, managers), "v1", client)


async def test_v1alpha1_is_understood(ask: Callable[..., Any]) -> None:
    def client(stub: Any, messages: Any) -> None:
        web, done = stub.List(messages.ListPodResourcesRequest(), timeout=10).pod_resources
        assert (web.name, web.namespace, done.name, done.namespace) == ("web", "default", "done", "team")
        (main,) = web.containers
        devices = [(one.resource_name, [*one.device_ids]) for one in main.devices]
        assert devices == [("example.com/gpu", ["gpu-0"]), ("example.com/key", ["key-7"])]

    managers = Managers(frozenset({("uid-web", "main")}))
    await ask(make_server(PODS, managers), "v1alpha1", client)


async def test_errors_are_understood(ask: Callable[..., Any], mock_clock: MockClock) -> None:
    """The server's clock stands, so that no call becomes allowed meanwhile."""

    def client(stub: Any, messages: Any) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Get(messages.GetPodResourcesRequest(pod_name="who", pod_namespace="where"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert caught.value.details() == "pod who in namespace where not found"

        calls = [stub.List.future(messages.ListPodResourcesRequest(), timeout=10) for _ in range(20 * BURST)]
        rejected = [error for error in (call.exception() for call in calls) if error is not None]
        assert len(rejected) == 19 * BURST + 1
        assert {error.code() for error in rejected} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert {error.details() for error in rejected} == {"rejected by rate limit"}

    await ask(make_server(PODS), "v1", client)
