"""Resizing a pod that runs (KEP-1287, KEP-5419): its cgroup, its containers, in the order that never strangles it.

    may it be?    a memory limit at or below what is in use is refused before anything is touched
    memory        the pod's limit if it grows, the containers, the pod's limit if it shrinks
    cpu           the pod's limit and shares if they grow, the containers, its shares and limit if they shrink

Before the pod's cgroup is written the runtime is told (UpdatePodSandboxResources), and may refuse; runtimes that do not
know the call are not asked for anything. The first step that fails ends the resize: what was done is recorded, and the
next sync goes on from there. Outcomes and texts are those of the kubelet's `doPodResizeAction`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from betterproto import serialized_on_wire
from grpclib.const import Status

from trikubelet.allocation.model import with_allocation
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.interface import PodCgroups
from trikubelet.cgroups.settings import CgroupOptions, CgroupSettings, merged, pod_settings, without_overhead
from trikubelet.container.messages import describe_pod
from trikubelet.formats.values import define, frozen
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.actuated import ActuatedResources, with_amounts
from trikubelet.runtime.containers.resources import container_resources, overhead_resources
from trikubelet.runtime.resize_plan import CPU, MEMORY, ContainerToResize
from trikubelet.runtime.results import SyncAction, SyncResult
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.resize_plan import Amounts, PodResize

log = get_logger("runtime")

RESIZE_POD_ERROR: Final = "ResizePodInPlaceError"


@frozen
class MemoryUse:
    """Bytes in use, files in the page cache included; None where it is not known."""

    pod: int | None = None
    containers: Mapping[str, int | None] = attrs.field(factory=dict)
    """By name, of those that were measured."""


class MemoryUseError(Exception):
    """It could not be measured what a pod uses."""


UsageOf: TypeAlias = "Callable[[Pod, PodRuntimeStatus], Awaitable[MemoryUse]]"
"""Measures now. Raises MemoryUseError."""


@frozen
class MeasuredByRuntime:
    """A `UsageOf`: containers as the runtime says, the pod as its cgroup says."""

    runtime: RuntimeClient
    cgroups: PodCgroups

    async def __call__(self, pod: Pod, status: PodRuntimeStatus) -> MemoryUse:
        """Raises MemoryUseError."""
        containers: dict[str, int | None] = {}
        try:
            for container in status.running_containers():
                memory = (await self.runtime.container_stats(container.id.id)).memory
                # containerd 1.6 knows only what is in use without idle page cache.
                said = [one for one in (memory.usage_bytes, memory.working_set_bytes) if serialized_on_wire(one)]
                containers[container.name] = said[0].value if said else None
            reading = await self.cgroups.read(pod)
        except (CRIError, CgroupError) as error:
            raise MemoryUseError(str(error)) from error
        if reading is not None:
            return MemoryUse(reading.memory_usage, containers)
        known = [used for used in containers.values() if used is not None]
        return MemoryUse(sum(known) if len(known) == len(containers) else None, containers)


@frozen
class Resizing:
    """The parts that the runtime manager needs to resize pods."""

    actuated: ActuatedResources
    cgroups: PodCgroups
    cgroup_options: CgroupOptions
    usage: UsageOf


@frozen
class _ResizeError(Exception):
    message: str


@frozen
class _Step:
    """One change of a pod's cgroup: the amount before and after, and the settings to write."""

    before: float
    after: float
    settings: CgroupSettings


