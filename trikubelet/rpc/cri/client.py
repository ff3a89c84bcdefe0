"""The container runtime as the agent calls it: one method per CRI call, flat arguments, a deadline each.

The methods add nothing to the calls' meaning. They fix three things that every caller would otherwise repeat:

- the deadline (kubelet: cri-client's `remoteRuntimeService`): two minutes, twice that for a new sandbox, and for calls
  that carry a timeout of their own, that timeout on top;
- the failure, always a `CRIError`;
- the check that a reply has the fields that nobody can do without (ids, names, creation times).

List replies go through an `EntryCache`: entries that did not change since the last relist are the very same objects.
Treat what the list methods return as read-only.

Every method is cancellable at any time; the runtime is then told to stop, but may have done its work already.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import trio
from grpclib.exceptions import GRPCError

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.caller import DEFAULT_TIMEOUT, CallChannel, CallMetrics, StubMethod, call, call_raw, malformed
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.cri.list_cache import CacheStatistics, EntryCache, RawReply, T
from trikubelet.rpc.cri.required_fields import (
    missing_in_container_status,
    missing_in_sandbox_status,
    missing_in_version,
)
from trikubelet.telemetry.metrics import Counts, Histograms

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

__all__ = ["DEFAULT_TIMEOUT", "CRIError", "ImageClient", "RuntimeClient"]


class RuntimeClient:
    """CRI's RuntimeService over a running channel. `timeout`: seconds for an ordinary call."""

    def __init__(self, channel: CallChannel, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._channel = channel
        self._timeout = timeout
        self._stub = v1.RuntimeServiceStub(cast("Any", channel))
        self.metrics = CallMetrics()
        self.sandbox_durations = Histograms()
        """Seconds that RunPodSandbox took, by runtime handler."""
        self.sandbox_errors: Counts = Counter()
        self.on_removed: Callable[[str], object] = lambda _: None
        """Told of each container and sandbox that was removed through this client, by id."""
        self.owns: Callable[[v1.PodSandbox | v1.Container], bool] | None = None
        """Tells the agent's sandboxes and containers from those of others on the same runtime, which the lists leave
        out. None: all are the agent's."""
        self._containers: EntryCache[v1.Container] = EntryCache(v1.Container.FromString, map_fields=(8, 9))
        self._sandboxes: EntryCache[v1.PodSandbox] = EntryCache(v1.PodSandbox.FromString, map_fields=(5, 6))

    # The runtime itself

    async def version(self) -> v1.VersionResponse:
        reply = await self._call("Version", self._stub.version, v1.VersionRequest(version="v1"))
        _require("Version", missing_in_version(reply))
        return reply

    async def status(self, verbose: bool = False) -> v1.StatusResponse:
        """The runtime's conditions; a reply always has RuntimeReady and NetworkReady."""
        reply = await self._call("Status", self._stub.status, v1.StatusRequest(verbose=verbose))
        if len(reply.status.conditions) < 2:
            raise malformed("Status", f"expected RuntimeReady and NetworkReady, got {reply.status.conditions}")
        return reply

    async def runtime_config(self) -> v1.RuntimeConfigResponse:
        """Which cgroup driver the runtime uses. Older runtimes raise `unimplemented`."""
        return await self._call("RuntimeConfig", self._stub.runtime_config, v1.RuntimeConfigRequest())

    async def update_runtime_config(self, pod_cidr: str) -> None:
        config = v1.RuntimeConfig(network_config=v1.NetworkConfig(pod_cidr=pod_cidr))
        request = v1.UpdateRuntimeConfigRequest(runtime_config=config)
        await self._call("UpdateRuntimeConfig", self._stub.update_runtime_config, request)

    # Sandboxes

    async def run_pod_sandbox(self, config: v1.PodSandboxConfig, runtime_handler: str = "") -> str:
        """Create and start a sandbox; returns its id. Has twice the ordinary time."""
        request = v1.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        began, failed = trio.current_time(), True
        try:
            reply = await self._call("RunPodSandbox", self._stub.run_pod_sandbox, request, timeout=2 * self._timeout)
            failed = False
        finally:
            self.sandbox_durations.observe((runtime_handler,), trio.current_time() - began)
            self.sandbox_errors[(runtime_handler,)] += failed
        if not reply.pod_sandbox_id:
            raise malformed("RunPodSandbox", f"no id for the sandbox of pod {config.metadata.name!r}")
        return reply.pod_sandbox_id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Kill what runs in it and free its network. Works on stopped and, with most runtimes, on unknown ones."""
        request = v1.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("StopPodSandbox", self._stub.stop_pod_sandbox, request)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        request = v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        await self._call("RemovePodSandbox", self._stub.remove_pod_sandbox, request)
        self.on_removed(sandbox_id)

    async def pod_sandbox_status(self, sandbox_id: str, verbose: bool = False) -> v1.PodSandboxStatusResponse:
        request = v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        reply = await self._call("PodSandboxStatus", self._stub.pod_sandbox_status, request)
        _require("PodSandboxStatus", missing_in_sandbox_status(reply.status))
        return reply

    async def list_pod_sandboxes(self, filter: v1.PodSandboxFilter | None = None) -> list[v1.PodSandbox]:  # noqa: A002
        """All of the agent's sandboxes, or those that the filter lets through. Shared objects: do not change them."""
        request = v1.ListPodSandboxRequest() if filter is None else v1.ListPodSandboxRequest(filter=filter)
        listed = await self._list("ListPodSandbox", request, self._sandboxes, complete=filter is None)
        return listed if self.owns is None else [sandbox for sandbox in listed if self.owns(sandbox)]

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: str,
        *,
        overhead: v1.LinuxContainerResources | None = None,
        resources: v1.LinuxContainerResources | None = None,
    ) -> None:
        request = v1.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id)
        if overhead is not None:
            request.overhead = overhead
        if resources is not None:
            request.resources = resources
        await self._call("UpdatePodSandboxResources", self._stub.update_pod_sandbox_resources, request)

    # Containers

    async def create_container(
        self, sandbox_id: str, config: v1.ContainerConfig, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        """Create a container in a sandbox without starting it; returns its id."""
        request = v1.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
        reply = await self._call("CreateContainer", self._stub.create_container, request)
        if not reply.container_id:
            raise malformed("CreateContainer", f"no id for container {config.metadata.name!r}")
        return reply.container_id

    async def start_container(self, container_id: str) -> None:
        request = v1.StartContainerRequest(container_id=container_id)
        await self._call("StartContainer", self._stub.start_container, request)

    async def stop_container(self, container_id: str, timeout: int) -> None:
        """Ask it to end, kill it after `timeout` seconds (0: at once), and wait for its end."""
        request = v1.StopContainerRequest(container_id=container_id, timeout=timeout)
        await self._call("StopContainer", self._stub.stop_container, request, timeout=self._timeout + timeout)

    async def remove_container(self, container_id: str) -> None:
        """Forget an ended container. An unknown id is no error; a running container is killed or refused."""
        request = v1.RemoveContainerRequest(container_id=container_id)
        await self._call("RemoveContainer", self._stub.remove_container, request)
        self.on_removed(container_id)

    async def list_containers(self, filter: v1.ContainerFilter | None = None) -> list[v1.Container]:  # noqa: A002
        """All of the agent's containers, or those that the filter lets through. Shared objects: do not change them."""
        request = v1.ListContainersRequest() if filter is None else v1.ListContainersRequest(filter=filter)
        listed = await self._list("ListContainers", request, self._containers, complete=filter is None)
        return listed if self.owns is None else [container for container in listed if self.owns(container)]

    async def list_everyones_containers(self) -> list[v1.Container]:
        """All containers of the runtime, also those of others. Shared objects: do not change them."""
        return await self._list("ListContainers", v1.ListContainersRequest(), self._containers, complete=True)

    async def container_status(self, container_id: str, verbose: bool = False) -> v1.ContainerStatusResponse:
        """`verbose` adds `info`, whose key "info" holds JSON with the pid (containerd and CRI-O)."""
        request = v1.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        reply = await self._call("ContainerStatus", self._stub.container_status, request)
        _require("ContainerStatus", missing_in_container_status(reply.status))
        return reply

    async def update_container_resources(
        self, container_id: str, linux: v1.LinuxContainerResources, annotations: dict[str, str] | None = None
    ) -> None:
        request = v1.UpdateContainerResourcesRequest(
            container_id=container_id, linux=linux, annotations=annotations or {}
        )
        await self._call("UpdateContainerResources", self._stub.update_container_resources, request)

    async def reopen_container_log(self, container_id: str) -> None:
        request = v1.ReopenContainerLogRequest(container_id=container_id)
        await self._call("ReopenContainerLog", self._stub.reopen_container_log, request)

    async def checkpoint_container(self, container_id: str, location: str, timeout: float = 0) -> None:
        """Write a checkpoint archive to `location`. A timeout below the ordinary one is raised to it."""
        limit = max(timeout, self._timeout)
        request = v1.CheckpointContainerRequest(container_id=container_id, location=location, timeout=int(limit))
        await self._call("CheckpointContainer", self._stub.checkpoint_container, request, timeout=limit)

    # Commands and streams

    async def exec_sync(self, container_id: str, cmd: Sequence[str], timeout: float) -> v1.ExecSyncResponse:
        """Run a command and wait for it. `timeout` in seconds, 0: unlimited, here and there.

        An exit code other than 0 is no error. A command that ran too long raises CRIError with `timed_out`.
        """
        request = v1.ExecSyncRequest(container_id=container_id, cmd=list(cmd), timeout=int(timeout))
        limit = self._timeout + timeout if timeout else None
        return await self._call_within("ExecSync", self._stub.exec_sync, request, limit)

    async def exec(self, request: v1.ExecRequest) -> str:
        """Prepare a command with streams; returns the URL of the runtime's streaming server."""
        return (await self._call("Exec", self._stub.exec, request)).url

    async def attach(self, request: v1.AttachRequest) -> str:
        """Prepare streams to the main process; returns the URL of the runtime's streaming server."""
        return (await self._call("Attach", self._stub.attach, request)).url

    async def port_forward(self, request: v1.PortForwardRequest) -> str:
        """Prepare connections into the sandbox; returns the URL of the runtime's streaming server."""
        return (await self._call("PortForward", self._stub.port_forward, request)).url

    async def container_events(self) -> AsyncGenerator[v1.ContainerEventResponse, None]:
        """Container events as they happen, until the runtime ends the stream. Has no deadline.

        Read it within `contextlib.aclosing`, so that leaving the loop resets the call. A broken connection raises
        CRIError `unavailable`; a runtime without the call, `unimplemented`.
        """
        rpc, failed = "GetContainerEvents", True
        token = self.metrics.began(rpc)
        async with aclosing(cast("Any", self._stub.get_container_events(v1.GetEventsRequest()))) as events:
            try:
                async for event in events:
                    yield event
                failed = False
            except GRPCError as error:
                raise CRIError(rpc, error.status, error.message or "") from error
            finally:
                self.metrics.ended(token, failed=failed)

    # Statistics

    async def container_stats(self, container_id: str) -> v1.ContainerStats:
        request = v1.ContainerStatsRequest(container_id=container_id)
        return (await self._call("ContainerStats", self._stub.container_stats, request)).stats

    async def list_container_stats(
        self,
        filter: v1.ContainerStatsFilter | None = None,  # noqa: A002
    ) -> list[v1.ContainerStats]:
        request = v1.ListContainerStatsRequest() if filter is None else v1.ListContainerStatsRequest(filter=filter)
        return (await self._call("ListContainerStats", self._stub.list_container_stats, request)).stats

    async def pod_sandbox_stats(self, sandbox_id: str) -> v1.PodSandboxStats:
        request = v1.PodSandboxStatsRequest(pod_sandbox_id=sandbox_id)
        return (await self._call("PodSandboxStats", self._stub.pod_sandbox_stats, request)).stats

    async def list_pod_sandbox_stats(
        self,
        filter: v1.PodSandboxStatsFilter | None = None,  # noqa: A002
    ) -> list[v1.PodSandboxStats]:
        request = v1.ListPodSandboxStatsRequest() if filter is None else v1.ListPodSandboxStatsRequest(filter=filter)
        return (await self._call("ListPodSandboxStats", self._stub.list_pod_sandbox_stats, request)).stats

    async def list_container_stats_data(self) -> bytes:
        """The bytes of a `ListContainerStatsResponse` for all containers, for those who read them elsewhere."""
        return (await self._raw("ListContainerStats", v1.ListContainerStatsRequest())).data

    async def list_pod_sandbox_stats_data(self) -> bytes:
        """The bytes of a `ListPodSandboxStatsResponse` for all sandboxes."""
        return (await self._raw("ListPodSandboxStats", v1.ListPodSandboxStatsRequest())).data

    async def list_metric_descriptors(self) -> list[v1.MetricDescriptor]:
        request = v1.ListMetricDescriptorsRequest()
        return (await self._call("ListMetricDescriptors", self._stub.list_metric_descriptors, request)).descriptors

    async def list_pod_sandbox_metrics(self) -> list[v1.PodSandboxMetrics]:
        request = v1.ListPodSandboxMetricsRequest()
        return (await self._call("ListPodSandboxMetrics", self._stub.list_pod_sandbox_metrics, request)).pod_metrics

    def list_statistics(self) -> dict[str, CacheStatistics]:
        """How much of the list replies needed no parsing, per list call."""
        return {"ListContainers": self._containers.statistics(), "ListPodSandbox": self._sandboxes.statistics()}

    async def _call(self, rpc: str, method: StubMethod[T], request: object, *, timeout: float | None = None) -> T:
        limit = self._timeout if timeout is None else timeout
        return await call(rpc, method, request, timeout=limit, metrics=self.metrics)

    async def _call_within(self, rpc: str, method: StubMethod[T], request: object, limit: float | None) -> T:
        """As `_call`, where None means no limit."""
        return await call(rpc, method, request, timeout=limit, metrics=self.metrics)

    async def _list(self, rpc: str, request: object, cache: EntryCache[T], *, complete: bool) -> list[T]:
        reply = await self._raw(rpc, request)
        try:
            return cache.entries(reply.data, complete=complete)
        except ValueError as error:
            raise malformed(rpc, str(error)) from error

    async def _raw(self, rpc: str, request: object) -> RawReply:
        route = f"/runtime.v1.RuntimeService/{rpc}"
        return await call_raw(rpc, self._channel, route, request, RawReply, timeout=self._timeout, metrics=self.metrics)


class ImageClient:
    """CRI's ImageService over a running channel. `timeout`: seconds for every call but a pull."""

    def __init__(self, channel: CallChannel, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._timeout = timeout
        self._stub = v1.ImageServiceStub(cast("Any", channel))
        self.metrics = CallMetrics()

    async def list_images(self, filter: v1.ImageFilter | None = None) -> list[v1.Image]:  # noqa: A002
        request = v1.ListImagesRequest() if filter is None else v1.ListImagesRequest(filter=filter)
        return (await self._call("ListImages", self._stub.list_images, request, self._timeout)).images

    async def image_status(self, spec: v1.ImageSpec) -> v1.Image | None:
        """The image that a reference names, None where the runtime does not have it."""
        response = await self.image_status_response(spec)
        return response.image if response.image.id else None

    async def image_status_response(self, spec: v1.ImageSpec, verbose: bool = False) -> v1.ImageStatusResponse:
        """The whole reply. An image that is not there has an empty id."""
        request = v1.ImageStatusRequest(image=spec, verbose=verbose)
        reply = await self._call("ImageStatus", self._stub.image_status, request, self._timeout)
        if reply.image != v1.Image() and not (reply.image.id and reply.image.size):
            raise malformed("ImageStatus", f"image {spec.image!r} came without id or size")
        return reply

    async def pull_image(
        self,
        spec: v1.ImageSpec,
        auth: v1.AuthConfig | None = None,
        sandbox_config: v1.PodSandboxConfig | None = None,
    ) -> str:
        """Pull an image; returns the reference to create containers with.

        There is no deadline, since no time is right for every image and line: the runtime gives up when a pull makes
        no progress. Cancelling ends the pull.
        """
        request = v1.PullImageRequest(image=spec)
        if auth is not None:
            request.auth = auth
        if sandbox_config is not None:
            request.sandbox_config = sandbox_config
        reply = await self._call("PullImage", self._stub.pull_image, request, None)
        if not reply.image_ref:
            raise malformed("PullImage", f"no reference for image {spec.image!r}")
        return reply.image_ref

    async def remove_image(self, spec: v1.ImageSpec) -> None:
        """Remove an image with all its tags. An unknown one is no error."""
        request = v1.RemoveImageRequest(image=spec)
        await self._call("RemoveImage", self._stub.remove_image, request, self._timeout)

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        """Usage of the filesystems that hold images and writable layers."""
        return await self._call("ImageFsInfo", self._stub.image_fs_info, v1.ImageFsInfoRequest(), self._timeout)

    async def _call(self, rpc: str, method: StubMethod[T], request: object, limit: float | None) -> T:
        return await call(rpc, method, request, timeout=limit, metrics=self.metrics)


def _require(rpc: str, missing: list[str]) -> None:
    if missing:
        raise malformed(rpc, f"{', '.join(missing)} not set")
