"""The agent as its local API shows it (`trikubelet.node_api.local_api.AgentView`): questions only, no copies kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet import __version__
from trikubelet.agent.acting import Acting
from trikubelet.agent.why import explain
from trikubelet.api.timestamps import format_time
from trikubelet.broadcast import Broadcast
from trikubelet.container.model import ContainerState
from trikubelet.embedded.images.errors import ImageError
from trikubelet.http.messages import HTTPError
from trikubelet.node_api.local_api import ImportRefusedError
from trikubelet.node_api.log_location import LogNotAvailableError, LogTarget, container_for_logs
from trikubelet.pods.journal import wall_time
from trikubelet.pods.phases import (
    ConfigUpdate,
    Finished,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
    effective_grace_period,
)
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import PodEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Mapping, Sequence

    from trio_typing import TaskStatus

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod
    from trikubelet.broadcast import Subscription
    from trikubelet.embedded.runtime import EmbeddedRuntime
    from trikubelet.pods.journal import Journal
    from trikubelet.pods.phases import Ending, Phase
    from trikubelet.telemetry.events import AnyEvent, NodeEvent

SYNC_LOOP_SILENCE: Final = 120.0
"""Seconds without an event after which the sync loop counts as stuck; it ticks every second."""


class LocalView:
    """Implements `AgentView`. `embedded` is None for another runtime, whose images are not ours to change."""

    def __init__(self, agent: Agent, embedded: EmbeddedRuntime | None = None) -> None:
        self._agent = agent
        self._embedded = embedded
        self._changed: Broadcast[None] = Broadcast()
        agent.recorder.add_listener(lambda _: self._changed.send(None))
        self._events: Broadcast[AnyEvent] = Broadcast()
        agent.recorder.add_listener(self._events.send)
        self._nursery: trio.Nursery | None = None
        """While it runs: for what goes on when whoever asked for it does not wait any longer."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wake subscribers when something of a pod changes. Runs until cancelled."""
        agent = self._agent
        with agent.statuses.subscribe() as statuses, agent.workers.finished.subscribe() as finished:
            with agent.pleg.observed.subscribe(key=lambda _: None) as observed:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    for changes in (statuses, finished, observed):
                        nursery.start_soon(supervise, self._follow, changes)
                    task_status.started()

    async def _follow(self, changes: AsyncIterable[object]) -> None:
        async for _ in changes:
            self._changed.send(None)

    def health(self) -> Mapping[str, str | None]:
        """The kubelet's checks, and the runtime's own word. As there, a loop that has not begun yet is not stuck."""
        silence = trio.current_time() - self._agent.sync_loop.entered_at
        stuck = SYNC_LOOP_SILENCE < silence < math.inf
        return {
            "ping": None,
            "device-plugin": self._agent.devices.registration_problem,
            "pleg": self._agent.pleg_sources.relist.unhealthy_reason(),
            "runtime": self._agent.runtime_state.conditions.runtime_problem,
            "syncloop": f"the sync loop was last active {silence:.0f} s ago" if stuck else None,
        }

    def version(self) -> Mapping[str, str]:
        runtime = self._agent.runtime_version
        own = {"agent": __version__, "node": self._agent.options.node_name}
        if runtime is None:
            return own
        return {
            **own,
            "runtime_name": runtime.runtime_name,
            "runtime_version": runtime.runtime_version,
            "runtime_api_version": runtime.runtime_api_version,
        }

    def pods(self) -> Sequence[Pod]:
        """Desired pods and those that are still being ended, with what is reported of them, by namespace and name.

        In a drain all are on their way out, and those that have ended by it are gone.
        """
        pods = {pod.metadata.uid: pod for pod in self._agent.pods.pods()}
        draining_since = self._agent.workers.draining_since
        for uid, phase in self._agent.workers.states.phases().items():
            if isinstance(phase, Finished):
                if draining_since is not None and phase.ending.asked_at >= draining_since:
                    pods.pop(uid, None)
                continue
            ending = _ending(phase, wanted=uid in pods and draining_since is None)
            if ending is not None:
                pod = pods.get(uid) or _config_of(phase)
                if pod is not None:
                    pods[uid] = self._marked_as_ending(pod, ending, _grace_period(phase, pod))
        shown = [self._with_status(pod) for pod in pods.values()]
        return sorted(shown, key=lambda pod: (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid))

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The desired pod of that name, else one that is still being ended."""
        wanted = self._agent.pods.pod_by_full_name(f"{name}_{namespace}")
        if wanted is not None:
            return self._with_status(wanted)
        named = (pod for pod in self.pods() if (pod.metadata.namespace, pod.metadata.name) == (namespace, name))
        return next(named, None)

    def events(self) -> Sequence[PodEvent | NodeEvent]:
        recorder = self._agent.recorder
        return sorted((*recorder.pod_events(), *recorder.node_events()), key=lambda event: event.last_seen)

    def subscribe_events(self) -> Subscription[AnyEvent]:
        return self._events.subscribe(key=_identity)

    def pod_events(self, uid: str) -> Sequence[PodEvent]:
        return self._agent.recorder.events_of(uid)

    @property
    def acting(self) -> Acting:
        return Acting(self._agent, self.pod)

    @property
    def journal(self) -> Journal:
        return self._agent.journal

    def manifests(self) -> Sequence[Mapping[str, Any]]:
        files = self._agent.files
        return [] if files is None else [state.as_json() for state in files.manifests()]

    def manifests_with_problems(self) -> Sequence[Mapping[str, Any]]:
        files = self._agent.files
        return [] if files is None else [state.as_json() for state in files.manifests_with_problems()]

    def version_of_manifests(self) -> int:
        return 0 if self._agent.files is None else self._agent.files.version

    def why(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return explain(self._agent, namespace, name, self.pod(namespace, name))

    def subscribe(self) -> Subscription[None]:
        return self._changed.subscribe()

    def container_running(self, container_id: str) -> bool:
        cache = self._agent.pleg.cache
        statuses = (cache.last_seen(uid) for uid in cache.uids())
        return any(
            container.id.id == container_id and container.state is ContainerState.RUNNING
            for status in statuses
            if status is not None
            for container in status.container_statuses
        )

    async def log_files(self, namespace: str, pod: str, container: str, previous: bool) -> LogTarget:
        """Raises LogNotAvailableError when there is no such pod, container or log."""
        found = [one for one in self.pods() if (one.metadata.namespace, one.metadata.name) == (namespace, pod)]
        if not found:
            raise LogNotAvailableError(f'pod "{pod}" not found in namespace "{namespace}"', not_found=True)
        container_id = container_for_logs(pod, found[-1].status, container, previous=previous)
        try:
            reply = await self._agent.runtime_client.container_status(container_id)
        except CRIError as error:
            raise LogNotAvailableError(f"the runtime does not tell of container {container_id}: {error}") from error
        if not reply.status.log_path:
            raise LogNotAvailableError(f"the runtime keeps no log of container {container_id}")
        return LogTarget(Path(reply.status.log_path), container_id, self.container_running(container_id))

    async def images(self) -> Sequence[Mapping[str, Any]]:
        """Raises HTTPError when the runtime does not answer."""
        try:
            images = await self._agent.image_client.list_images()
        except CRIError as error:
            raise HTTPError(503, f"the runtime does not list its images: {error}") from error
        return [
            {
                "id": image.id,
                "repo_tags": list(image.repo_tags),
                "repo_digests": list(image.repo_digests),
                "size": image.size,
                "pinned": image.pinned,
            }
            for image in images
        ]

    def pulls(self) -> Sequence[Mapping[str, Any]]:
        if self._embedded is None:
            return []
        return [
            {
                "reference": pull.reference,
                "received_bytes": pull.received_bytes,
                "total_bytes": pull.total_bytes,
                "layers_done": pull.layers_done,
                "layers": pull.layers,
                "progress": str(pull),
            }
            for pull in self._embedded.puller.progress()
        ]

    async def import_images(self, path: Path) -> Sequence[str]:
        if self._embedded is None:
            raise ImportRefusedError(
                f"images of {self._agent.runtime.runtime_name or 'this runtime'} are imported with its own tools "
                "(for containerd: ctr -n k8s.io images import FILE)"
            )
        images = self._embedded.images
        try:
            names = await images.import_archive(path)
        except ImageError as error:
            raise ImportRefusedError(str(error)) from error
        self._agent.runtime.imported(images.ids_of(names))
        return names

    def statistics(self) -> Mapping[str, Any]:
        agent = self._agent
        return {
            "pod_workers": agent.workers.statistics(),
            "pleg": agent.pleg.statistics(),
            "pod_status_cache": agent.pleg.cache.statistics(),
            "pidfd_watchers": agent.pleg_sources.pidfds.watched,
            "relists": agent.pleg_sources.relist.lists,
            "problems_of_sources": agent.pleg_sources.health(),
            "statuses": agent.statuses.statistics(),
            "probes": agent.probes.statistics(),
            "devices": [] if agent.devices.manager is None else agent.devices.manager.statistics(),
        }

    def _marked_as_ending(self, pod: Pod, ending: Ending, grace_period: int) -> Pod:
        """A static pod that is being ended carries no deletion timestamp of its own; people know the end by that.

        As the API server's, it is when the grace period will be over.
        """
        if pod.metadata.deletion_timestamp is not None:
            return pod
        until = wall_time(self._agent.clock, ending.asked_at + grace_period)
        metadata = attrs.evolve(pod.metadata, deletion_timestamp=until, deletion_grace_period_seconds=grace_period)
        return attrs.evolve(pod, metadata=metadata)

    def _with_status(self, pod: Pod) -> Pod:
        status = self._agent.statuses.get_pod_status(pod.metadata.uid)
        return self._with_reason_to_wait(pod) if status is None else attrs.evolve(pod, status=status)

    def _with_reason_to_wait(self, pod: Pod) -> Pod:
        """A static pod that nothing is reported of because another of its name has not ended: since when, and why."""
        states = self._agent.workers.states
        phase, before = states.phase(pod.metadata.uid), states.started_static_pod(pod.full_name)
        if not isinstance(phase, WaitingToStart) or before is None or before == pod.metadata.uid:
            return pod
        message = f"waits for the end of the pod of this name from before, {before}"
        predecessor = states.phase(before)
        if isinstance(predecessor, TerminationRequested | Terminating):
            asked = format_time(wall_time(self._agent.clock, predecessor.ending.asked_at))
            message += f", which was asked to end at {asked} and has {predecessor.kill.grace_period}s of grace"
        since = pod.metadata.creation_timestamp or wall_time(self._agent.clock, phase.identity.first_seen)
        metadata = attrs.evolve(pod.metadata, creation_timestamp=since)
        return attrs.evolve(pod, metadata=metadata, status=attrs.evolve(pod.status, message=message))


def _ending(phase: Phase, *, wanted: bool) -> Ending | None:
    """How a pod ends that is deleted or not desired any more; None also for one that ended by itself and stays."""
    match phase:
        case TerminationRequested() | Terminating() | Terminated():
            return phase.ending if phase.ending.deleted or not wanted else None
        case _:
            return None


def _identity(event: AnyEvent) -> tuple[str, ...]:
    """What an event is the same by when it comes again."""
    about = (event.uid, event.field_path) if isinstance(event, PodEvent) else ()
    return (*about, event.type.value, event.reason, event.message)


def _grace_period(phase: Phase, pod: Pod) -> int:
    """The seconds in force for a pod that ends."""
    match phase:
        case TerminationRequested(kill=kill) | Terminating(kill=kill):
            return kill.grace_period
        case _:
            return effective_grace_period(None, pod, None)


def _config_of(phase: Phase) -> Pod | None:
    if isinstance(phase, Finished):
        return None
    updates = (getattr(phase, "pending", None), getattr(phase, "active", None))
    return next((update.pod for update in updates if isinstance(update, ConfigUpdate)), None)
