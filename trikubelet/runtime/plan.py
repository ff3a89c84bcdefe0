"""What to do with a pod: from its spec and what the runtime was seen to hold, to the actions that bring them together.

Everything that affects the choice is in here, and nothing of this knows a runtime, a clock or a task. The outcomes are
those of the kubelet's `computePodActions`, whose tables are this module's tests. The questions, in their order:

1. The sandbox: is there exactly one that is ready, the newest, with the network that the pod asks for, and an address?
   If not, everything is killed and the pod starts over in a new one; unless it has nothing left to run.
2. Ephemeral containers: each is started once, whatever the others do.
3. Init containers: looked at from the last to the first, since the runtime may have forgotten those that are long done.
   Sidecars (init containers with restart policy Always) are kept running beside the main containers.
4. Main containers, once initialization is done: start what is missing or may restart, kill what changed or is
   unhealthy. When nothing runs and nothing will, the pod is over: kill it.

Containers that stay are looked at once more, by `resize_plan`: they may be given other resources.

Whether a start has to wait (CrashLoopBackOff), and which number the run has (`attempt.py`), is not decided here but
when the container is about to start.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import RESTART_NEVER, RESTART_ON_FAILURE, is_sidecar
from trikubelet.container.hashing import hash_container
from trikubelet.container.model import ContainerID, ContainerState, ContainerStatus, PodRuntimeStatus
from trikubelet.container.probe_results import ProbeResult, ProbeResults
from trikubelet.container.progress import any_main_container_created, any_main_container_in, pod_sandbox_changed
from trikubelet.container.restart_policy import matching_restart_rule, restarts_on_failure, to_be_restarted
from trikubelet.formats.values import define, frozen
from trikubelet.runtime.attempt import was_only_made
from trikubelet.runtime.resize_plan import NO_RESIZE, ActuatedPod, PodResize, ResizePlanner

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod

_NO_RESULTS: Final = ProbeResults()


class KillReason(enum.Enum):
    """Why a container is killed; decides which grace period counts."""

    STARTUP_PROBE = "StartupProbe"
    LIVENESS_PROBE = "LivenessProbe"
    FAILED_POST_START_HOOK = "FailedPostStartHook"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"
    UNKNOWN = "Unknown"
    NONE = ""


@frozen
class ContainerToKill:
    """A container to kill, with the words for its event."""

    name: str
    message: str
    reason: KillReason = KillReason.NONE


@frozen
class PodActions:
    """What to do, in the order in which `RuntimeManager.sync_pod` does it. Numbers are positions in the pod's spec."""

    kill_pod: bool = False
    """Kill all containers and stop the sandbox."""
    create_sandbox: bool = False
    sandbox_id: str = ""
    """The sandbox to start containers in; of the one to be replaced when a new one is made."""
    attempt: int = 0
    """Attempt number of the sandbox."""
    containers_to_kill: Mapping[ContainerID, ContainerToKill] = attrs.field(factory=dict)
    containers_to_reset: tuple[ContainerToReset, ...] = ()
    ephemeral_containers_to_start: tuple[int, ...] = ()
    init_containers_to_start: tuple[int, ...] = ()
    resize: PodResize = NO_RESIZE
    """Comes before the main containers start."""
    containers_to_start: tuple[int, ...] = ()

    @property
    def starts_anything(self) -> bool:
        """Whether a sandbox is needed. Nothing is started in one that is being stopped."""
        if self.kill_pod and not self.create_sandbox:
            return False
        return self.create_sandbox or self.starts_containers

    @property
    def starts_containers(self) -> bool:
        """Whether any container is to be started."""
        return bool(self.ephemeral_containers_to_start or self.init_containers_to_start or self.containers_to_start)

    @property
    def resizes(self) -> bool:
        """Whether anything is resized. Nothing is in a pod that is being stopped."""
        return bool(self.resize) and (self.create_sandbox or not self.kill_pod)


