"""What deals with an agent's runtime: its manager, the sources of PLEG, and the collectors of images and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.agent.allocation import resize_gates
from trikubelet.agent.options import EMBEDDED, image_gc_policy, log_rotation_policy
from trikubelet.agent.resource_managers import given_to_containers
from trikubelet.allocation.store import ACTUATED_FILE
from trikubelet.kube_client.object_getter import NoObjects
from trikubelet.pleg.sources import PlegSources
from trikubelet.runtime.actuated import ActuatedResources
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.images.gc import ImageCollector
from trikubelet.runtime.logs.rotation import LogRotator
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.resize import MeasuredByRuntime, Resizing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.options import AgentOptions
    from trikubelet.agent.registry_access import RegistryAccess
    from trikubelet.allocation.store import AllocationStore
    from trikubelet.pleg.exits import ExitTracker
    from trikubelet.pleg.pidfd import PidfdWatchers
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.cpusets import CpusetReconciler


def runtime_manager(
    agent: Agent, access: RegistryAccess | None, open_store: Callable[[Path], AllocationStore]
) -> RuntimeManager:
    """Raises CheckpointError for a file that cannot be used."""
    options, cgroups = agent.options, agent.resources.cgroups
    actuated = ActuatedResources(open_store(options.root_dir / ACTUATED_FILE), resize_gates(options.configuration))
    measured = MeasuredByRuntime(agent.runtime_client, cgroups)
    return RuntimeManager(
        agent.runtime_client,
        agent.image_client,
        RuntimeContext(
            recorder=agent.recorder,
            clock=agent.clock,
            options=agent.runtime_options,
            node=agent.node,
            objects=NoObjects() if agent.cluster is None else agent.cluster.cluster.objects,
            mounts=agent.volumes,
            files=agent.pod_files,
            abilities=lambda: agent.runtime_state.abilities,
            credentials=None if access is None else access.credentials,
            pull_records=None if access is None else access.pull_records,
            ended=agent.ends.until_ended,
            resizing=Resizing(actuated, cgroups, agent.resources.options, measured),
            cgroups=cgroups,
            spans=None if agent.tracing is None else agent.tracing.tracer,
            steps=agent.steps,
            claims=agent.claims.of_runtime,
            extras=agent.claims.given_to_containers(given_to_containers(agent.devices, agent.managers)),
        ),
    )


def cpuset_reconciler(agent: Agent) -> CpusetReconciler | None:
    if agent.managers is None:
        return None
    from trikubelet.runtime.cpusets import CpusetReconciler

    period = agent.options.configuration.cpu_manager_reconcile_period.total_seconds()
    return CpusetReconciler(agent.runtime_client, agent.managers, agent.pleg.cache, agent.pleg.observed, period=period)


def pleg_sources(agent: Agent, make_pidfds: Callable[[RuntimeClient, ExitTracker], PidfdWatchers]) -> PlegSources:
    return PlegSources(
        agent.pleg,
        agent.runtime,
        agent.runtime_client,
        agent.clock,
        agent.ends,
        enabled=agent.options.pleg_sources,
        on_end=agent.runtime.remember_end,
        recovered=agent.runtime_state.recovered,
        make_pidfds=make_pidfds,
    )


def disk_garbage_collectors(agent: Agent, access: RegistryAccess) -> tuple[ImageCollector, LogRotator]:
    """What keeps images and logs from filling the node's disk."""
    configuration = agent.options.configuration
    images = ImageCollector(
        agent.image_client,
        agent.runtime_client,
        recorder=agent.recorder,
        clock=agent.clock,
        policy=image_gc_policy(configuration),
        holds=agent.runtime.image_holds,
        on_collected=None if access.pull_records is None else access.pull_records.prune,
        removed=agent.runtime.metrics.images_removed,
        spans=None if agent.tracing is None else agent.tracing.tracer,
        pulled_here=removable_images(agent.options, access),
    )
    logs = LogRotator(
        agent.runtime_client,
        agent.pod_files,
        clock=agent.clock,
        policy=log_rotation_policy(configuration),
    )
    return images, logs


def removable_images(options: AgentOptions, access: RegistryAccess) -> Callable[[], Awaitable[Collection[str]]] | None:
    """Return what asks which images may be removed; None: all, since the runtime is the node's or the agent's own.

    Without a cluster a runtime may be other programs' too, and the images that they brought are theirs. Where no
    records of pulls are kept, no image is known to be the agent's.
    """
    if options.cluster is not None or options.runtime_endpoint == EMBEDDED:
        return None
    return _none_known if access.pull_records is None else access.pull_records.image_refs


async def _none_known() -> Collection[str]:
    return ()
