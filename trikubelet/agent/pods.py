"""What works on an agent's pods, made of its other parts: admitting, pod workers, housekeeping and the sync loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trikubelet.agent.why import first_cause
from trikubelet.api.pod_kinds import is_static_pod, pod_source
from trikubelet.pods.admitting import Admitting
from trikubelet.pods.housekeeping import Housekeeping
from trikubelet.pods.retry import RetryPolicy
from trikubelet.pods.sync_handler import SyncParts
from trikubelet.pods.sync_loop import SyncLoop
from trikubelet.pods.syncer import SyncContext
from trikubelet.pods.workers import PodWorkers

if TYPE_CHECKING:
    from collections.abc import Collection
    from random import Random

    from trikubelet.admission.types import Admission
    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod
    from trikubelet.pods.registry import PodWorkerRegistry
    from trikubelet.pods.types import OpenPod
    from trikubelet.sources.mux import SourceMux


def pod_workers(agent: Agent, registry: PodWorkerRegistry, rng: Random) -> PodWorkers:
    """`rng`: for jitter."""
    context = _sync_context(agent)
    agent.syncers = context.syncers
    return PodWorkers(
        _traced(agent, context.open_pod, registry),
        agent.pleg.cache,
        recorder=agent.recorder,
        policy=RetryPolicy(resync_interval=agent.options.configuration.sync_frequency.total_seconds()),
        rng=rng,
        desired=agent.pods.desired,
        registry=registry,
        steps=agent.steps,
        why=lambda uid: first_cause(agent, uid),
    )


def _traced(agent: Agent, open_pod: OpenPod, registry: PodWorkerRegistry) -> OpenPod:
    if agent.tracing is None:
        return open_pod
    from trikubelet.agent.tracing import TracedPods

    pods = TracedPods(agent.tracing.tracer, open_pod, agent.pods, registry.states, agent.statuses)
    if agent.cluster is not None:
        agent.cluster.cluster.pods.subscribe(pods.served)
    return pods.open_pod


def _sync_context(agent: Agent) -> SyncContext:
    return SyncContext(
        runtime=agent.runtime,
        statuses=agent.statuses,
        volumes=agent.volumes,
        objects=agent.objects,
        probes=agent.probes,
        recorder=agent.recorder,
        clock=agent.clock,
        pleg=agent.pleg,
        network_problem=lambda: agent.runtime_state.conditions.network_problem,
        host_ips=agent.node.host_ips,
        ipv6_first=agent.options.node.ipv6_first,
        starts_nothing=lambda: agent.shutdown is not None and agent.shutdown.found_at_start,
        tells_sandbox=agent.options.configuration.enabled("PodReadyToStartContainersCondition"),
        allocation=agent.allocation,
        resource_health=agent.claims.health,
        unprepare_claims=agent.claims.unprepare,
        cgroups=agent.resources.cgroups,
        mirrors=(lambda pod, mirror: None) if agent.reporters is None else agent.reporters.mirrors.ensure,
        durables=(
            agent.allocation,
            agent.volumes,
            agent.resources.cgroups,
            agent.runtime,
            *(() if agent.managers is None else (agent.managers,)),
        ),
        spans=None if agent.tracing is None else agent.tracing.tracer,
        steps=agent.steps,
    )


def admitting(agent: Agent, admission: Admission) -> Admitting:
    """Judges pods by `admission`."""
    return Admitting(
        admission,
        agent.node,
        agent.preempting,
        allocated=agent.allocation.allocated,
        devices=agent.devices,
        managers=agent.managers,
    )


def housekeeping(agent: Agent) -> Housekeeping:
    """It leaves pods alone that wait for admission, or are desired but cannot be decoded."""

    def held() -> Collection[str]:
        if agent.options.only_ends:
            return agent.pleg.cache.uids()  # ended by `drain`, in their own time
        undecodable = () if agent.cluster is None else agent.cluster.cluster.pods.undecodable()
        return frozenset((*agent.admitting.held, *(one.metadata.uid for one in undecodable)))

    return Housekeeping(
        agent.pods,
        agent.workers,
        agent.runtime,
        agent.statuses,
        agent.volumes,
        agent.pleg.cache,
        sources_ready=agent.desired.sources_ready,
        recorder=agent.recorder,
        container_gc=agent.options.container_gc,
        held=held,
        cgroups=agent.resources.cgroups,
        delete_mirror=None if agent.reporters is None else agent.reporters.mirrors.delete,
    )


def sync_loop(agent: Agent, features: Collection[str]) -> SyncLoop:
    """`features`: see `SyncParts`."""
    return SyncLoop(
        SyncParts(
            pods=agent.pods,
            desired=agent.desired,
            workers=agent.workers,
            housekeeping=agent.housekeeping,
            admitting=agent.admitting,
            statuses=agent.statuses,
            probes=agent.probes,
            allocation=agent.allocation,
            cache=agent.pleg.cache,
            recorder=agent.recorder,
            clock=agent.clock,
            runtime=agent.runtime,
            runtime_state=agent.runtime_state,
            objects=agent.objects,
            cgroups=agent.resources.cgroups,
            news=(
                agent.volumes.pod_changes,
                agent.devices.health_changed,
                agent.claims.changed,
                agent.runtime.images.retry_wanted,
            ),
            sources_ready=partial(agent.desired.handled, agent.sources),
            features=frozenset(features),
            is_replaced=partial(_is_replaced, agent.sources),
        )
    )


def _is_replaced(sources: SourceMux, removed: Pod) -> bool:
    """Whether the source of a static pod has another one of its name now."""
    source = pod_source(removed)
    if source is None or not is_static_pod(removed):
        return False
    return sources.has_pod_named(source, removed.metadata.namespace, removed.metadata.name)
