"""CRI's RuntimeService on the simulated machine. Calls it does not have answer UNIMPLEMENTED."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.container.labels import POD_UID
from trikubelet.rpc.cri import v1
from trikubelet.sim import listing
from trikubelet.sim.abilities import container_user
from trikubelet.sim.machine import CUT_OFF, EXITED, RUNNING, STOPPED_BY_KILL, TOO_SLOW, Machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.sim.abilities import Abilities
    from trikubelet.sim.calls import CallDesk
    from trikubelet.sim.feed import EventFeed
    from trikubelet.sim.images import ImageShelf
    from trikubelet.sim.machine import Container


class SimulatedRuntimeService(v1.RuntimeServiceBase):
    """One per simulated runtime; `SimulatedRuntime` builds it."""

    def __init__(
        self,
        machine: Machine,
        images: ImageShelf,
        desk: CallDesk,
        feed: EventFeed,
        abilities: Abilities,
        *,
        runtime_name: str,
        write_logs: bool,
    ) -> None:
        self.runtime_ready = v1.RuntimeCondition(type="RuntimeReady", status=True)
        self.network_ready = v1.RuntimeCondition(type="NetworkReady", status=True)
        self.cgroup_driver = v1.CgroupDriver.SYSTEMD
        self._machine = machine
        self._images = images
        self._abilities = abilities
        self._desk = desk
        self._feed = feed
        self._runtime_name = runtime_name
        self._write_logs = write_logs
        self._stale: tuple[float, list[v1.PodSandbox], list[v1.Container]] | None = None

    def freeze_lists(self, seconds: float) -> None:
        """For so long, list calls show the node as it is now."""
        until = trio.current_time() + seconds
        self._stale = None
        self._stale = (until, self._sandbox_entries(), self._container_entries())

    # The runtime itself

    async def version(self, version_request: v1.VersionRequest) -> v1.VersionResponse:
        async def effect() -> v1.VersionResponse:
            return v1.VersionResponse(
                version="0.1.0", runtime_name=self._runtime_name, runtime_version="1.0.0", runtime_api_version="v1"
            )

        return await self._desk.serve("Version", (), effect)

    async def status(self, status_request: v1.StatusRequest) -> v1.StatusResponse:
        async def effect() -> v1.StatusResponse:
            conditions = [self.runtime_ready, self.network_ready]
            reply = v1.StatusResponse(status=v1.RuntimeStatus(conditions=conditions))
            self._abilities.describe(reply)
            return reply

        return await self._desk.serve("Status", (), effect)

    async def runtime_config(self, runtime_config_request: v1.RuntimeConfigRequest) -> v1.RuntimeConfigResponse:
        async def effect() -> v1.RuntimeConfigResponse:
            return v1.RuntimeConfigResponse(linux=v1.LinuxRuntimeConfiguration(cgroup_driver=self.cgroup_driver))

        return await self._desk.serve("RuntimeConfig", (), effect)

    async def update_runtime_config(
        self, update_runtime_config_request: v1.UpdateRuntimeConfigRequest
    ) -> v1.UpdateRuntimeConfigResponse:
        async def effect() -> v1.UpdateRuntimeConfigResponse:
            return v1.UpdateRuntimeConfigResponse()

        return await self._desk.serve("UpdateRuntimeConfig", (), effect)

    # Sandboxes

    async def run_pod_sandbox(self, run_pod_sandbox_request: v1.RunPodSandboxRequest) -> v1.RunPodSandboxResponse:
        request = run_pod_sandbox_request

        async def effect() -> v1.RunPodSandboxResponse:
            self._abilities.check_handler(request.runtime_handler)
            if not self.network_ready.status:
                text = (
                    f"failed to setup network for sandbox: {self.network_ready.message or 'cni plugin not initialized'}"
                )
                raise GRPCError(Status.UNKNOWN, text)
            sandbox = self._machine.run_sandbox(request.config, request.runtime_handler)
            return v1.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

        metadata = request.config.metadata
        return await self._desk.serve("RunPodSandbox", (metadata.uid, metadata.name), effect)

    async def stop_pod_sandbox(self, stop_pod_sandbox_request: v1.StopPodSandboxRequest) -> v1.StopPodSandboxResponse:
        sandbox_id = stop_pod_sandbox_request.pod_sandbox_id

        async def effect() -> v1.StopPodSandboxResponse:
            sandbox = self._machine.sandboxes.get(sandbox_id)
            if sandbox is not None:
                await self._machine.stop_sandbox(sandbox)
            return v1.StopPodSandboxResponse()

        return await self._desk.serve("StopPodSandbox", (sandbox_id,), effect)

    async def remove_pod_sandbox(
        self, remove_pod_sandbox_request: v1.RemovePodSandboxRequest
    ) -> v1.RemovePodSandboxResponse:
        sandbox_id = remove_pod_sandbox_request.pod_sandbox_id

        async def effect() -> v1.RemovePodSandboxResponse:
            sandbox = self._machine.sandboxes.get(sandbox_id)
            if sandbox is not None:
                await self._machine.remove_sandbox(sandbox)
            return v1.RemovePodSandboxResponse()

        return await self._desk.serve("RemovePodSandbox", (sandbox_id,), effect)

    async def pod_sandbox_status(
        self, pod_sandbox_status_request: v1.PodSandboxStatusRequest
    ) -> v1.PodSandboxStatusResponse:
        request = pod_sandbox_status_request

        async def effect() -> v1.PodSandboxStatusResponse:
            self._machine.settle()
            sandbox = self._machine.find_sandbox(request.pod_sandbox_id)
            reply = v1.PodSandboxStatusResponse(status=listing.sandbox_status(sandbox))
            if request.verbose:
                reply.info = listing.sandbox_info(sandbox)
            if self._feed.supported:
                reply.containers_statuses = [self._container_status(one) for one in sandbox.containers.values()]
                reply.timestamp = self._machine.timestamp()
            return reply

        return await self._desk.serve("PodSandboxStatus", (request.pod_sandbox_id,), effect)

    async def list_pod_sandbox(self, list_pod_sandbox_request: v1.ListPodSandboxRequest) -> v1.ListPodSandboxResponse:
        async def effect() -> v1.ListPodSandboxResponse:
            chosen = list_pod_sandbox_request.filter
            entries = listing.filter_sandboxes(self._sandbox_entries(chosen.label_selector.get(POD_UID)), chosen)
            return v1.ListPodSandboxResponse(items=entries)

        return await self._desk.serve("ListPodSandbox", (), effect)

    async def update_pod_sandbox_resources(
        self, update_pod_sandbox_resources_request: v1.UpdatePodSandboxResourcesRequest
    ) -> v1.UpdatePodSandboxResourcesResponse:
        request = update_pod_sandbox_resources_request
        sandbox_id = request.pod_sandbox_id

        async def effect() -> v1.UpdatePodSandboxResourcesResponse:
            self._machine.find_sandbox(sandbox_id).resources = request.resources
            return v1.UpdatePodSandboxResourcesResponse()

        return await self._desk.serve("UpdatePodSandboxResources", (sandbox_id,), effect)

    # Containers

    async def create_container(self, create_container_request: v1.CreateContainerRequest) -> v1.CreateContainerResponse:
        request = create_container_request

        async def effect() -> v1.CreateContainerResponse:
            sandbox = self._machine.find_sandbox(request.pod_sandbox_id)
            self._abilities.check_container(request.config, sandbox.runtime_handler, self._images)
            container = self._machine.create_container(sandbox, request.config)
            if self._abilities.supplemental_groups_policy:
                container.user = container_user(container.config, container.image)
            return v1.CreateContainerResponse(container_id=container.id)

        return await self._desk.serve("CreateContainer", (request.pod_sandbox_id, request.config.metadata.name), effect)

    async def start_container(self, start_container_request: v1.StartContainerRequest) -> v1.StartContainerResponse:
        container_id = start_container_request.container_id

        async def effect() -> v1.StartContainerResponse:
            container = self._machine.find_container(container_id)
            self._machine.start_container(container)
            self._touch_log(listing.log_path(container))
            return v1.StartContainerResponse()

        deadline = trio.current_effective_deadline()
        try:
            return await self._desk.serve("StartContainer", (container_id,), effect)
        except trio.Cancelled:
            self._machine.give_up_start(container_id, TOO_SLOW if trio.current_time() >= deadline else CUT_OFF)
            raise

    async def stop_container(self, stop_container_request: v1.StopContainerRequest) -> v1.StopContainerResponse:
        request = stop_container_request

        async def effect() -> v1.StopContainerResponse:
            container = self._machine.containers.get(request.container_id)
            if container is not None:
                await self._machine.stop_container(container, request.timeout)
            return v1.StopContainerResponse()

        return await self._desk.serve("StopContainer", (request.container_id,), effect)

    async def remove_container(self, remove_container_request: v1.RemoveContainerRequest) -> v1.RemoveContainerResponse:
        container_id = remove_container_request.container_id

        async def effect() -> v1.RemoveContainerResponse:
            container = self._machine.containers.get(container_id)
            if container is not None:
                await self._machine.remove_container(container)
            return v1.RemoveContainerResponse()

        return await self._desk.serve("RemoveContainer", (container_id,), effect)

    async def list_containers(self, list_containers_request: v1.ListContainersRequest) -> v1.ListContainersResponse:
        async def effect() -> v1.ListContainersResponse:
            chosen = list_containers_request.filter
            entries = listing.filter_containers(self._container_entries(chosen.label_selector.get(POD_UID)), chosen)
            return v1.ListContainersResponse(containers=entries)

        return await self._desk.serve("ListContainers", (), effect)

    async def container_status(self, container_status_request: v1.ContainerStatusRequest) -> v1.ContainerStatusResponse:
        request = container_status_request

        async def effect() -> v1.ContainerStatusResponse:
            container = self._machine.find_container(request.container_id)
            return v1.ContainerStatusResponse(
                status=self._container_status(container),
                info=listing.container_info(container) if request.verbose else {},
            )

        return await self._desk.serve("ContainerStatus", (request.container_id,), effect)

    def _container_status(self, container: Container) -> v1.ContainerStatus:
        status = listing.container_status(container)
        if not self._abilities.container_resources:
            status.resources = v1.ContainerResources()
        return status

    async def update_container_resources(
        self, update_container_resources_request: v1.UpdateContainerResourcesRequest
    ) -> v1.UpdateContainerResourcesResponse:
        request = update_container_resources_request

        async def effect() -> v1.UpdateContainerResourcesResponse:
            container = self._machine.find_container(request.container_id)
            if container.state is EXITED:
                raise GRPCError(Status.UNKNOWN, "container is in CONTAINER_EXITED state")
            if 0 < request.linux.memory_limit_in_bytes < container.memory_used:
                raise GRPCError(Status.UNKNOWN, "memory.limit_in_bytes: device or resource busy")
            container.resources = v1.ContainerResources(linux=request.linux)
            return v1.UpdateContainerResourcesResponse()

        return await self._desk.serve("UpdateContainerResources", (request.container_id,), effect)

    async def container_stats(self, container_stats_request: v1.ContainerStatsRequest) -> v1.ContainerStatsResponse:
        container_id = container_stats_request.container_id

        async def effect() -> v1.ContainerStatsResponse:
            container = self._machine.find_container(container_id)
            if container.state is not RUNNING:
                raise GRPCError(Status.UNKNOWN, f"failed to decode container metrics for {container_id!r}")
            used = container.memory_used
            memory = v1.MemoryUsage(
                timestamp=self._machine.timestamp(),
                usage_bytes=v1.UInt64Value(value=used),
                working_set_bytes=v1.UInt64Value(value=used),
            )
            return v1.ContainerStatsResponse(stats=v1.ContainerStats(memory=memory))

        return await self._desk.serve("ContainerStats", (container_id,), effect)

    async def reopen_container_log(
        self, reopen_container_log_request: v1.ReopenContainerLogRequest
    ) -> v1.ReopenContainerLogResponse:
        container_id = reopen_container_log_request.container_id

        async def effect() -> v1.ReopenContainerLogResponse:
            container = self._machine.find_container(container_id)
            if container.state is not RUNNING:
                raise GRPCError(Status.UNKNOWN, "container is not running")
            self._touch_log(listing.log_path(container))
            return v1.ReopenContainerLogResponse()

        return await self._desk.serve("ReopenContainerLog", (container_id,), effect)

    async def exec_sync(self, exec_sync_request: v1.ExecSyncRequest) -> v1.ExecSyncResponse:
        request = exec_sync_request

        async def effect() -> v1.ExecSyncResponse:
            container = self._machine.find_container(request.container_id)
            if container.state is not RUNNING:
                raise GRPCError(Status.UNKNOWN, f"container is in {container.state.name} state")
            outcome = container.program.exec(request.cmd)
            seconds = min(outcome.seconds, request.timeout or outcome.seconds)
            if await self._machine.wait_ended(container, seconds) and outcome.seconds > 0:
                return v1.ExecSyncResponse(exit_code=STOPPED_BY_KILL)
            if seconds < outcome.seconds:
                text = f"failed to exec in container: timeout {request.timeout}s exceeded: context deadline exceeded"
                raise GRPCError(Status.DEADLINE_EXCEEDED, text)
            return v1.ExecSyncResponse(stdout=outcome.stdout, stderr=outcome.stderr, exit_code=outcome.exit_code)

        return await self._desk.serve("ExecSync", (request.container_id, *request.cmd), effect)

    async def get_container_events(
        self, get_events_request: v1.GetEventsRequest
    ) -> AsyncIterator[v1.ContainerEventResponse]:
        async def effect() -> AsyncIterator[v1.ContainerEventResponse]:
            if not self._feed.supported:
                raise GRPCError(Status.UNIMPLEMENTED)
            return self._feed.subscribe()

        async for event in await self._desk.serve("GetContainerEvents", (), effect):
            yield event

    # Inside

    def _lists_are_stale(self) -> bool:
        if self._stale is not None and trio.current_time() >= self._stale[0]:
            self._stale = None
        return self._stale is not None

    def _sandbox_entries(self, pod_uid: str | None = None) -> list[v1.PodSandbox]:
        """Of one pod or of all. Agents mostly ask for one pod, and there may be ten thousand."""
        if self._lists_are_stale() and self._stale is not None:
            return self._stale[1]
        machine = self._machine
        sandboxes = machine.sandboxes if pod_uid is None else machine.sandboxes_by_pod.get(pod_uid, {})
        return [listing.sandbox_entry(sandbox) for sandbox in sandboxes.values()]

    def _container_entries(self, pod_uid: str | None = None) -> list[v1.Container]:
        self._machine.settle()
        if self._lists_are_stale() and self._stale is not None:
            return self._stale[2]
        machine = self._machine
        containers = machine.containers if pod_uid is None else machine.containers_by_pod.get(pod_uid, {})
        return [listing.container_entry(container) for container in containers.values()]

    def _touch_log(self, path: str) -> None:
        """Make the (empty) log file, where the simulation is asked to. Tiny, so it is not sent to a thread."""
        if self._write_logs and path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
