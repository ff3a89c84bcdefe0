"""How a newcomer with a token finds out whom it joins, and what configuration nodes have there (`kubeadm join`).

The cluster-info is fetched from a server that cannot be verified yet, and verified by itself (`cluster_info.py`). With
its authority known by a hash, it is fetched once more from a server that proves to be of this authority, and has to say
the same. Then the token is for the first time sent to the server: for the KubeletConfiguration.

A server that is away or starts is asked again until the deadline. What asking again would not change ends at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

from trikubelet.kube_client import cluster_info
from trikubelet.kube_client.cluster_info import (
    DiscoveryError,
    JoinableCluster,
    UnsignedError,
    joinable_cluster,
    signed_kubeconfig,
)
from trikubelet.kube_client.errors import ApiError, ApiStatusError, ApiUnreachable
from trikubelet.kube_client.kubeconfig import ClusterAccess, TlsSettings
from trikubelet.kube_client.tls import UNTRUSTED
from trikubelet.kube_client.types import CONFIG_MAPS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from trikubelet.kube_client.cluster_info import BootstrapToken
    from trikubelet.kube_client.types import ApiClient

    OpenClient = Callable[[ClusterAccess], AbstractAsyncContextManager[ApiClient]]
    Report = Callable[[str], None]

T = TypeVar("T")

ASK_EVERY: Final = 2.0
SIGNED_WITHIN: Final = 10.0
"""Seconds in which a token that was just made gets its signature."""
_CONFIGURATION: Final = ("kube-system", "kubelet-config", "kubelet")
"""Namespace, name and key."""


async def discover(
    server: str,
    token: BootstrapToken,
    hashes: Sequence[str],
    *,
    open_client: OpenClient,
    timeout: float,
    report: Report,
) -> tuple[JoinableCluster, str]:
    """The cluster at `server` (`https://HOST:PORT`), and the KubeletConfiguration of its nodes.

    `hashes`: of public keys of its authority, one of which is expected; none: any authority is believed. `report` is
    told why it is waited, `timeout` (seconds) is for everything. Raises DiscoveryError.
    """
    waiting = _Waiting(report)
    with trio.move_on_after(timeout):
        try:
            cluster = await _cluster(server, token, hashes, open_client, waiting)
            return cluster, await _configuration(cluster, open_client, waiting)
        except ApiError as error:
            raise DiscoveryError(str(error)) from error
    raise DiscoveryError(f"given up after {timeout:g} s: {waiting.reason or f'no answer from {server}'}")


class _Waiting:
    """Asks until there is an answer, and tells why it waits, each reason once."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.reason = ""

    async def until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Raises ApiError and DiscoveryError of a kind that does not pass."""
        began = trio.current_time()
        while True:
            try:
                return await ask()
            except UnsignedError as error:
                if trio.current_time() - began >= SIGNED_WITHIN:
                    raise
                self._because(str(error))
            except ApiError as error:
                if not _may_pass(error):
                    raise
                self._because(str(error))
            await trio.sleep(ASK_EVERY)

    def _because(self, reason: str) -> None:
        if reason != self.reason:
            self.reason = reason
            self._report(reason)


def _may_pass(error: ApiError) -> bool:
    if isinstance(error, ApiStatusError):
        return error.code >= 500 or error.code == 429
    return isinstance(error, ApiUnreachable) and UNTRUSTED not in error.cause


async def _cluster(
    server: str, token: BootstrapToken, hashes: Sequence[str], open_client: OpenClient, waiting: _Waiting
) -> JoinableCluster:
    async def told(tls: TlsSettings) -> str:
        async with open_client(ClusterAccess(server, tls)) as client:

            async def ask() -> str:
                return signed_kubeconfig(await _data(client, cluster_info.NAMESPACE, cluster_info.NAME), token)

            try:
                return await waiting.until_answered(ask)
            except ApiStatusError as error:
                raise DiscoveryError(_not_for_newcomers(server, error)) from error

    kubeconfig = await told(TlsSettings(insecure=True))
    cluster = joinable_cluster(kubeconfig, token, hashes)
    if await told(TlsSettings(cluster.authority)) != kubeconfig:
        raise DiscoveryError(f"{server} said something else when it was asked again, over a connection to be trusted")
    return cluster


def _not_for_newcomers(server: str, error: ApiStatusError) -> str:
    return (
        f"{server} tells newcomers nothing about its cluster ({error}): was it made by kubeadm? "
        "How to join others, k3s among them, is in docs/joining.md"
    )


async def _configuration(cluster: JoinableCluster, open_client: OpenClient, waiting: _Waiting) -> str:
    namespace, name, key = _CONFIGURATION
    async with open_client(cluster.access) as client:
        try:
            data = await waiting.until_answered(lambda: _data(client, namespace, name))
        except ApiStatusError as error:
            hint = "the token is not for authentication, or has just expired" if error.code == 401 else ""
            problem = f"the configuration of this cluster's nodes cannot be read: {error}"
            raise DiscoveryError(f"{problem}: {hint}" if hint else problem) from error
    if not data.get(key):
        raise DiscoveryError(f"the ConfigMap {namespace}/{name} has no {key!r}: expected a KubeletConfiguration")
    return data[key]


async def _data(client: ApiClient, namespace: str, name: str) -> Mapping[str, str]:
    return (await client.get(CONFIG_MAPS, name, namespace)).data
