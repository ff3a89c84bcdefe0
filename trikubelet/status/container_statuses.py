"""The statuses of a pod's containers: from what the runtime shows and what was reported before.

A status is built in three steps. First what the runtime shows: the newest container of the name is the state, the one
that was started before it the last state. A container that the runtime does not show waits to be made; if it was
reported as running it must have ended, with an unknown exit code (137). Last, when a container is to
be started again and the last attempt told why it could not (CrashLoopBackOff, ImagePullBackOff …), it waits for that
reason.

Probes then decide on `started` and `ready` (`with_probe_outcomes`). A container without a startup probe has started
when it runs; one without a readiness probe is ready when it has started. A probe without a result yet leaves what was
reported before of the same container, so that a restart of the agent takes no pod out of service; else it counts as
no.

Facts from the kubelet's `convertToAPIContainerStatuses`, whose table is this module's test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from trikubelet.api import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    LinuxContainerUser,
    Pod,
    ResourceStatus,
    VolumeMountStatus,
    is_sidecar,
)
from trikubelet.container import model
from trikubelet.container.model import PodRuntimeStatus
from trikubelet.container.progress import any_main_container_created
from trikubelet.container.restart_policy import should_restart
from trikubelet.formats.values import frozen
from trikubelet.status.resources import ActualResources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Container, PodStatus, VolumeMount

CONTAINER_CREATING: Final = "ContainerCreating"
POD_INITIALIZING: Final = "PodInitializing"
STATUS_UNKNOWN: Final = "ContainerStatusUnknown"
RESTARTING_ALL_CONTAINERS: Final = "RestartingAllContainers"
UNKNOWN_EXIT_CODE: Final = 137
LOST_WHEN_TERMINATED: Final = "The container could not be located when the pod was terminated"
_LOST_WHEN_DELETED: Final = (
    "The container could not be located when the pod was deleted.  The container used to be Running"
)
_REMOVED_FOR_RESTART: Final = "The container is removed because RestartAllContainers in place"
_INIT_FORGOTTEN: Final = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)

ResourceHealthOf: TypeAlias = Callable[[str], tuple[ResourceStatus, ...]]
"""How the devices of a container do, by its name."""


def no_resource_health(_: str) -> tuple[ResourceStatus, ...]:
    """For a node that does not watch devices."""
    return ()


def shows_health(status: PodStatus, health: ResourceHealthOf) -> bool:
    """Whether a status shows the present health of the devices."""
    shown = (*status.init_container_statuses, *status.container_statuses, *status.ephemeral_container_statuses)
    return all(one.allocated_resources_status == health(one.name) for one in shown)


@frozen
class StatusContext:
    """The inputs of a container's status besides the container."""

    pod: Pod
    observed: PodRuntimeStatus
    waiting_reasons: Mapping[str, tuple[str, str]]
    """Reason and message of the last failed attempt to start a container, by its name."""
    restarting_all: bool = False
    recursive_read_only: bool = False
    """Whether the runtime can mount volumes read-only with everything below them (KEP-3857)."""
    resource_health: ResourceHealthOf = no_resource_health
    actual: ActualResources | None = None
    """None: what is allocated is taken for what there is."""


def container_statuses(
    containers: Sequence[Container], previous: Sequence[ContainerStatus], context: StatusContext, *, init: bool = False
) -> tuple[ContainerStatus, ...]:
    """One status a container; init containers in their order, others by name.

    `started` and `ready` are left to the probes. `init` says that the containers are the pod's init containers.
    """
    known = {status.name: status for status in previous}
    statuses = []
    for container in containers:
        status = _waiting_for_start(
            container, _shown(container, known.get(container.name), context), context, init=init
        )
        if (health := context.resource_health(container.name)) != status.allocated_resources_status:
            status = attrs.evolve(status, allocated_resources_status=health)
        statuses.append(status)
    return tuple(statuses if init else sorted(statuses, key=lambda status: status.name))


def _shown(container: Container, old: ContainerStatus | None, context: StatusContext) -> ContainerStatus:
    seen = [status for status in context.observed.container_statuses if status.name == container.name]
    if not seen:
        return _not_shown(container, old, context)
    status = _from_observed(container, seen[0], old, context)
    # One that was made and never started, since the agent ended in between, is no state that a container was in.
    before = next((one for one in seen[1:] if one.state is not model.ContainerState.CREATED), None)
    if before is not None:
        status = attrs.evolve(status, last_state=_from_observed(container, before, old, context).state)
    return status


