"""The services on their socket: which pods they see, what they refuse, what they count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError, Status

from tests.node.podresources.stage import Managers, as_dict, asking, make_pod, make_server
from trikubelet.node.podresources.metrics import V1, V1ALPHA1
from trikubelet.node.podresources.server import BURST, CALLS_PER_SECOND
from trikubelet.rpc.grpc import SocketInUseError
from trikubelet.rpc.pod_resources import v1, v1alpha1

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

PODS = (
    make_pod("web", "main"),
    make_pod("done", "main", phase="Succeeded"),
    make_pod("failed", "main", phase="Failed"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pod-resources" / "kubelet.sock"


async def _names(stub: v1.PodResourcesListerStub | v1alpha1.PodResourcesListerStub) -> list[str]:
    if isinstance(stub, v1.PodResourcesListerStub):
        return [pod.name for pod in (await stub.list(v1.ListPodResourcesRequest())).pod_resources]
    return [pod.name for pod in (await stub.list(v1alpha1.ListPodResourcesRequest())).pod_resources]


async def test_v1_lists_active_pods_and_v1alpha1_all(path: Path) -> None:
    async with asking(make_server(PODS), path) as channel:
        assert await _names(v1.PodResourcesListerStub(channel)) == ["web"]
        assert await _names(v1alpha1.PodResourcesListerStub(channel)) == ["web", "done", "failed"]


async def test_what_ended_pods_held_is_forgotten_before_each_list(path: Path) -> None:
    managers = Managers()
    async with asking(make_server(PODS, managers), path) as channel:
        await _names(v1.PodResourcesListerStub(channel))
        assert managers.forgot == 1
        await _names(v1alpha1.PodResourcesListerStub(channel))
        assert managers.forgot == 2


async def test_one_pod_can_be_asked_for_also_when_it_has_ended(path: Path) -> None:
    managers = Managers(frozenset({("uid-done", "main")}))
    async with asking(make_server(PODS, managers), path) as channel:
        stub = v1.PodResourcesListerStub(channel)
        answer = await stub.get(v1.GetPodResourcesRequest(pod_name="done", pod_namespace="default"))
    assert answer.pod_resources.name == "done"
    assert [*answer.pod_resources.containers[0].cpu_ids] == [12, 23, 30]


@pytest.mark.parametrize(("name", "namespace"), [("web", "other"), ("nobody", "default"), ("web", ""), ("", "")])
async def test_a_pod_that_is_not_there_is_named_in_the_error(path: Path, name: str, namespace: str) -> None:
    server = make_server(PODS)
    async with asking(server, path) as channel:
        stub = v1.PodResourcesListerStub(channel)
        with pytest.raises(GRPCError) as caught:
            await stub.get(v1.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace))
    assert caught.value.status is Status.UNKNOWN
    assert caught.value.message == f"pod {name} in namespace {namespace} not found"
    assert server.metrics.failed_gets[V1] == 1


async def test_without_managers_nothing_is_allocatable(path: Path) -> None:
    async with asking(make_server(PODS), path) as channel:
        stub = v1.PodResourcesListerStub(channel)
        assert as_dict(await stub.get_allocatable_resources(v1.AllocatableResourcesRequest())) == {}


async def test_calls_of_all_clients_together_are_limited(path: Path, mock_clock: MockClock) -> None:
    server = make_server(PODS)
    old, young = v1alpha1.PodResourcesListerStub, v1.PodResourcesListerStub
    async with asking(server, path) as channel:
        for number in range(BURST):
            await _names(old(channel) if number % 2 else young(channel))
        for stub in (old(channel), young(channel)):
            with pytest.raises(GRPCError, match="rejected by rate limit") as caught:
                await _names(stub)
            assert caught.value.status is Status.RESOURCE_EXHAUSTED
        with pytest.raises(GRPCError, match="rejected by rate limit"):
            await young(channel).get_allocatable_resources(v1.AllocatableResourcesRequest())
        with pytest.raises(GRPCError, match="rejected by rate limit"):
            await young(channel).get(v1.GetPodResourcesRequest(pod_name="web", pod_namespace="default"))
        mock_clock.jump(1.5 / CALLS_PER_SECOND)
        assert await _names(young(channel)) == ["web"]
        with pytest.raises(GRPCError, match="rejected by rate limit"):
            await _names(young(channel))
    assert server.metrics.requests.total() == BURST + 1
    assert server.metrics.failed_gets.total() == 0


async def test_a_pause_saves_up_no_more_than_the_burst(path: Path, mock_clock: MockClock) -> None:
    async with asking(make_server(PODS), path) as channel:
        stub = v1.PodResourcesListerStub(channel)
        await _names(stub)
        mock_clock.jump(3600)
        for _ in range(BURST):
            await _names(stub)
        with pytest.raises(GRPCError, match="rejected by rate limit"):
            await _names(stub)


async def test_requests_are_counted_by_version_and_kind(path: Path) -> None:
    server = make_server(PODS)
    async with asking(server, path) as channel:
        stub = v1.PodResourcesListerStub(channel)
        for _ in range(3):
            await _names(stub)
        for _ in range(2):
            await stub.get_allocatable_resources(v1.AllocatableResourcesRequest())
        await stub.get(v1.GetPodResourcesRequest(pod_name="web", pod_namespace="default"))
        await _names(v1alpha1.PodResourcesListerStub(channel))
    metrics = server.metrics
    assert metrics.requests == {V1: 6, V1ALPHA1: 1}
    assert (metrics.lists, metrics.allocatables, metrics.gets) == ({V1: 3}, {V1: 2}, {V1: 1})
    assert not any((metrics.failed_lists, metrics.failed_allocatables, metrics.failed_gets))


async def test_a_manager_that_fails_fails_its_call_alone(path: Path) -> None:
    managers = Managers(broken=True)
    server = make_server(PODS, managers)
    async with asking(server, path) as channel:
        stub = v1.PodResourcesListerStub(channel)
        with pytest.raises(GRPCError, match="the checkpoint is gone"):
            await _names(stub)
        managers.broken = False
        assert await _names(stub) == ["web"]
    assert server.metrics.failed_lists == {V1: 1}
    assert server.metrics.lists == {V1: 2}


async def test_the_folder_is_made_for_root_and_its_group_and_the_socket_goes_with_the_server(path: Path) -> None:
    async with asking(make_server(PODS), path):
        assert path.is_socket()
        assert path.parent.stat().st_mode & 0o777 == 0o750
    assert not path.exists()
    assert path.parent.is_dir()


async def test_a_socket_that_a_killed_agent_left_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    left = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await left.bind(str(path))
    left.close()
    async with asking(make_server(PODS), path) as channel:
        assert await _names(v1.PodResourcesListerStub(channel)) == ["web"]


async def test_a_socket_that_somebody_listens_on_is_not_taken(path: Path) -> None:
    async with asking(make_server(PODS), path):
        with pytest.raises(SocketInUseError):
            await make_server(PODS).run(path)
        assert path.is_socket()
