"""The metrics of an agent: which collectors there are for the parts that it has.

Made when somebody first asks for metrics: what parts count they count anyway, and before, the library need not be
loaded.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trikubelet.metrics import (
    cluster,
    devices,
    eviction,
    node,
    pleg,
    plugins,
    pods,
    probes,
    resizes,
    resource_managers,
    runtime,
    servers,
    volumes,
)
from trikubelet.metrics.exposition import AgentMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.agent.agent import Agent
    from trikubelet.kube_client.certificates.rotation import CertificateManager
    from trikubelet.metrics.exposition import CollectSlowly
    from trikubelet.metrics.health_checks import HealthChecks
    from trikubelet.metrics.http_requests import RequestCounts
    from trikubelet.node.podresources.metrics import PodResourcesMetrics
    from trikubelet.telemetry.families import AnyFamily, Collect


def agent_metrics(
    agent: Agent,
    health: HealthChecks,
    *,
    requests: RequestCounts | None = None,
    client_certificate: CertificateManager | None = None,
    server_certificate: CertificateManager | None = None,
    pod_resources: PodResourcesMetrics | None = None,
    measured: CollectSlowly | None = None,
) -> AgentMetrics:
    """All that is known of an agent; the optional ones are not the agent's own, and missing where there are none.

    `measured`: families of what has to be measured first (`StatsProvider.log_samples`).
    """
    collectors: list[Collect] = [
        partial(pods.collect_pods, agent.pods, agent.workers, agent.statuses),
        partial(pods.collect_workers, agent.workers),
        partial(pods.collect_cleanup, agent.housekeeping, agent.preempting),
        partial(pods.collect_folders, agent.housekeeping),
        partial(resizes.collect_resizes, agent.allocation, agent.runtime.metrics.resizes),
        partial(pods.collect_statuses, agent.statuses, None if agent.reporters is None else agent.reporters.writer),
        partial(runtime.collect_calls, agent.runtime_client, agent.image_client),
        partial(runtime.collect_starts, agent.runtime.metrics),
        partial(runtime.collect_images, agent.runtime.metrics),
        lambda: runtime.collect_cgroups(agent.resources.durations, agent.resources.protected_memory()),
        partial(pleg.collect_pleg, agent.pleg, agent.pleg_sources, agent.clock),
        partial(pleg.collect_running, agent.pleg.cache),
        lambda: _node(agent),
        partial(node.collect_gates, agent.options.configuration.feature_gates),
        *_devices(agent),
        *_resource_managers(agent),
        *_claims(agent),
        lambda: plugins.collect_plugins(agent.plugins.statistics()),
        *_credential_plugins(agent),
        *_pull_records(agent),
        lambda: _eviction(agent),
        *_volumes(agent),
        *_cluster(agent),
        *node.process_collectors(),
    ]
    if agent.tracing is not None:
        collectors.append(partial(servers.collect_spans, agent.tracing.exporter.counts))
    if requests is not None:
        collectors.append(partial(servers.collect_http, requests))
    if pod_resources is not None:
        collectors.append(partial(servers.collect_pod_resources, pod_resources))
    if client_certificate is not None:
        collectors.append(lambda: cluster.collect_client_certificate(client_certificate, agent.clock.now()))
    if server_certificate is not None:
        collectors.append(lambda: cluster.collect_server_certificate(server_certificate, agent.clock.now()))
    return AgentMetrics(
        metrics=collectors,
        probes=[node.process_start, partial(probes.collect_probes, agent.probes.metrics)],
        slis=[partial(servers.collect_health, health)],
        slow_metrics=() if measured is None else (measured,),
    )


def _node(agent: Agent) -> Iterable[AnyFamily]:
    info = agent.node.cached().status.node_info
    yield from node.collect_node(agent.options.node_name, info, cgroup_v2=agent.runtime_options.machine.cgroup_v2)
    if agent.shutdown is not None:
        yield from node.collect_shutdown(agent.shutdown.record.times)


def _devices(agent: Agent) -> list[Collect]:
    manager = agent.devices.manager
    return [] if manager is None else [partial(devices.collect_devices, manager.metrics)]


def _resource_managers(agent: Agent) -> list[Collect]:
    managers = agent.managers
    if managers is None:
        return []
    return [lambda: resource_managers.collect_resource_managers(managers.counts, managers.cpu_usage())]


def _claims(agent: Agent) -> list[Collect]:
    manager = agent.claims.manager
    return [] if manager is None else [partial(devices.collect_claims, manager)]


def _credential_plugins(agent: Agent) -> list[Collect]:
    programs = agent.credential_plugins
    return [] if programs is None else [partial(plugins.collect_credential_plugins, programs)]


def _pull_records(agent: Agent) -> list[Collect]:
    records = agent.pull_records
    return [] if records is None else [partial(runtime.collect_pull_records, records)]


def _eviction(agent: Agent) -> Iterable[AnyFamily]:
    manager = agent.eviction.manager
    return () if manager is None else eviction.collect_eviction(manager.evictions, manager.stats_age)


def _volumes(agent: Agent) -> list[Collect]:
    parts = agent.volume_parts
    if parts is None:
        return []
    found: list[Collect] = [partial(volumes.collect_volumes, parts.manager)]
    if parts.drivers is not None:
        found.append(partial(volumes.collect_csi, parts.drivers))
    measuring = [parts.measuring] if parts.drivers is None else [parts.measuring, parts.drivers.measuring]
    found.append(partial(volumes.collect_measuring, measuring))
    return found


def _cluster(agent: Agent) -> list[Collect]:
    if agent.cluster is None:
        return []
    from trikubelet.kube_client.client import HttpApiClient

    found: list[Collect] = [
        partial(pods.collect_start_latency, agent.cluster.pod_starts),
        partial(node.collect_startup, agent.cluster.node.startup, node.boot_times),
        partial(cluster.collect_pod_certificates, agent.cluster.certificates),
    ]
    client = agent.cluster.client
    if isinstance(client, HttpApiClient):
        found.append(partial(cluster.collect_requests, client.metrics))
    return found