def _from_observed(
    container: Container, seen: model.ContainerStatus, old: ContainerStatus | None, context: StatusContext
) -> ContainerStatus:
    container_id = str(seen.id)
    status = ContainerStatus(
        name=container.name,
        state=_observed_state(seen, old, context),
        last_state=ContainerState(terminated=_last_end(container_id, old)),
        restart_count=_restart_count(seen, old),
        image=seen.image,
        image_id=seen.image_ref,
        container_id=container_id,
        resources=container.resources if context.actual is None else context.actual.of_container(container, seen, old),
        allocated_resources=container.resources.requests,
        volume_mounts=_volume_mounts(container, context),
        user=_user(seen),
    )
    if old is not None and old.volume_mounts:
        # What was mounted how cannot change while the container lives.
        status = attrs.evolve(status, volume_mounts=old.volume_mounts)
    return status


def _user(seen: model.ContainerStatus) -> ContainerUser | None:
    if seen.user is None:
        return None
    user = seen.user
    return ContainerUser(
        linux=LinuxContainerUser(uid=user.uid, gid=user.gid, supplemental_groups=user.supplemental_groups)
    )


def _observed_state(seen: model.ContainerStatus, old: ContainerStatus | None, context: StatusContext) -> ContainerState:
    if seen.state is model.ContainerState.RUNNING:
        return ContainerState(running=ContainerStateRunning(started_at=seen.started_at))
    if seen.state is model.ContainerState.EXITED:
        return ContainerState(
            terminated=ContainerStateTerminated(
                exit_code=seen.exit_code,
                reason=seen.reason,
                message=seen.message,
                started_at=seen.started_at,
                finished_at=seen.finished_at,
                container_id=str(seen.id),
            )
        )
    if seen.state is model.ContainerState.UNKNOWN and old is not None and old.state.running is not None:
        # It ran, and is not known to run now: "never ran" instead of "ran and failed" would run a run-once pod twice.
        reason = RESTARTING_ALL_CONTAINERS if context.restarting_all else STATUS_UNKNOWN
        return ContainerState(terminated=unknown_end(LOST_WHEN_TERMINATED, reason))
    return ContainerState(waiting=ContainerStateWaiting())


def unknown_end(message: str, reason: str = STATUS_UNKNOWN) -> ContainerStateTerminated:
    """The end of a container of which nothing is known but that it is gone."""
    return ContainerStateTerminated(reason=reason, message=message, exit_code=UNKNOWN_EXIT_CODE)


def _last_end(container_id: str, old: ContainerStatus | None) -> ContainerStateTerminated | None:
    """How the container ended before, when the runtime no longer holds the ended one."""
    if old is None:
        return None
    if old.container_id != container_id and old.state.terminated is not None:
        return old.state.terminated
    return old.last_state.terminated


def _restart_count(seen: model.ContainerStatus, old: ContainerStatus | None) -> int:
    """The runtime counts, unless it forgot: then what was reported goes on.

    A container that was only made counts when it runs: where its start is cut off, another one takes its number.
    """
    if seen.state is model.ContainerState.CREATED:
        return max(seen.restart_count - 1, 0 if old is None else old.restart_count)
    if old is None:
        return seen.restart_count
    if seen.state is model.ContainerState.UNKNOWN and old.state.running is not None:
        return old.restart_count + 1
    runs_again = seen.state is model.ContainerState.RUNNING and old.state.terminated is not None
    if runs_again and old.restart_count >= seen.restart_count:
        return old.restart_count + 1
    return max(seen.restart_count, old.restart_count)


def _not_shown(container: Container, old: ContainerStatus | None, context: StatusContext) -> ContainerStatus:
    reason = POD_INITIALIZING if context.pod.spec.init_containers else CONTAINER_CREATING
    status = ContainerStatus(
        name=container.name,
        image=container.image,
        state=ContainerState(waiting=ContainerStateWaiting(reason=reason)),
        volume_mounts=_volume_mounts(container, context),
    )
    if old is None:
        return status
    if context.restarting_all and old.state.waiting is None:
        return attrs.evolve(
            old,
            state=ContainerState(
                waiting=ContainerStateWaiting(reason=RESTARTING_ALL_CONTAINERS, message=_REMOVED_FOR_RESTART)
            ),
            last_state=ContainerState(terminated=unknown_end(_REMOVED_FOR_RESTART, RESTARTING_ALL_CONTAINERS)),
            restart_count=old.restart_count + 1,
        )
    if old.state.terminated is not None:
        return old
    status = attrs.evolve(status, restart_count=old.restart_count, last_state=old.last_state)
    if old.state.running is not None and old.last_state.terminated is None:
        # Without a last end the pod would count as not started yet, and fall back to Pending.
        restarts = 0 if context.pod.metadata.deletion_timestamp is not None else 1
        status = attrs.evolve(
            status,
            last_state=ContainerState(terminated=unknown_end(_LOST_WHEN_DELETED)),
            restart_count=old.restart_count + restarts,
        )
    return status