def compute_pod_actions(
    pod: Pod,
    status: PodRuntimeStatus,
    *,
    probes: ProbeResults = _NO_RESULTS,
    restart_all_containers: bool = False,
    actuated: ActuatedPod | None = None,
) -> PodActions:
    """Decide what brings the runtime to the pod (kubelet: `computePodActions`).

    `restart_all_containers`: the pod's condition AllContainersRestarting is true, so every container goes first.
    `actuated`: what the runtime was last told of the pod's resources. Without it nothing is resized.
    """
    sandbox = inspect_sandbox(pod, status)
    if restart_all_containers:
        return attrs.evolve(sandbox, containers_to_reset=containers_to_reset(pod, status))
    resizes = ResizePlanner(pod, actuated)
    if sandbox.create_sandbox:
        return _with_resizes(_plan_new_sandbox(pod, status, sandbox), resizes, initialized=False)
    return _plan_in_sandbox(pod, status, sandbox, probes, resizes)


def _with_resizes(plan: PodActions, resizes: ResizePlanner, *, initialized: bool) -> PodActions:
    spec = resizes.pod.spec
    for index in plan.init_containers_to_start:
        resizes.starts(spec.init_containers[index])
    for index in plan.containers_to_start:
        resizes.starts(spec.containers[index])
    return attrs.evolve(plan, resize=resizes.result(initialized=initialized))


def inspect_sandbox(pod: Pod, status: PodRuntimeStatus) -> PodActions:
    """Whether the pod needs a new sandbox, as the beginning of a plan."""
    sandbox = pod_sandbox_changed(pod, status)
    return PodActions(
        kill_pod=sandbox.changed,
        create_sandbox=sandbox.changed,
        sandbox_id=sandbox.sandbox_id,
        attempt=sandbox.attempt,
    )


def _plan_new_sandbox(pod: Pod, status: PodRuntimeStatus, sandbox: PodActions) -> PodActions:
    """Everything starts over, except what is not to run a second time."""
    kill_only = attrs.evolve(sandbox, create_sandbox=False)
    if pod.spec.restart_policy == RESTART_NEVER and sandbox.attempt != 0 and status.container_statuses:
        # With no container ever seen, the sandbox did not live long enough to make one: then it is worth another try.
        return kill_only
    to_start = tuple(
        index for index, container in enumerate(pod.spec.containers) if not _done_for_good(pod, container, status)
    )
    if not to_start and any_main_container_created(pod, status):
        return kill_only
    if pod.spec.init_containers:
        return attrs.evolve(sandbox, init_containers_to_start=(0,))
    return attrs.evolve(sandbox, containers_to_start=to_start)


def _done_for_good(pod: Pod, container: Container, status: PodRuntimeStatus) -> bool:
    if (container.restart_policy or pod.spec.restart_policy) != RESTART_ON_FAILURE:
        return False
    observed = status.find_container(container.name)
    return observed is not None and observed.state is ContainerState.EXITED and observed.exit_code == 0


def _plan_in_sandbox(
    pod: Pod, status: PodRuntimeStatus, sandbox: PodActions, probes: ProbeResults, resizes: ResizePlanner
) -> PodActions:
    ephemeral = tuple(
        index
        for index, container in enumerate(pod.spec.ephemeral_containers)
        if (observed := status.find_container(container.name)) is None or was_only_made(observed)
    )
    init = _plan_init_containers(pod, status, probes, resizes)
    plan = attrs.evolve(
        sandbox,
        kill_pod=init.failed,
        ephemeral_containers_to_start=ephemeral,
        init_containers_to_start=tuple(init.start),
        containers_to_kill=init.kill,
    )
    if init.failed or not init.pod_initialized:
        return _with_resizes(plan, resizes, initialized=False)
    main = _plan_main_containers(pod, status, probes, resizes)
    if main.kept == 0 and not main.start:
        # Sidecars must not keep a pod alive that is done.
        plan = attrs.evolve(plan, kill_pod=True, init_containers_to_start=())
    plan = attrs.evolve(plan, containers_to_start=tuple(main.start), containers_to_kill={**init.kill, **main.kill})
    return _with_resizes(plan, resizes, initialized=True)


@define
class _MainPlan:
    start: list[int] = attrs.field(factory=list)
    kill: dict[ContainerID, ContainerToKill] = attrs.field(factory=dict)
    kept: int = 0


