"""Access to the API server: the node's identity there, and a client that stays connected.

Only an agent with `--kubeconfig` has one. The code that it needs is loaded only then: it is a third of the agent's own.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.agent.options import IN_CLUSTER
from trikubelet.formats.values import frozen
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.agent.options import AgentOptions, ClusterOptions
    from trikubelet.agent.tracing import Tracing
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.access import Access
    from trikubelet.kube_client.certificates.bootstrap import NodeIdentity
    from trikubelet.kube_client.certificates.rotation import CertificateManager  # noqa: TC004 - attrs evaluates no annotation
    from trikubelet.kube_client.types import ApiClient  # noqa: TC004 - attrs evaluates no annotation

"""As `--kubeconfig`: the service account of the pod in which this agent runs."""


class ClusterAccessError(Exception):
    """The API server cannot be reached as the options say. The text names file and field."""


@frozen
class OpenCluster:
    """A way to the API server that is kept open."""

    client: ApiClient
    certificate: CertificateManager | None = None
    """Renews the certificate that the node shows there; None when another program renews it."""


@asynccontextmanager
async def open_cluster(
    options: AgentOptions, clock: WallClock, tracing: Tracing | None = None
) -> AsyncIterator[OpenCluster | None]:
    """A client for as long as the context is open; None without `--kubeconfig`. Raises ClusterAccessError.

    Nothing is connected yet, and an API server that is away is no error.
    """
    if options.cluster is None:
        yield None
        return
    from trikubelet.kube_client.client import open_client
    from trikubelet.kube_client.rate_limit import configured_limit

    access, identity = _access(options, options.cluster, clock)
    configuration = options.configuration
    limit = configured_limit(configuration.kube_api_qps, configuration.kube_api_burst)
    wrap = None if tracing is None else tracing.transport
    watch_lists = configuration.enabled("WatchListClient")
    async with (
        open_client(access, limit=limit, wrap=wrap, watch_lists=watch_lists) as client,
        trio.open_nursery() as nursery,
    ):
        if identity is not None:
            nursery.start_soon(supervise, identity.run)
        yield OpenCluster(client, None if identity is None else identity.manager)
        nursery.cancel_scope.cancel()


def _access(options: AgentOptions, cluster: ClusterOptions, clock: WallClock) -> tuple[Access, NodeIdentity | None]:
    from trikubelet.kube_client.certificates.bootstrap import BootstrapOptions, prepare_identity
    from trikubelet.kube_client.certificates.store import CertificateError
    from trikubelet.kube_client.client import open_client
    from trikubelet.kube_client.dialing import open_access
    from trikubelet.kube_client.in_cluster import NotInClusterError, in_cluster_access
    from trikubelet.kube_client.kubeconfig import KubeconfigError

    try:
        if cluster.kubeconfig == IN_CLUSTER:
            return open_access(in_cluster_access(os.environ), clock=clock), None
        identity = prepare_identity(
            BootstrapOptions(
                kubeconfig=cluster.kubeconfig,
                certificates=cluster.cert_dir,
                node_name=options.node_name,
                bootstrap_kubeconfig=cluster.bootstrap_kubeconfig,
                rotate=options.configuration.rotate_certificates,
            ),
            lambda where: open_client(open_access(where, clock=clock)),
            clock=clock,
        )
        access = open_access(identity.access, clock=clock)
    except (KubeconfigError, NotInClusterError, CertificateError) as error:
        raise ClusterAccessError(str(error)) from error
    except OSError as error:
        text = f"cannot use {cluster.kubeconfig}, or keep certificates in {cluster.cert_dir}: {error}"
        raise ClusterAccessError(text) from error
    identity.on_change(access.reload)
    return access, identity
