"""The runtime manager: makes the runtime match a pod (kubelet: `kubeGenericRuntimeManager`).

The story of a sync: `plan` says what to do; `sync` does it step by step: what must end is killed; a sandbox is made
when there is none to use; then ephemeral, init and main containers are started, each unless it has to wait
(CrashLoopBackOff). Every action leaves a result, failures included, and none of them stops the agent. Nothing is
remembered between syncs but the waits, the reasons of the last failed starts, process ids, and (on the disk) with what
resources containers run: what the runtime holds is read from it, by labels and annotations, so an agent that was killed
takes up its pods where they are.

This module is the door: it builds the parts and says what others may ask of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.node.runtime_state import RuntimeAbilities
from trikubelet.runtime.container import ContainerStarter, no_extras
from trikubelet.runtime.errors import KillPodError
from trikubelet.runtime.gc import ContainerCollector
from trikubelet.runtime.gc_choice import ContainerGCPolicy, dead_containers_beyond
from trikubelet.runtime.hooks import HookRunner
from trikubelet.runtime.image_holds import ImageHolds
from trikubelet.runtime.image_volumes import version_problem
from trikubelet.runtime.images import ImageManager
from trikubelet.runtime.kill import Killer
from trikubelet.runtime.measures import RuntimeMeasures
from trikubelet.runtime.objects import NoObjects
from trikubelet.runtime.observe import Observer
from trikubelet.runtime.plan import ProbeResults, compute_pod_actions
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.runtime.pull_rate import PullRate
from trikubelet.runtime.resize import PodResizer, Resizing
from trikubelet.runtime.resize_plan import is_resize_in_progress
from trikubelet.runtime.sandbox import NoResourceClaims, SandboxMaker
from trikubelet.runtime.sync import PodSync, SyncParts, remove_container
from trikubelet.runtime.turns import Turns
from trikubelet.runtime.user_namespaces import UserNamespaces
from trikubelet.runtime.waiting import CrashLoops, WaitingReasons

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_typing import TaskStatus

    from trikubelet.allocation.model import PodAllocation
    from trikubelet.api import Pod
    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.clock import WallClock
    from trikubelet.cri import v1
    from trikubelet.cri.client import ImageClient, RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.container import Extras
    from trikubelet.runtime.ended import Ended
    from trikubelet.runtime.model import ContainerStatus, PodRuntimeStatus, RunningPod
    from trikubelet.runtime.mounts import PodMounts
    from trikubelet.runtime.objects import ObjectGetter
    from trikubelet.runtime.options import NodeValues, RuntimeOptions
    from trikubelet.runtime.pull_credentials import Credentials
    from trikubelet.runtime.pull_records.records import PullRecords
    from trikubelet.runtime.resize_plan import ActuatedPod
    from trikubelet.runtime.results import PodSyncResult
    from trikubelet.runtime.sandbox import ResourceClaims


class RuntimeManager:
    """Makes the runtime match pods, and reads it. Calls for different pods may run at the same time.

    All calls may be cancelled at any await: nothing runs on in the background, and the next sync goes on from what it
    finds. `runtime_name` and `runtime_version` are known after `connect`; `run` is to run before pods are synced.

    What it asks others; without them, it is a node of its own that keeps nothing on the disk but pods' files:

    - `files`: those of pods, by default on the disk below the folders that `options` names;
    - `objects`: Secrets, ConfigMaps and RuntimeClasses;
    - `node`: the node's addresses and what it can give, by default as `options` say;
    - `abilities`: what the runtime last said that it can do;
    - `claims`: what pods claim by name;
    - `credentials` for registries, and `pull_records` of which pods may use which images;
    - `ended`: when a container has ended;
    - `cgroups`: which cgroup a pod's sandbox belongs into;
    - `resizing`: what pods that run are resized with; without it they keep what they were started with;
    - `extras`: what containers get for their devices.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        images: ImageClient,
        *,
        recorder: EventRecorder,
        clock: WallClock,
        options: RuntimeOptions,
        mounts: PodMounts,
        files: PodFiles | None = None,
        objects: ObjectGetter | None = None,
        node: NodeValues | None = None,
        abilities: Callable[[], RuntimeAbilities] = RuntimeAbilities,
        claims: ResourceClaims | None = None,
        credentials: Credentials | None = None,
        pull_records: PullRecords | None = None,
        ended: Ended | None = None,
        cgroups: PodCgroups = NoPodCgroups(),  # noqa: B008 - frozen
        resizing: Resizing | None = None,
        on_turn: Callable[[str, str], None] = lambda uid, container: None,
        extras: Extras = no_extras,
    ) -> None:
        """`on_turn`: see `Killer`.

        Raises UserNamespaceError when the node's user ids cannot be shared out as the options say.
        """
        files = files or PodFiles(options)
        objects = objects or NoObjects()
        self._node = node or options.fixed_node
        self._runtime = runtime
        self._actuated = None if resizing is None else resizing.actuated
        self._abilities = abilities
        self._pull_records = pull_records
        self._image_client = images
        self._observer = Observer(runtime, files)
        self.user_namespaces = UserNamespaces(options)
        self.measures = RuntimeMeasures()
        self.image_holds = ImageHolds()
        """Images that containers are being made of: no garbage."""
        image_manager = ImageManager(
            images,
            recorder,
            serialize=options.serialize_image_pulls,
            max_parallel=options.max_parallel_image_pulls,
            rate=PullRate(options.registry_pull_qps, options.registry_burst),
            credentials=credentials,
            records=pull_records,
            measures=self.measures,
        )
        hooks = HookRunner(runtime, recorder, self._pod_ips, ended=ended, measures=self.measures)
        self._killer = Killer(runtime, recorder, hooks, ended=ended, on_turn=on_turn)
        turns = Turns(options.starts_at_once)
        self._starter = ContainerStarter(
            runtime,
            image_manager,
            recorder,
            files,
            mounts,
            options,
            turns,
            objects=objects,
            hooks=hooks,
            killer=self._killer,
            node=self._node,
            extras=extras,
            seen_end=self._observer.seen_end,
            note_end=self.note_end,
            actuated=self._actuated,
        )
        self._collector = ContainerCollector(runtime, self._starter, self._killer, files, clock)
        self._crash_loops = CrashLoops(recorder, clock, options.max_container_restart_period)
        self._waiting = WaitingReasons()
        self._sandboxes = SandboxMaker(
            runtime,
            recorder,
            files,
            options,
            objects=objects,
            claims=claims or NoResourceClaims(),
            user_namespaces=self.user_namespaces,
            abilities=abilities,
            turns=turns,
            node=self._node,
            volume_groups=mounts.supplemental_groups,
            cgroups=cgroups,
        )
        self._parts = SyncParts(
            runtime=runtime,
            recorder=recorder,
            options=options,
            killer=self._killer,
            sandboxes=self._sandboxes,
            images=image_manager,
            starter=self._starter,
            crash_loops=self._crash_loops,
            waiting=self._waiting,
            objects=objects,
            image_holds=self.image_holds,
            measures=self.measures,
            resizer=None if resizing is None else PodResizer(runtime, options, resizing),
            actuated=self._actuated,
        )
        self.runtime_name = ""
        self.runtime_version = ""

    async def connect(self) -> v1.VersionResponse:
        """Ask the runtime for its name and version. Raises CRIError."""
        version = await self._runtime.version()
        self.runtime_name = version.runtime_name
        self.runtime_version = version.runtime_version
        return version

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the task of what goes on when a call is cancelled (preStop hooks), until cancelled.

        Started after what an earlier agent left half done was taken up.
        """
        if self._pull_records is not None:
            await self._pull_records.adopt(self._image_client)
        async with trio.open_nursery() as nursery:
            if self._actuated is not None:
                nursery.start_soon(self._actuated.run)
            await self._killer.run(task_status=task_status)

    # Reading

    async def get_pods(self, all: bool = False) -> list[RunningPod]:  # noqa: A002 - the kubelet's name
        """The pods that the runtime holds, newest first; with ended containers and sandboxes when `all`.

        Raises CRIError.
        """
        return await self._observer.pods(self.runtime_name, everything=all)

    async def get_pod_status(self, uid: str, name: str = "", namespace: str = "") -> PodRuntimeStatus:
        """Everything about one pod; a pod that the runtime does not know has an empty status. Raises CRIError."""
        return await self._observer.pod_status(self.runtime_name, uid, name, namespace)

    def note_end(self, status: v1.ContainerStatus, pod_sandbox_id: str) -> None:
        """The runtime told by itself that a container has ended: it may be gone before it can be asked."""
        self._observer.note_end(self.runtime_name, status, pod_sandbox_id)

    def seen_end(self, container_id: str) -> ContainerStatus | None:
        """The last status of a container that ended not long ago, also when it is gone."""
        return self._observer.seen_end(container_id)

    def waiting_reasons(self, uid: str) -> dict[str, tuple[str, str]]:
        """Reason and message of the pod's containers whose last start failed, by name (kubelet: reason cache)."""
        return self._waiting.of_pod(uid)

    def mounts_read_only_recursively(self, pod: Pod) -> bool:
        """Whether the runtime can mount the pod's volumes read-only with everything below them."""
        return self._abilities().handler(self._sandboxes.handler_of(pod)).recursive_read_only_mounts

    def actuated(self, uid: str) -> PodAllocation | None:
        """What the runtime was last told of the resources of a pod and its containers; None: nothing is known."""
        actuated = self._actuated_pod(uid)
        return None if actuated is None else actuated.resources

    def is_resize_in_progress(self, pod: Pod, status: PodRuntimeStatus) -> bool:
        """Whether the pod, given as allocated, runs with other cpu or memory than that."""
        return is_resize_in_progress(pod, status, self._actuated_pod(pod.metadata.uid))

    def _actuated_pod(self, uid: str) -> ActuatedPod | None:
        return None if self._actuated is None else self._actuated.of_pod(uid)

    async def _pod_ips(self, pod: Pod) -> tuple[str, ...]:
        """Where a pod is to be reached now. Raises CRIError."""
        metadata = pod.metadata
        status = await self.get_pod_status(metadata.uid, metadata.name, metadata.namespace)
        if pod.spec.host_network and not status.ips:
            return self._node.host_ips()[:1]
        return status.ips

    # Syncing

    async def sync_pod(
        self,
        pod: Pod,
        status: PodRuntimeStatus,
        *,
        probes: ProbeResults = ProbeResults(),  # noqa: B008 - frozen
        restart_all_containers: bool = False,
        on_sandbox_ready: Callable[[Pod, tuple[str, ...]], None] | None = None,
    ) -> PodSyncResult:
        """Do what brings the runtime to the pod, given as allocated (kubelet: `SyncPod`).

        `status` must be newer than the last sync's end, or containers may be started twice. `on_sandbox_ready` is
        called with the addresses of a new sandbox before any image is pulled. Problems are in the result, not raised.
        """
        plan = compute_pod_actions(
            pod,
            status,
            probes=probes,
            restart_all_containers=restart_all_containers,
            actuated=self._actuated_pod(pod.metadata.uid),
        )
        sync = PodSync(
            self._parts,
            pod,
            status,
            plan,
            runtime_name=self.runtime_name,
            image_volume_problem=version_problem(self.runtime_name, self.runtime_version),
            abilities=self._abilities(),
            on_sandbox_ready=on_sandbox_ready,
        )
        return await sync.run()

    async def kill_pod(self, running: RunningPod, pod: Pod | None, grace_override: int | None = None) -> None:
        """End all containers at once, each with its grace period (or `grace_override` seconds), then the sandboxes.

        Returns when nothing of the pod runs. Raises KillPodError when something did not stop.
        """
        results = await self._killer.kill_pod(running, pod, grace_override)
        failures = [(result.target, result.message) for result in results if result.failed]
        if failures:
            raise KillPodError(f"{running.full_name}({running.uid})", failures)

    # Cleaning up

    def release(self, uid: str) -> None:
        """Give back what a pod held of the node: nothing of it runs any more. Raises OSError."""
        if self._actuated is not None:
            self._actuated.forget(uid)
        self.user_namespaces.release(uid)

    async def garbage_collect(
        self,
        policy: ContainerGCPolicy = ContainerGCPolicy(),  # noqa: B008 - frozen
        *,
        all_sources_ready: bool,
        is_pod_removed: Callable[[str], bool],
        is_runtime_removable: Callable[[str], bool] | None = None,
    ) -> None:
        """Remove dead containers beyond the policy, dead sandboxes, and logs of removed pods (by uid).

        `is_runtime_removable` adds pods that still exist but whose ended containers may go. Raises
        GarbageCollectionError when the runtime could not be asked; what could not be removed is only logged.
        """
        await self._collector.collect(
            policy,
            all_sources_ready=all_sources_ready,
            is_pod_removed=is_pod_removed,
            is_runtime_removable=is_runtime_removable or is_pod_removed,
        )
        self._crash_loops.collect()
        if self._actuated is not None:
            self._actuated.forget_if(is_pod_removed)

    async def remove_pod_containers(self, status: PodRuntimeStatus, *, container_id: str = "", keep: int = 1) -> None:
        """Remove a pod's ended containers with their logs, but the newest `keep` (kubelet: `podContainerDeletor`).

        With a container id, only earlier runs of that container. What cannot be removed now is logged and left to
        garbage collection.
        """
        for container in dead_containers_beyond(status, container_id=container_id, keep=keep):
            await remove_container(self._starter, container)