def _plan_main_containers(
    pod: Pod, status: PodRuntimeStatus, probes: ProbeResults, resizes: ResizePlanner
) -> _MainPlan:
    plan = _MainPlan()
    for index, container in enumerate(pod.spec.containers):
        observed = status.find_container(container.name)
        if observed is None or observed.state is not ContainerState.RUNNING:
            if to_be_restarted(pod, container, observed):
                plan.start.append(index)
                if observed is not None and observed.state is ContainerState.UNKNOWN:
                    plan.kill[observed.id] = _kill_unknown("Container", observed)
            continue
        verdict = _unwanted("Container", container, observed, probes)
        if verdict is None:
            if resizes.must_restart(container, observed):
                plan.kill[observed.id] = _kill_to_resize(container)
                plan.start.append(index)
            else:
                plan.kept += 1
            continue
        if _changed(container, observed) or restarts_on_failure(pod, container):
            verdict = attrs.evolve(verdict, message=f"{verdict.message}, will be restarted")
            plan.start.append(index)
        plan.kill[observed.id] = verdict
    return plan


def _changed(container: Container, observed: ContainerStatus) -> bool:
    return observed.hash != hash_container(container)


def _unwanted(
    kind: str, container: Container, observed: ContainerStatus, probes: ProbeResults
) -> ContainerToKill | None:
    """Why a running container cannot stay, None when it can."""
    if _changed(container, observed):
        return ContainerToKill(container.name, f"{kind} {container.name} definition changed")
    if probes.liveness.get(observed.id) is ProbeResult.FAILURE:
        message = f"{kind} {container.name} failed liveness probe"
        return ContainerToKill(container.name, message, KillReason.LIVENESS_PROBE)
    if probes.startup.get(observed.id) is ProbeResult.FAILURE:
        message = f"{kind} {container.name} failed startup probe"
        return ContainerToKill(container.name, message, KillReason.STARTUP_PROBE)
    return None


def _kill_to_resize(container: Container) -> ContainerToKill:
    return ContainerToKill(container.name, f"Container {container.name} resize requires restart")


def _kill_unknown(kind: str, observed: ContainerStatus) -> ContainerToKill:
    """It may run: kill it, so that there are never two."""
    message = f'{kind} is in "{observed.state.value}" state, try killing it before restart'
    return ContainerToKill(observed.name, message, KillReason.UNKNOWN)


@define
class _InitPlan:
    pod_initialized: bool
    start: list[int] = attrs.field(factory=list)
    kill: dict[ContainerID, ContainerToKill] = attrs.field(factory=dict)
    failed: bool = False
    """An init container failed and may not run again: the pod is over."""

    def restart(self, index: int, observed: ContainerStatus, verdict: ContainerToKill) -> None:
        self.kill[observed.id] = verdict
        self.start.append(index)

    def give_up(self) -> None:
        self.failed = True
        self.start.clear()


def _plan_init_containers(
    pod: Pod, status: PodRuntimeStatus, probes: ProbeResults, resizes: ResizePlanner
) -> _InitPlan:
    """Plan init containers and sidecars (kubelet: `computeInitContainerActions`)."""
    containers = pod.spec.init_containers
    if not containers:
        return _InitPlan(pod_initialized=True)
    # Exited main containers prove nothing: they may be of an earlier sandbox.
    alive = (ContainerState.CREATED, ContainerState.RUNNING)
    plan = _InitPlan(pod_initialized=any_main_container_in(pod, status, alive))
    # Whether something later than the container at hand was seen, so that this one must have been through.
    passed = plan.pod_initialized
    for index in reversed(range(len(containers))):
        container = containers[index]
        observed = status.find_container(container.name)
        if observed is None:
            if passed and is_sidecar(container):
                plan.start.append(index)
            continue
        if passed and not is_sidecar(container):
            continue
        if is_sidecar(container):
            _plan_sidecar(plan, pod, index, observed, probes, resizes, first_time=not passed)
        else:
            _plan_init_container(plan, pod, index, observed, resizes)
        if plan.failed:
            return plan
        passed = True
    if not passed:
        plan.start.append(0)
    plan.start.reverse()
    return plan


