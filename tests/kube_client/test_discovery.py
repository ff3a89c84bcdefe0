"""A newcomer finds out about a cluster of kubeadm's, over TLS, before it writes anything."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trustme

from tests.apiserver.kubeadm import KUBELET_CONFIGURATION, Kubeadm
from tests.apiserver.server import ApiServer, open_api_server
from trikubelet.clock import TrioClock
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.cluster_info import BootstrapToken, DiscoveryError, JoinableCluster
from trikubelet.kube_client.dialing import open_access
from trikubelet.kube_client.discovery import discover
from trikubelet.kube_client.kubeconfig import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from trio.testing import MockClock

    from trikubelet.kube_client.client import HttpApiClient
    from trikubelet.kube_client.kubeconfig import ClusterAccess

TOKEN = "abcdef.0123456789abcdef"


@attrs.define
class Newcomer:
    server: ApiServer
    kubeadm: Kubeadm
    clock: TrioClock
    reports: list[str] = attrs.field(factory=list)

    async def joins(self, token: str = TOKEN, *hashes: str, timeout: float = 60.0) -> tuple[JoinableCluster, str]:
        return await discover(
            self.server.url,
            BootstrapToken.parse(token),
            hashes or (self.kubeadm.ca_hash,),
            open_client=self.open_client,
            timeout=timeout,
            report=self.reports.append,
        )

    def open_client(self, access: ClusterAccess) -> AbstractAsyncContextManager[HttpApiClient]:
        return open_client(open_access(access, clock=self.clock, environment={}, dial=self.server.connect))

    def tokens_sent(self) -> int:
        return sum(1 for one in self.server.calls if one.call.user.startswith("system:bootstrap:"))


@pytest.fixture
async def newcomer() -> AsyncIterator[Newcomer]:
    async with open_newcomer() as one:
        yield one


@asynccontextmanager
async def open_newcomer() -> AsyncIterator[Newcomer]:
    clock = TrioClock()
    async with open_api_server(clock) as server:
        kubeadm = Kubeadm(server, server.url)
        kubeadm.create_token(TOKEN)
        yield Newcomer(server, kubeadm, clock)


async def test_with_the_token_and_the_hash_the_cluster_is_known(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    cluster, configuration = await newcomer.joins()
    assert configuration == KUBELET_CONFIGURATION
    assert cluster.authority == newcomer.server.ca_pem
    assert cluster.access.server == newcomer.server.url
    asked = [(one.call.user, one.call.name) for one in newcomer.server.calls]
    assert asked == [
        ("system:anonymous", "cluster-info"),
        ("system:anonymous", "cluster-info"),
        ("system:bootstrap:abcdef", "kubelet-config"),
    ]
    assert newcomer.reports == []


async def test_another_hash_is_another_cluster_which_never_sees_the_token(
    newcomer: Newcomer, autojump_clock: MockClock
) -> None:
    with pytest.raises(DiscoveryError, match="another cluster, or the hash is wrong"):
        await newcomer.joins(TOKEN, "sha256:" + "0" * 64)
    assert newcomer.tokens_sent() == 0


async def test_a_wrong_secret_is_found_by_the_signature_and_never_sent(
    newcomer: Newcomer, autojump_clock: MockClock
) -> None:
    with pytest.raises(DiscoveryError, match="second half is wrong"):
        await newcomer.joins("abcdef.fedcba9876543210")
    assert newcomer.tokens_sent() == 0


async def test_half_a_surrogate_pair_is_not_what_was_signed(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.kubeadm.change_cluster_info({"kubeconfig": "\ud800"})
    with pytest.raises(DiscoveryError, match="is not signed with the token"):
        await newcomer.joins()


async def test_an_expired_token_is_told_within_seconds(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.kubeadm.expire_token(TOKEN)
    began = trio.current_time()
    with pytest.raises(DiscoveryError, match="has expired: `kubeadm token create`"):
        await newcomer.joins()
    assert trio.current_time() - began <= 11
    assert len(newcomer.reports) == 1


async def test_a_token_that_was_just_made_gets_its_signature(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.kubeadm.change_cluster_info({"jws-kubeconfig-abcdef": None})
    async with trio.open_nursery() as nursery:

        async def sign() -> None:
            await trio.sleep(5)
            newcomer.kubeadm.create_token(TOKEN)

        nursery.start_soon(sign)
        await newcomer.joins()


async def test_a_token_that_ends_between_is_told(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.server.identities.remove_token(TOKEN)
    with pytest.raises(DiscoveryError, match="401 Unauthorized: Unauthorized: the token is not for authentication"):
        await newcomer.joins()


async def test_a_server_that_starts_is_waited_for(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.server.faults.unreachable()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            await trio.sleep(20)
            newcomer.server.faults.back()

        nursery.start_soon(start)
        await newcomer.joins()
    assert trio.current_time() - began >= 20
    assert len(newcomer.reports) == 1, "each reason once"


async def test_a_server_that_stays_away_is_given_up_with_the_reason(
    newcomer: Newcomer, autojump_clock: MockClock
) -> None:
    newcomer.server.faults.unreachable()
    began = trio.current_time()
    with pytest.raises(DiscoveryError, match=r"given up after 60 s: .*connection refused"):
        await newcomer.joins()
    assert trio.current_time() - began <= 61


async def test_a_server_that_is_overloaded_is_asked_again(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.server.faults.on(resource="configmaps").fail(503, times=3)
    await newcomer.joins()


async def test_a_cluster_that_is_not_kubeadm_s_tells_newcomers_nothing(
    newcomer: Newcomer, autojump_clock: MockClock
) -> None:
    newcomer.server.admin.delete("configmaps", "cluster-info", "kube-public")
    with pytest.raises(DiscoveryError, match="was it made by kubeadm"):
        await newcomer.joins()


async def test_a_server_of_another_authority_than_it_names_is_not_believed(
    newcomer: Newcomer, autojump_clock: MockClock
) -> None:
    other = trustme.CA().cert_pem.bytes()
    newcomer.kubeadm.tell_authority(other)
    newcomer.kubeadm.create_token(TOKEN)
    began = trio.current_time()
    with pytest.raises(DiscoveryError, match="certificate"):
        await newcomer.joins(TOKEN, newcomer.kubeadm.ca_hash_of(other))
    assert trio.current_time() - began < 10, "which waiting would not change"
    assert newcomer.tokens_sent() == 0


async def test_the_cluster_info_is_asked_for_again_with_the_authority_and_has_to_say_the_same(
    newcomer: Newcomer, autojump_clock: MockClock
) -> None:
    opened: list[ClusterAccess] = []

    def open_and_change(access: ClusterAccess) -> AbstractAsyncContextManager[HttpApiClient]:
        opened.append(access)
        if len(opened) == 2:
            newcomer.kubeadm.tell_authority(newcomer.server.ca_pem + b"\n")
            newcomer.kubeadm.create_token(TOKEN)
        return newcomer.open_client(access)

    pinned = [newcomer.kubeadm.ca_hash]
    token = BootstrapToken.parse(TOKEN)
    with pytest.raises(DiscoveryError, match="said something else"):
        await discover(
            newcomer.server.url, token, pinned, open_client=open_and_change, timeout=60, report=newcomer.reports.append
        )
    assert [access.tls for access in opened] == [TlsSettings(insecure=True), TlsSettings(newcomer.server.ca_pem)]
    assert newcomer.tokens_sent() == 0


async def test_nodes_without_a_configuration_are_told(newcomer: Newcomer, autojump_clock: MockClock) -> None:
    newcomer.kubeadm.configure("")
    with pytest.raises(DiscoveryError, match="has no 'kubelet'"):
        await newcomer.joins()
    newcomer.server.admin.delete("configmaps", "kubelet-config", "kube-system")
    with pytest.raises(DiscoveryError, match=r"configuration of this cluster's nodes cannot be read: .*404"):
        await newcomer.joins()
