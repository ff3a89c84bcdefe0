"""The part of an agent that has to do with resource claims (`trikubelet.node.dra`).

Claims are objects of an API server, so an agent without one has no manager of them, nor has a simulated node without a
disk: a pod with claims does not start there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.container.abilities import is_older
from trikubelet.container.errors import ContainerConfigError
from trikubelet.runtime.sandboxes.sandbox import NoResourceClaims, ResourceClaimError
from trikubelet.status.container_statuses import no_resource_health

if TYPE_CHECKING:
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.overrides import Overrides
    from trikubelet.api import Container, Pod, ResourceStatus
    from trikubelet.node.dra.manager import ClaimManager
    from trikubelet.rpc.cri.v1 import VersionResponse
    from trikubelet.runtime.containers.container import ContainerExtras, Extras
    from trikubelet.runtime.sandboxes.sandbox import ResourceClaims
    from trikubelet.status.container_statuses import ResourceHealthOf


FIRST_WITH_CDI: Final = {"containerd": (1, 7)}
"""Older ones do not know the field, and would start the container without its devices."""


class NodeClaims:
    """What the agent's other parts ask. Each answers as the method of `ClaimManager` of the same name."""

    def __init__(self, agent: Agent, manager: ClaimManager | None) -> None:
        self._agent = agent
        self.manager = manager
        self.changed: Broadcast[str] = Broadcast() if manager is None else manager.changed
        """UIDs of pods that should be looked at."""

    @property
    def of_runtime(self) -> ResourceClaims:
        """For making sandboxes."""
        return NoResourceClaims() if self.manager is None else self.manager

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; returns at once where there is nothing to do."""
        if self.manager is None:
            task_status.started()
        else:
            await self.manager.run(task_status=task_status)

    def given_to_containers(self, others: Extras) -> Extras:
        """What containers are started with: what `others` say, and the devices of their claims."""
        manager = self.manager
        if manager is None:
            return others

        async def extras(pod: Pod, container: Container) -> ContainerExtras:
            """Raises ContainerConfigError: the container cannot be started now."""
            given = await others(pod, container)
            try:
                claimed = manager.cdi_devices(pod, container)
            except ResourceClaimError as error:
                raise ContainerConfigError(str(error)) from None
            if claimed and (problem := cdi_problem(self._agent.runtime_version)):
                raise ContainerConfigError(problem)
            return attrs.evolve(given, cdi_devices=[*claimed, *given.cdi_devices]) if claimed else given

        return extras

    async def unprepare(self, uid: str) -> None:
        """Raises ResourceClaimError."""
        if self.manager is not None:
            await self.manager.unprepare(uid)

    def holds(self, uid: str) -> bool:
        return self.manager is not None and self.manager.holds(uid)

    def health(self, uid: str) -> ResourceHealthOf:
        """How the devices of the pod's containers do: those of device plugins, and those of claims."""
        of_plugins = self._agent.devices.health(uid)
        pod = None if self.manager is None else self._agent.pods.pod_by_uid(uid)
        of_claims = no_resource_health if pod is None or self.manager is None else self.manager.health(pod)
        if of_claims is no_resource_health:
            return of_plugins

        def of_container(name: str) -> tuple[ResourceStatus, ...]:
            return (*of_plugins(name), *of_claims(name))

        return of_container


def cdi_problem(runtime: VersionResponse | None) -> str:
    """Why this runtime cannot give containers CDI devices; empty when it can, as far as is known."""
    if runtime is None or not is_older(runtime.runtime_name, runtime.runtime_version, FIRST_WITH_CDI):
        return ""
    running = f"{runtime.runtime_name} {runtime.runtime_version}"
    return f"the CDI devices of resource claims need containerd 1.7; this node runs {running}"


def node_claims(agent: Agent, overrides: Overrides, rng: Random) -> NodeClaims:
    """The resource claims of an agent's node. Raises CheckpointError for a file that cannot be used."""
    if agent.cluster is None or not overrides.grants_devices:
        return NodeClaims(agent, None)
    from trikubelet.node.dra.claims import ClaimGates
    from trikubelet.node.dra.manager import ClaimManager, PodsOnNode
    from trikubelet.node.dra.plugin import MOST_FROM_PLUGIN
    from trikubelet.node.dra.plugins import PLUGIN_TYPE
    from trikubelet.rpc.grpc import open_unix_channel

    enabled = agent.options.configuration.enabled
    manager = ClaimManager(
        agent.options.root_dir,
        agent.cluster.client,
        agent.options.node_name,
        PodsOnNode(sources_ready=agent.desired.sources_ready, needed=agent.may_run),
        clock=agent.clock,
        rng=rng,
        connect=overrides.connect_plugins or partial(open_unix_channel, max_message_size=MOST_FROM_PLUGIN),
        gates=ClaimGates(
            workload_resource_claims=enabled("DRAWorkloadResourceClaims"),
            resource_health=enabled("ResourceHealthStatus"),
            health_message=enabled("ResourceHealthStatusMessage"),
        ),
    )
    agent.plugins.add_handler(PLUGIN_TYPE, manager.plugin_handler)
    return NodeClaims(agent, manager)