def _plan_init_container(
    plan: _InitPlan, pod: Pod, index: int, observed: ContainerStatus, resizes: ResizePlanner
) -> None:
    """The init container that was started last: wait for it, go on after it, or run it again."""
    container = pod.spec.init_containers[index]
    match observed.state:
        case ContainerState.RUNNING:
            if resizes.must_restart(container, observed):
                plan.restart(index, observed, _kill_to_resize(container))
        case ContainerState.CREATED:
            # The runtime failed to start it, or the reply was lost.
            plan.start.append(index)
        case ContainerState.UNKNOWN:
            if restarts_on_failure(pod, container):
                plan.restart(index, observed, _kill_unknown("Init container", observed))
            else:
                plan.give_up()
        case ContainerState.EXITED:
            if observed.exit_code == 0 and observed.reason != "OOMKilled":
                _go_on_after(plan, pod, index)
            elif to_be_restarted(pod, container, observed):
                plan.start.append(index)
            else:
                plan.give_up()


def _plan_sidecar(
    plan: _InitPlan,
    pod: Pod,
    index: int,
    observed: ContainerStatus,
    probes: ProbeResults,
    resizes: ResizePlanner,
    *,
    first_time: bool,
) -> None:
    """Keep a sidecar running, and go on after it once it has started."""
    container = pod.spec.init_containers[index]
    if observed.state is ContainerState.UNKNOWN:
        plan.restart(index, observed, _kill_unknown("Init container", observed))
        return
    if observed.state is not ContainerState.RUNNING:
        plan.start.append(index)
        return
    if container.startup_probe is not None:
        startup = probes.startup.get(observed.id)
        if startup is ProbeResult.FAILURE:
            message = f"Init container {container.name} failed startup probe"
            plan.restart(index, observed, ContainerToKill(container.name, message, KillReason.STARTUP_PROBE))
        if startup is not ProbeResult.SUCCESS:
            return
    if index == len(pod.spec.init_containers) - 1 or first_time:
        _go_on_after(plan, pod, index)
    if _changed(container, observed):
        message = f"Init container {container.name} definition changed"
        plan.restart(index, observed, ContainerToKill(container.name, message))
        return
    if container.liveness_probe is not None:
        liveness = probes.liveness.get(observed.id)
        if liveness is ProbeResult.FAILURE:
            message = f"Init container {container.name} failed liveness probe"
            plan.restart(index, observed, ContainerToKill(container.name, message, KillReason.LIVENESS_PROBE))
        if liveness in (None, ProbeResult.FAILURE):
            return
    if resizes.must_restart(container, observed):
        plan.restart(index, observed, _kill_to_resize(container))


def _go_on_after(plan: _InitPlan, pod: Pod, index: int) -> None:
    if index == len(pod.spec.init_containers) - 1:
        plan.pod_initialized = True
    else:
        plan.start.append(index + 1)


@frozen
class ContainerToReset:
    """A container to remove, after a kill where it may still run, because all containers of the pod restart."""

    id: ContainerID
    name: str
    kill: bool


def containers_to_reset(pod: Pod, status: PodRuntimeStatus) -> tuple[ContainerToReset, ...]:
    """All containers in the order of their removal, when all restart (RestartAllContainers).

    The one that asked for it goes last, so that it can ask again.
    """
    init_sources, init_targets = _sources_and_targets(pod.spec.init_containers, status)
    sources, targets = _sources_and_targets(pod.spec.containers, status)
    return (*targets, *init_targets, *sources, *init_sources)


def _sources_and_targets(
    containers: tuple[Container, ...], status: PodRuntimeStatus
) -> tuple[list[ContainerToReset], list[ContainerToReset]]:
    sources: list[ContainerToReset] = []
    targets: list[ContainerToReset] = []
    for container in containers:
        for observed in status.container_statuses:
            if observed.name != container.name:
                continue
            ended = observed.state is ContainerState.EXITED
            rule = matching_restart_rule(container, observed.exit_code) if ended else None
            asked = rule is not None and rule.action == "RestartAllContainers"
            reset = ContainerToReset(observed.id, container.name, kill=not ended)
            (sources if asked else targets).append(reset)
    return sources, targets