class PodResizer:
    """Carries out what `resize_plan` decided."""

    def __init__(self, runtime: RuntimeClient, options: RuntimeOptions, resizing: Resizing) -> None:
        self._runtime = runtime
        self._options = options
        self._resizing = resizing

    async def resize(self, pod: Pod, status: PodRuntimeStatus, sandbox_id: str, plan: PodResize) -> SyncResult:
        """Resize a pod, given as allocated. Problems are in the result; cancelled, it leaves what has been done."""
        result = SyncResult(SyncAction.RESIZE_POD, describe_pod(pod))
        actuated, uid = self._resizing.actuated, pod.metadata.uid
        if plan.group:
            actuated.group_is_behind(uid)
        try:
            await self._resize(pod, status, sandbox_id, plan)
            await actuated.durable()
        except _ResizeError as error:
            return self._failed(result, pod, error.message)
        except (CgroupError, CheckpointError) as error:
            return self._failed(result, pod, str(error))
        actuated.group_follows(uid)
        self._resizing.cgroups.pods_changed()
        log.info("pod resized", pod=pod.full_name, uid=uid)
        return result

    async def _resize(self, pod: Pod, status: PodRuntimeStatus, sandbox_id: str, plan: PodResize) -> None:
        wanted = pod_settings(pod, self._resizing.cgroup_options)
        current = await self._current(pod)
        if plan.memory or plan.group or plan.pod_level:
            await self._check_memory(pod, status, wanted, current, plan.memory)
        group = _PodGroup(self._runtime, self._resizing, self._options, pod, sandbox_id, merged(wanted, current))
        everything = plan.group or plan.pod_level
        told: dict[str, Amounts] = {}
        if plan.memory or everything:
            memory = CgroupSettings(memory=wanted.memory)
            steps = [_Step(_limit(current.memory), _limit(wanted.memory or current.memory), memory)]
            await self._resize_one(pod, MEMORY, group, steps, plan.memory, told)
            if plan.pod_level:
                self._resizing.actuated.pod_updated(pod, MEMORY)
        if plan.cpu or everything:
            quota = CgroupSettings(cpu_quota=wanted.cpu_quota, cpu_period=wanted.cpu_period)
            shares = CgroupSettings(cpu_shares=wanted.cpu_shares)
            steps = [
                _Step(_limit(current.cpu_quota), _limit(wanted.cpu_quota or current.cpu_quota), quota),
                _Step(current.cpu_shares or 0, wanted.cpu_shares or 0, shares),
            ]
            await self._resize_one(pod, CPU, group, steps, plan.cpu, told)
            if plan.pod_level:
                self._resizing.actuated.pod_updated(pod, CPU)

    async def _resize_one(
        self,
        pod: Pod,
        resource: str,
        group: _PodGroup,
        steps: Sequence[_Step],
        containers: Sequence[ContainerToResize],
        told: dict[str, Amounts],
    ) -> None:
        """`steps`: the limit, then the request. Growing, limits go first; shrinking, requests do."""
        for step in steps:
            if step.after > step.before:
                await group.set(resource, step.settings)
        for container in containers:
            await self._update_container(pod, resource, container, told)
        for step in reversed(steps):
            if step.after < step.before:
                await group.set(resource, step.settings)

    async def _update_container(
        self, pod: Pod, resource: str, change: ContainerToResize, told: dict[str, Amounts]
    ) -> None:
        """One resource at a time: of the other one the runtime hears what it has been told before."""
        before = told.get(change.container.name, change.current)
        after = before.with_memory_of(change.wanted) if resource == MEMORY else before.with_cpu_of(change.wanted)
        container = attrs.evolve(change.container, resources=with_amounts(change.container.resources, after))
        try:
            await self._runtime.update_container_resources(
                change.id.id, container_resources(pod, container, self._options)
            )
        except CRIError as error:
            raise _ResizeError(str(error)) from error
        told[change.container.name] = after
        self._resizing.actuated.container_updated(pod, change.container, after)

    async def _current(self, pod: Pod) -> CgroupSettings:
        """What the pod's cgroup says; without one of its own, what it would have been set to for what was actuated."""
        try:
            reading = await self._resizing.cgroups.read(pod)
        except CgroupError as error:
            message = f'unable to get pod cgroup config for pod "{describe_pod(pod)}": {error}'
            raise _ResizeError(message) from error
        if reading is not None:
            return reading.settings
        actuated = self._resizing.actuated.of_pod(pod.metadata.uid).resources
        before = pod if actuated is None else with_allocation(pod, actuated)
        return pod_settings(before, self._resizing.cgroup_options)

    async def _check_memory(
        self,
        pod: Pod,
        status: PodRuntimeStatus,
        wanted: CgroupSettings,
        current: CgroupSettings,
        containers: Sequence[ContainerToResize],
    ) -> None:
        """A best effort: what is refused in the middle would leave the pod resized by half."""
        pod_limit, limits = decreasing_memory_limits(wanted, current, containers)
        if pod_limit is None and not limits:
            return
        try:
            use = await self._resizing.usage(pod, status)
        except MemoryUseError as error:
            log.warning("memory usage cannot be measured", pod=pod.full_name, problem=str(error))
            raise _ResizeError(f'unable to read memory usage for pod "{describe_pod(pod)}"') from error
        problem = decrease_problem(pod_limit, limits, use)
        if problem is not None:
            raise _ResizeError(problem)

    def _failed(self, result: SyncResult, pod: Pod, problem: str) -> SyncResult:
        log.warning("pod could not be resized", pod=pod.full_name, uid=pod.metadata.uid, problem=problem)
        return attrs.evolve(result, reason=RESIZE_POD_ERROR, message=problem)


