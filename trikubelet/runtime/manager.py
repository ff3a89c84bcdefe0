"""The runtime manager: makes the runtime match a pod (kubelet: `kubeGenericRuntimeManager`).

The story of a sync: `plan` says what to do; `sync` does it step by step: what must end is killed; a sandbox is made
when there is none to use; then ephemeral, init and main containers are started, each unless it has to wait
(CrashLoopBackOff). Every action leaves a result, failures included, and none of them stops the agent. Nothing is
remembered between syncs but the waits, the reasons of the last failed starts, process ids, and (on the disk) with what
resources containers run: what the runtime holds is read from it, by labels and annotations, so an agent that was killed
takes up its pods where they are.

This module builds the parts, and is what other packages call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.container.errors import KillPodError
from trikubelet.container.probe_results import ProbeResults
from trikubelet.runtime.backoff import CrashLoops
from trikubelet.runtime.containers.container import ContainerStarter
from trikubelet.runtime.containers.life import PodContainers, containers_without_pod
from trikubelet.runtime.gc import ContainerCollector
from trikubelet.runtime.gc_choice import ContainerGCPolicy, dead_containers_beyond
from trikubelet.runtime.hooks import HookRunner
from trikubelet.runtime.images.gc import ImageHolds
from trikubelet.runtime.images.manager import PULL_FAILURES, ImageManager, version_problem
from trikubelet.runtime.images.pull_rate import PullRate
from trikubelet.runtime.kill import Killer
from trikubelet.runtime.metrics import RuntimeMetrics
from trikubelet.runtime.observe import Observer
from trikubelet.runtime.plan import compute_pod_actions
from trikubelet.runtime.resize import PodResizer
from trikubelet.runtime.resize_plan import is_resize_in_progress
from trikubelet.runtime.results import WaitingReasons
from trikubelet.runtime.sandboxes.sandbox import SandboxMaker
from trikubelet.runtime.sandboxes.user_namespaces import UserNamespaces
from trikubelet.runtime.sync import PodSync, SyncParts, remove_container
from trikubelet.runtime.turns import CallKind, Turns
from trikubelet.supervision import supervise
from trikubelet.telemetry.spans import spanned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trio_typing import TaskStatus

    from trikubelet.allocation.model import PodAllocation
    from trikubelet.api import Container, Pod
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus, RunningPod
    from trikubelet.rpc.cri import v1
    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
    from trikubelet.runtime.containers.life import PodProbes
    from trikubelet.runtime.context import RuntimeContext
    from trikubelet.runtime.resize_plan import ActuatedPod
    from trikubelet.runtime.results import PodSyncResult


class RuntimeManager:
    """Makes the runtime match pods, and reads it. Calls for different pods may run at the same time.

    All calls may be cancelled at any await: nothing runs on in the background, and the next sync goes on from what it
    finds. `runtime_name` and `runtime_version` are known after `connect`; `run` is to run before pods are synced.
    """

    def __init__(self, runtime: RuntimeClient, images: ImageClient, context: RuntimeContext) -> None:
        """Raises UserNamespaceError when the node's user ids cannot be shared out as the options say."""
        recorder, options = context.recorder, context.options
        self._context = context
        self._runtime = runtime
        self._actuated = None if context.resizing is None else context.resizing.actuated
        self._image_client = images
        self._observer = Observer(runtime, context.files)
        self.user_namespaces = UserNamespaces(options)
        self.metrics = RuntimeMetrics()
        self.image_holds = ImageHolds()
        """Images that containers are being made of: no garbage."""
        self.images = ImageManager(
            images,
            recorder,
            serialize=options.serialize_image_pulls,
            max_parallel=options.max_parallel_image_pulls,
            rate=PullRate(options.registry_pull_qps, options.registry_burst),
            credentials=context.credentials,
            records=context.pull_records,
            metrics=self.metrics,
            steps=context.steps,
        )
        hooks = HookRunner(runtime, recorder, self._pod_ips, ended=context.ended, metrics=self.metrics)
        self._ends = Turns(options.calls_at_once)
        self._killer = Killer(
            runtime,
            recorder,
            hooks,
            ended=context.ended,
            turns=self._ends,
            steps=context.steps,
        )
        turns = Turns(options.calls_at_once)
        self._starter = ContainerStarter(
            runtime,
            self.images,
            turns,
            context,
            hooks=hooks,
            seen_end=self._observer.seen_end,
            remember_end=self.remember_end,
            start_failed=self._observer.start_failed,
            actuated=self._actuated,
        )
        self._collector = ContainerCollector(
            runtime,
            self._starter,
            self._killer,
            context.files,
            context.clock,
            self._ends,
            seen_end=self._observer.seen_end,
        )
        self._crash_loops = CrashLoops(
            recorder, context.clock, options.max_container_restart_period, options.min_container_restart_period
        )
        self._waiting = WaitingReasons()
        self._sandboxes = SandboxMaker(runtime, context, turns, self.user_namespaces)
        self._parts = SyncParts(
            runtime=runtime,
            recorder=recorder,
            options=options,
            sandboxes=self._sandboxes,
            images=self.images,
            starter=self._starter,
            crash_loops=self._crash_loops,
            waiting=self._waiting,
            objects=context.objects,
            image_holds=self.image_holds,
            metrics=self.metrics,
            resizer=None if context.resizing is None else PodResizer(runtime, options, context.resizing),
            actuated=self._actuated,
        )
        self.runtime_name = ""
        self.runtime_version = ""

    def start_at_once(self, pod: Pod, container: Container) -> None:
        """The container waits for no back-off when it starts next."""
        self._crash_loops.forget(pod, container)

    async def connect(self) -> v1.VersionResponse:
        """Ask the runtime for its name and version. Raises CRIError."""
        version = await self._runtime.version()
        self.runtime_name = version.runtime_name
        self.runtime_version = version.runtime_version
        return version

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep its records on the disk, until cancelled. Started after what an earlier agent left half done was taken
        up."""
        records = self._context.pull_records
        if records is not None:
            await records.settle(self._image_client)
        task_status.started()
        async with trio.open_nursery() as nursery:
            if records is not None:
                nursery.start_soon(supervise, records.run, self._image_client)
            if self._actuated is not None:
                nursery.start_soon(supervise, self._actuated.run)

    def imported(self, image_refs: Mapping[str, str]) -> None:
        """See `PullRecords.imported`."""
        if self._context.pull_records is not None:
            self._context.pull_records.imported(image_refs)

    def containers_of_pod(self, nursery: trio.Nursery, probes: PodProbes | None = None) -> PodContainers:
        """The container instances of a pod, in the pod's nursery."""
        return PodContainers(nursery, self._killer, probes)

    # Reading

    async def get_pods(self, all: bool = False) -> list[RunningPod]:  # noqa: A002 - the kubelet's name
        """The pods that the runtime holds, newest first; with ended containers and sandboxes when `all`.

        Raises CRIError.
        """
        return await self._observer.pods(self.runtime_name, everything=all)

    async def get_pod_status(
        self, uid: str, name: str = "", namespace: str = "", contents: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus:
        """Everything about one pod; a pod that the runtime does not know has an empty status. `contents`: all that it
        holds, where that is known (`container.model.contents`). Raises CRIError."""
        return await self._observer.pod_status(self.runtime_name, uid, name, namespace, contents)

    def remember_end(self, status: v1.ContainerStatus, pod_sandbox_id: str) -> None:
        """The runtime told by itself that a container has ended: it may be gone before it can be asked."""
        self._observer.remember_end(self.runtime_name, status, pod_sandbox_id)

    def seen_end(self, container_id: str) -> ContainerStatus | None:
        """The last status of a container that ended not long ago, also when it is gone."""
        return self._observer.seen_end(container_id)

    def waiting_reasons(self, uid: str) -> dict[str, tuple[str, str]]:
        """Reason and message of the pod's containers whose last start failed, by name (kubelet: reason cache)."""
        return self._waiting.of_pod(uid)

    def back_off_ends(self, pod: Pod) -> dict[str, float]:
        """Trio time at which the back-off of each container ends that could not be started for one, by name.

        A look at the pod before that starts nothing.
        """
        images = {container.name: container.image for container in (*pod.spec.init_containers, *pod.spec.containers)}
        ends: dict[str, float | None] = {}
        for name, failed in self._waiting.failures(pod.metadata.uid).items():
            ends[name] = failed.retry_at
            if failed.retry_at is None and failed.reason in PULL_FAILURES:
                ends[name] = self.images.back_off_end(pod, images.get(name, ""))
        return {name: end for name, end in ends.items() if end is not None}

    def mounts_read_only_recursively(self, pod: Pod) -> bool:
        """Whether the runtime can mount the pod's volumes read-only with everything below them."""
        return self._context.abilities().handler(self._sandboxes.handler_of(pod)).recursive_read_only_mounts

    def actuated(self, uid: str) -> PodAllocation | None:
        """The resources of a pod and its containers that the runtime was last told; None: not known."""
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
            return self._context.node.host_ips()[:1]
        return status.ips

    # Syncing

    async def sync_pod(
        self,
        pod: Pod,
        status: PodRuntimeStatus,
        containers: PodContainers,
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
            containers,
            runtime_name=self.runtime_name,
            image_volume_problem=version_problem(self.runtime_name, self.runtime_version),
            abilities=self._context.abilities(),
            on_sandbox_ready=on_sandbox_ready,
        )
        return await sync.run()

    async def kill_pod(
        self,
        running: RunningPod,
        pod: Pod | None,
        containers: PodContainers | None = None,
        *,
        deadline: float | None = None,
        for_good: bool = False,
    ) -> None:
        """End all containers at once, each with its grace period (or until `deadline`, Trio time), then the sandboxes.

        `containers`: those of the pod's life; None for a pod that has none. `for_good`: no container comes back.
        Returns when nothing of the pod runs. Raises KillPodError when something did not stop.
        """
        if containers is None:
            async with containers_without_pod(self._killer) as containers:
                results = await containers.kill_pod(running, pod, deadline, for_good=for_good)
        else:
            results = await containers.kill_pod(running, pod, deadline, for_good=for_good)
        failures = [(result.target, result.message) for result in results if result.failed]
        if failures:
            raise KillPodError(f"{running.full_name}({running.uid})", failures)

    # Cleaning up

    async def release(self, uid: str) -> None:
        """Give back what a pod held of the node: nothing of it runs any more. Raises OSError."""
        await trio.lowlevel.checkpoint()
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
        with spanned(
            self._context.spans, "Containers/GarbageCollect", scope="k8s.io/kubernetes/pkg/kubelet/kuberuntime"
        ):
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
            async with self._ends.take(CallKind.REMOVE):
                await remove_container(self._starter, container)