def _waiting_for_start(
    container: Container, status: ContainerStatus, context: StatusContext, *, init: bool
) -> ContainerStatus:
    newest = context.observed.find_container(container.name)
    if init:
        if newest is not None and newest.state is model.ContainerState.EXITED and newest.exit_code == 0:
            return status
        forgotten = newest is None and not is_sidecar(container) and status.state.waiting is not None
        if forgotten and any_main_container_created(context.pod, context.observed):
            ended = ContainerStateTerminated(reason="Completed", message=_INIT_FORGOTTEN)
            return attrs.evolve(status, state=ContainerState(terminated=ended))
    reason = context.waiting_reasons.get(container.name)
    if reason is None or not _is_to_start(container, newest, context.pod):
        return status
    last_state = status.state if status.state.terminated is not None else status.last_state
    waiting = ContainerStateWaiting(reason=reason[0], message=reason[1])
    return attrs.evolve(status, state=ContainerState(waiting=waiting), last_state=last_state)


def _is_to_start(container: Container, newest: model.ContainerStatus | None, pod: Pod) -> bool:
    """Whether the next sync starts the container (kubelet: `ShouldContainerBeRestarted`)."""
    if pod.metadata.deletion_timestamp is not None:
        return False
    if newest is None or newest.state in (model.ContainerState.UNKNOWN, model.ContainerState.CREATED):
        return True
    if newest.state is model.ContainerState.RUNNING:
        return False
    return should_restart(container, pod, newest.exit_code)


def _volume_mounts(container: Container, context: StatusContext) -> tuple[VolumeMountStatus, ...]:
    return tuple(_volume_mount(mount, context.recursive_read_only) for mount in container.volume_mounts)


def _volume_mount(mount: VolumeMount, supported: bool) -> VolumeMountStatus:
    recursive = None
    if mount.read_only:
        wanted = mount.recursive_read_only == "Enabled" or (mount.recursive_read_only == "IfPossible" and supported)
        recursive = "Enabled" if wanted else "Disabled"
    return VolumeMountStatus(
        name=mount.name, mount_path=mount.mount_path, read_only=mount.read_only, recursive_read_only=recursive
    )


@frozen
class ProbeOutcomes:
    """The newest results by container id (`containerd://…`); a container that is not in a mapping has none yet."""

    startup: Mapping[str, bool] = attrs.field(factory=dict)
    readiness: Mapping[str, bool] = attrs.field(factory=dict)


NO_OUTCOMES: Final = ProbeOutcomes()


def with_probe_outcomes(
    container: Container,
    status: ContainerStatus,
    previous: ContainerStatus | None,
    outcomes: ProbeOutcomes,
    *,
    runs_to_completion: bool,
    pod_was_ready: bool = True,
) -> ContainerStatus:
    """The status with `started` and `ready` (kubelet: `prober.UpdatePodStatus`).

    `previous` is what was reported of the container before. An init container that `runs_to_completion` is ready when
    it ended well. Of a container that an earlier agent started, and whose probe has said nothing yet, what was reported
    is believed when `pod_was_ready` (kubelet: `setReadyStateOnKubeletRestart`).
    """
    same = previous if previous is not None and previous.container_id == status.container_id else None
    started = _started(container, status, same, outcomes)
    if runs_to_completion:
        ended = status.state.terminated
        ready = status.ready if ended is None else status.ready or ended.exit_code == 0
    else:
        ready = started and _ready(container, status, same if pod_was_ready else None, outcomes)
    return attrs.evolve(status, started=started, ready=ready)


def _started(
    container: Container, status: ContainerStatus, same: ContainerStatus | None, outcomes: ProbeOutcomes
) -> bool:
    if status.state.running is None:
        return False
    if container.startup_probe is None:
        return True
    return outcomes.startup.get(status.container_id, same is not None and bool(same.started))


def _ready(
    container: Container, status: ContainerStatus, same: ContainerStatus | None, outcomes: ProbeOutcomes
) -> bool:
    if container.readiness_probe is None:
        return True
    return outcomes.readiness.get(status.container_id, same is not None and same.ready)