@define
class _PodGroup:
    """The cgroup of a pod, and the runtime that is told before it changes."""

    runtime: RuntimeClient
    resizing: Resizing
    options: RuntimeOptions
    pod: Pod
    sandbox_id: str
    current: CgroupSettings

    async def set(self, resource: str, settings: CgroupSettings) -> None:
        """Raises _ResizeError and CgroupError; then the runtime has been told to go back."""
        changed = merged(self.current, settings)
        try:
            await self._update(changed)
        except CRIError as error:
            raise _ResizeError(
                f"failed to notify runtime for UpdatePodSandboxResources (resource={resource}); resize rejected: "
                f'updatePodSandboxResources failed for sanboxID "{self.sandbox_id}": {error}'
            ) from error
        try:
            await self.resizing.cgroups.set(self.pod, settings)
        except CgroupError:
            try:
                await self._update(self.current)
            except CRIError as error:
                log.warning("runtime was not told of a failed resize", pod=self.pod.full_name, problem=str(error))
            raise
        self.current = changed

    async def _update(self, settings: CgroupSettings) -> None:
        own = without_overhead(settings, self.pod)
        resources = v1.LinuxContainerResources(
            cpu_shares=own.cpu_shares or 0,
            cpu_quota=own.cpu_quota or 0,
            cpu_period=own.cpu_period or 0,
            memory_limit_in_bytes=max(own.memory or 0, 0),
            unified=dict(own.unified),
        )
        try:
            await self.runtime.update_pod_sandbox_resources(
                self.sandbox_id, overhead=overhead_resources(self.pod, self.options), resources=resources
            )
        except CRIError as error:
            # containerd 2.2 says it with another code.
            unknown = error.status is Status.UNKNOWN and "not implemented" in error.message
            if error.status is not Status.UNIMPLEMENTED and not unknown:
                raise


def decreasing_memory_limits(
    wanted: CgroupSettings, current: CgroupSettings, containers: Sequence[ContainerToResize]
) -> tuple[int | None, dict[str, int]]:
    """The pod's new memory limit if it is new or lower than before, and those of its containers, by name."""
    pod = wanted.memory if wanted.memory and _limit(wanted.memory) < _limit(current.memory) else None
    limits = {
        one.container.name: one.wanted.memory_limit
        for one in containers
        if one.wanted.memory_limit
        and (not one.current.memory_limit or one.wanted.memory_limit < one.current.memory_limit)
    }
    return pod, limits


def decrease_problem(pod_limit: int | None, limits: Mapping[str, int], use: MemoryUse) -> str | None:
    """Why memory cannot be decreased to these limits now, None when it can."""
    problems = []
    if pod_limit is not None:
        if use.pod is None:
            problems.append("missing pod memory usage")
        elif use.pod >= pod_limit:
            problems.append(f"attempting to set pod memory limit ({pod_limit}) below current usage ({use.pod})")
    for name, used in use.containers.items():
        limit = limits.get(name)
        if limit is None:
            continue
        if used is None:
            problems.append(f'missing container "{name}" memory usage')
        elif used >= limit:
            problems.append(f'attempting to set container "{name}" memory limit ({limit}) below current usage ({used})')
    if not problems:
        return None
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return f"cannot decrease memory limits: {text}"


def _limit(value: int | None) -> float:
    """No limit is more than any."""
    return math.inf if value is None or value < 0 else value
