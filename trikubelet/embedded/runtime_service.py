"""CRI's RuntimeService on the embedded runtime: requests in, messages out. What happens is in `lifecycle.py`.

Idempotent where the CRI says so: stopping what has stopped and removing what is gone succeed.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from grpclib import GRPCError
from grpclib.const import Status

from trikubelet import __version__
from trikubelet.embedded import messages, selinux
from trikubelet.embedded.cdi import CDI_FOLDERS, spell_out_cdi_devices
from trikubelet.embedded.confinement import ConfinementError, pod_level
from trikubelet.embedded.container_spec import (
    SpecContext,
    SpecError,
    changed_limits,
    container_spec,
    stop_signal,
)
from trikubelet.embedded.exec_sync import CommandTimeoutError, collect_output
from trikubelet.embedded.inventory import UnknownIdError
from trikubelet.embedded.keeper_client import KeeperError, KeeperLostError
from trikubelet.embedded.lifecycle import Lifecycle, NotEndedError, StartFailedError, WrongStateError
from trikubelet.embedded.metrics import PodMetrics, descriptors
from trikubelet.embedded.network.choice import HOST, Choice
from trikubelet.embedded.network.model import NetworkError
from trikubelet.embedded.records import (
    ContainerImage,
    ContainerRecord,
    Phase,
    RecordStore,
    SandboxNetwork,
    SandboxRecord,
)
from trikubelet.embedded.sandbox_files import (
    SandboxConfigError,
    expects_container,
    pod_network_spec,
    sandbox_request,
)
from trikubelet.embedded.stream_calls import StreamCalls, StreamRequestError
from trikubelet.embedded.streaming_server import NotServingError, StreamingServer, TooManyTokensError
from trikubelet.embedded.usage_messages import UsageMessages
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from trikubelet.embedded.images.model import StoredImage


RUNTIME_NAME: Final = "trikubelet-embedded"
_ITEMS_PER_MESSAGE: Final = 100
_NETWORK_NOTE: Final = "pods share the node's network: no addresses or port mappings of their own"
_DEVICES_NOTE: Final = (
    "devices: who may make device files (MKNOD), or is given a folder with some, can open the machine's"
)
_NETWORK_NOT_READY: Final = "NetworkPluginNotReady"
"""The reason that kubelets and tools know."""

T = TypeVar("T")


class EmbeddedRuntimeService(v1.RuntimeServiceBase):
    """Serves one runtime folder."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        store: RecordStore,
        resolve_image: Callable[[str], StoredImage | None],
        *,
        streaming: StreamingServer,
        address: Callable[[], str],
        hidden: Sequence[Path] = (),
        cdi_folders: Sequence[Path] = CDI_FOLDERS,
    ) -> None:
        """`hidden`: what containers of the host image do not see. `cdi_folders`: what names of CDI devices mean."""
        self._lifecycle = lifecycle
        self._inventory = lifecycle.inventory
        self._store = store
        self._resolve_image = resolve_image
        self._address = address
        self._hidden = hidden
        self._cdi_folders = cdi_folders
        self._usage = UsageMessages(lifecycle, store)
        self._metrics = PodMetrics(lifecycle, store, self._usage)
        self._streams = StreamCalls(lifecycle, streaming)

    # -- the runtime itself ------------------------------------------------------------------------------------------

    async def version(self, version_request: v1.VersionRequest) -> v1.VersionResponse:
        return v1.VersionResponse(
            version="0.1.0",
            runtime_name=RUNTIME_NAME,
            runtime_version=__version__,
            runtime_api_version="v1",
        )

    async def status(self, status_request: v1.StatusRequest) -> v1.StatusResponse:
        abilities = self._lifecycle.abilities
        ready = abilities is not None
        network = await self._lifecycle.networks.choose(abilities)
        conditions = [
            v1.RuntimeCondition(
                type="RuntimeReady", status=ready, reason="" if ready else "NoKeeper",
                message="" if ready else "the process that keeps the containers is not there",
            ),
            await self._network_condition(network),
        ]  # fmt: skip
        response = v1.StatusResponse(
            status=v1.RuntimeStatus(conditions=conditions),
            runtime_handlers=[
                v1.RuntimeHandler(
                    name="",
                    features=v1.RuntimeHandlerFeatures(recursive_read_only_mounts=ready),
                )
            ],
            features=v1.RuntimeFeatures(supplemental_groups_policy=True),
        )
        if status_request.verbose:
            response.info = {"config": json.dumps(self.capabilities())}
        return response

    async def _network_condition(self, network: Choice) -> v1.RuntimeCondition:
        if network.way == HOST:
            note = f"{_NETWORK_NOTE} ({network.why})"
            return v1.RuntimeCondition(type="NetworkReady", status=True, reason="HostNetwork", message=note)
        problem = await self._lifecycle.networks.problem(network)
        return v1.RuntimeCondition(
            type="NetworkReady",
            status=not problem,
            reason=_NETWORK_NOT_READY if problem else "",
            message=f"the pods' network ({network.way}) is not ready: {problem}" if problem else "",
        )

    def capabilities(self) -> dict[str, Any]:
        """What this machine lets the runtime do, for `Status` and for people. Empty before the keeper is there."""
        abilities, network = self._lifecycle.abilities, self._lifecycle.networks.chosen
        if abilities is None:
            return {}
        no_labels = selinux.why_not(abilities)
        return {
            "mode": abilities.mode,
            "namespaces": [
                *(["pid", "mount", "uts", "ipc"] if abilities.isolated else []),
                *([] if network.way == HOST else ["network"]),
            ],
            "network": network.way,
            "rootfs": "overlay" if abilities.overlay else "read-only" if abilities.isolated else "host",
            "limits": list(abilities.limits),
            "notIsolated": [
                *([f"{_NETWORK_NOTE} ({network.why})"] if network.way == HOST else []),
                *([] if abilities.seccomp else ["no seccomp"]),
                *([f"no SELinux labels: {no_labels}"] if no_labels else []),
                *([] if abilities.limits else ["no resource limits: no writable cgroup hierarchy"]),
                *([_DEVICES_NOTE] if abilities.mode == "root" and not abilities.devices_confined else []),
                *([] if abilities.isolated else ["processes, files and host names: containers are plain processes"]),
            ],
            "problems": list(abilities.problems),
            "keeperPid": abilities.pid,
        }

    async def runtime_config(self, runtime_config_request: v1.RuntimeConfigRequest) -> v1.RuntimeConfigResponse:
        return v1.RuntimeConfigResponse(linux=v1.LinuxRuntimeConfiguration(cgroup_driver=v1.CgroupDriver.CGROUPFS))

    async def update_runtime_config(
        self, update_runtime_config_request: v1.UpdateRuntimeConfigRequest
    ) -> v1.UpdateRuntimeConfigResponse:
        """The cluster's addresses for this node's pods, which the bridge gives to new ones."""
        with _errors():
            await self._lifecycle.networks.set_pod_cidr(
                update_runtime_config_request.runtime_config.network_config.pod_cidr
            )
        return v1.UpdateRuntimeConfigResponse()

    # -- sandboxes ---------------------------------------------------------------------------------------------------

    async def run_pod_sandbox(self, run_pod_sandbox_request: v1.RunPodSandboxRequest) -> v1.RunPodSandboxResponse:
        config, handler = run_pod_sandbox_request.config, run_pod_sandbox_request.runtime_handler
        if handler:
            raise GRPCError(Status.INVALID_ARGUMENT, f'no runtime for "{handler}" is configured')
        self._reserve_sandbox_name(config)
        record = SandboxRecord(os.urandom(32).hex(), config, self._lifecycle.now())
        with _errors():
            record.network = await self._network_for(record.id, config)
            own_network = record.network is not None
            abilities = self._lifecycle.abilities
            as_root = abilities is not None and abilities.mode == "root"
            if abilities is not None:
                of_pod = config.linux.security_context.selinux_options
                record.selinux_level = pod_level(of_pod, self._inventory.selinux_levels, abilities)
            request = sandbox_request(record.id, config, own_network=own_network, all_groups=as_root)
            if as_root and expects_container(config):
                record.first_container = os.urandom(32).hex()
            await self._lifecycle.run_sandbox(record, request)
        return v1.RunPodSandboxResponse(pod_sandbox_id=record.id)

    async def _network_for(self, sandbox_id: str, config: v1.PodSandboxConfig) -> SandboxNetwork | None:
        """The network that the pod is to get; None for the machine's."""
        if config.linux.security_context.namespace_options.network == v1.NamespaceMode.NODE:
            return None
        choice = await self._lifecycle.networks.choose(self._lifecycle.abilities)
        return None if choice.way == HOST else SandboxNetwork(choice.way, pod_network_spec(sandbox_id, config))

    def _reserve_sandbox_name(self, config: v1.PodSandboxConfig) -> None:
        for other in self._inventory.sandboxes.values():
            if other.config.metadata == config.metadata:
                raise GRPCError(
                    Status.ALREADY_EXISTS,
                    f"pod {config.metadata.namespace}/{config.metadata.name}, attempt {config.metadata.attempt}: "
                    f"its sandbox exists already: {other.id}",
                )

    async def stop_pod_sandbox(self, stop_pod_sandbox_request: v1.StopPodSandboxRequest) -> v1.StopPodSandboxResponse:
        try:
            record = self._inventory.sandbox(stop_pod_sandbox_request.pod_sandbox_id)
        except UnknownIdError:
            return v1.StopPodSandboxResponse()
        with _errors():
            await self._lifecycle.stop_sandbox(record)
        return v1.StopPodSandboxResponse()

    async def remove_pod_sandbox(
        self, remove_pod_sandbox_request: v1.RemovePodSandboxRequest
    ) -> v1.RemovePodSandboxResponse:
        try:
            record = self._inventory.sandbox(remove_pod_sandbox_request.pod_sandbox_id)
        except UnknownIdError:
            return v1.RemovePodSandboxResponse()
        with _errors():
            await self._lifecycle.remove_sandbox(record)
        return v1.RemovePodSandboxResponse()

    async def update_pod_sandbox_resources(
        self, update_pod_sandbox_resources_request: v1.UpdatePodSandboxResourcesRequest
    ) -> v1.UpdatePodSandboxResourcesResponse:
        """There is nothing to do: the cgroup of a pod is the agent's, and a sandbox has no process."""
        with _errors():
            self._inventory.sandbox(update_pod_sandbox_resources_request.pod_sandbox_id)
        return v1.UpdatePodSandboxResourcesResponse()

    async def pod_sandbox_status(
        self, pod_sandbox_status_request: v1.PodSandboxStatusRequest
    ) -> v1.PodSandboxStatusResponse:
        with _errors():
            record = self._inventory.sandbox(pod_sandbox_status_request.pod_sandbox_id)
        response = v1.PodSandboxStatusResponse(
            status=messages.sandbox_status(record, self._address()),
            containers_statuses=[
                messages.container_status(container) for container in self._inventory.containers_of(record.id)
            ],
            timestamp=self._lifecycle.now(),
        )
        if pod_sandbox_status_request.verbose:
            response.info = messages.sandbox_info(record)
        return response

    async def list_pod_sandbox(self, list_pod_sandbox_request: v1.ListPodSandboxRequest) -> v1.ListPodSandboxResponse:
        found = self._inventory.filter_sandboxes(list_pod_sandbox_request.filter)
        return v1.ListPodSandboxResponse(items=[messages.sandbox_item(record) for record in found])

    async def stream_pod_sandboxes(
        self, stream_pod_sandboxes_request: v1.StreamPodSandboxesRequest
    ) -> AsyncIterator[v1.StreamPodSandboxesResponse]:
        for part in _parts(self._inventory.filter_sandboxes(stream_pod_sandboxes_request.filter)):
            yield v1.StreamPodSandboxesResponse(pod_sandboxes=[messages.sandbox_item(record) for record in part])

    # -- containers --------------------------------------------------------------------------------------------------

    async def create_container(self, create_container_request: v1.CreateContainerRequest) -> v1.CreateContainerResponse:
        config = create_container_request.config
        with _errors():
            # All that waits comes first: a name is reserved with the record.
            edited = await spell_out_cdi_devices(config, self._cdi_folders)
            sandbox = self._inventory.sandbox(create_container_request.pod_sandbox_id)
            if not sandbox.ready:
                raise WrongStateError(f"sandbox {sandbox.id} is not ready")
            self._reserve_container_name(sandbox, config)
            image = self._image(config)
            record = self._new_container(sandbox, config, edited, image)
            await self._lifecycle.create_container(record)
        return v1.CreateContainerResponse(container_id=record.id)

    def _reserve_container_name(self, sandbox: SandboxRecord, config: v1.ContainerConfig) -> None:
        for other in self._inventory.containers_of(sandbox.id):
            if other.config.metadata == config.metadata:
                raise GRPCError(
                    Status.ALREADY_EXISTS,
                    f"container {config.metadata.name}, attempt {config.metadata.attempt}, exists already: {other.id}",
                )

    def _image(self, config: v1.ContainerConfig) -> StoredImage:
        image = self._resolve_image(config.image.image)
        if image is None:
            raise GRPCError(Status.NOT_FOUND, f'image "{config.image.image}": not found')
        return image

    def _image_volumes(self, config: v1.ContainerConfig) -> dict[str, StoredImage]:
        """The images that it mounts, by the names that its mounts have for them, which also get the ids."""
        found = {name: self._resolve_image(name) for name in {mount.image.image for mount in config.mounts} if name}
        images = {name: image for name, image in found.items() if image is not None}
        for mount in config.mounts:
            if mount.image.image in images:
                mount.image.image_ref = images[mount.image.image].id
        return images

    def _new_container(
        self, sandbox: SandboxRecord, config: v1.ContainerConfig, edited: v1.ContainerConfig, image: StoredImage
    ) -> ContainerRecord:
        """`edited`: the configuration with all that its CDI devices want."""
        abilities = self._lifecycle.abilities
        if abilities is None:
            raise KeeperLostError("create")
        container_id = sandbox.first_container or os.urandom(32).hex()
        context = SpecContext(
            container_id=container_id,
            directory=self._store.container_folder(container_id),
            runtime_root=self._store.root,
            hidden=self._hidden,
            sandbox_id=sandbox.id,
            sandbox_folder=self._store.sandbox_folder(sandbox.id),
            sandbox=sandbox.config,
            hostname=sandbox.config.hostname or os.uname().nodename,
            abilities=abilities,
            selinux_level=sandbox.selinux_level,
        )
        return ContainerRecord(
            id=container_id,
            sandbox_id=sandbox.id,
            config=config,
            image=ContainerImage(
                name=config.image.user_specified_image or image.name,
                reference=next(iter(image.repo_digests), image.id),
                id=image.id,
            ),
            spec=container_spec(context, edited, image, self._image_volumes(config)),
            created_at=self._lifecycle.now(),
            stop_signal=stop_signal(config, image),
        )

    async def start_container(self, start_container_request: v1.StartContainerRequest) -> v1.StartContainerResponse:
        with _errors():
            await self._lifecycle.start_container(self._inventory.container(start_container_request.container_id))
        return v1.StartContainerResponse()

    async def stop_container(self, stop_container_request: v1.StopContainerRequest) -> v1.StopContainerResponse:
        try:
            record = self._inventory.container(stop_container_request.container_id)
        except UnknownIdError:
            return v1.StopContainerResponse()
        with _errors():
            await self._lifecycle.stop_container(record, max(0, stop_container_request.timeout))
        return v1.StopContainerResponse()

    async def remove_container(self, remove_container_request: v1.RemoveContainerRequest) -> v1.RemoveContainerResponse:
        try:
            record = self._inventory.container(remove_container_request.container_id)
        except UnknownIdError:
            return v1.RemoveContainerResponse()
        with _errors():
            await self._lifecycle.remove_container(record)
        return v1.RemoveContainerResponse()

    async def list_containers(self, list_containers_request: v1.ListContainersRequest) -> v1.ListContainersResponse:
        found = self._inventory.filter_containers(list_containers_request.filter)
        return v1.ListContainersResponse(containers=[messages.container_item(record) for record in found])

    async def stream_containers(
        self, stream_containers_request: v1.StreamContainersRequest
    ) -> AsyncIterator[v1.StreamContainersResponse]:
        for part in _parts(self._inventory.filter_containers(stream_containers_request.filter)):
            yield v1.StreamContainersResponse(containers=[messages.container_item(record) for record in part])

    async def container_status(self, container_status_request: v1.ContainerStatusRequest) -> v1.ContainerStatusResponse:
        with _errors():
            record = self._inventory.container(container_status_request.container_id)
        response = v1.ContainerStatusResponse(status=messages.container_status(record))
        if container_status_request.verbose:
            response.info = messages.container_info(record)
        return response

    async def update_container_resources(
        self, update_container_resources_request: v1.UpdateContainerResourcesRequest
    ) -> v1.UpdateContainerResourcesResponse:
        """Of one that has ended, only what is said of it changes, as on containerd."""
        wanted = update_container_resources_request.linux
        with _errors():
            record = self._inventory.container(update_container_resources_request.container_id)
            limits = changed_limits(record.spec["resources"], wanted)
            if record.phase is Phase.RUNNING:
                try:
                    await self._lifecycle.keeper.request("update", container=record.id, resources=limits)
                except KeeperError as error:
                    if error.kind != "not_running":
                        raise
            record.spec["resources"] = {**record.spec["resources"], **limits}
            record.config.linux.resources = messages.merged_resources(record.config.linux.resources, wanted)
            self._store.save_container(record)
        return v1.UpdateContainerResourcesResponse()

    async def reopen_container_log(
        self, reopen_container_log_request: v1.ReopenContainerLogRequest
    ) -> v1.ReopenContainerLogResponse:
        with _errors():
            record = self._inventory.container(reopen_container_log_request.container_id)
            await self._lifecycle.keeper.request("reopen_log", container=record.id)
        return v1.ReopenContainerLogResponse()

    # -- commands and streams ----------------------------------------------------------------------------------------

    async def exec_sync(self, exec_sync_request: v1.ExecSyncRequest) -> v1.ExecSyncResponse:
        if not exec_sync_request.cmd:
            raise GRPCError(Status.INVALID_ARGUMENT, "exec: no command")
        with _errors():
            record = self._inventory.container(exec_sync_request.container_id)
            if record.phase is not Phase.RUNNING:
                raise WrongStateError(f"container {record.id} is {record.phase.value}, expected running")
            result = await collect_output(
                self._lifecycle.commands, record.id, exec_sync_request.cmd, max(0, exec_sync_request.timeout)
            )
        return v1.ExecSyncResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def exec(self, exec_request: v1.ExecRequest) -> v1.ExecResponse:
        with _errors():
            return await self._streams.exec(exec_request)

    async def attach(self, attach_request: v1.AttachRequest) -> v1.AttachResponse:
        with _errors():
            return await self._streams.attach(attach_request)

    async def port_forward(self, port_forward_request: v1.PortForwardRequest) -> v1.PortForwardResponse:
        with _errors():
            return await self._streams.port_forward(port_forward_request)

    async def get_container_events(
        self, get_events_request: v1.GetEventsRequest
    ) -> AsyncIterator[v1.ContainerEventResponse]:
        async for event in self._lifecycle.events.subscribe():
            yield event

    # -- usage -------------------------------------------------------------------------------------------------------

    async def container_stats(self, container_stats_request: v1.ContainerStatsRequest) -> v1.ContainerStatsResponse:
        with _errors():
            record = self._inventory.container(container_stats_request.container_id)
            return v1.ContainerStatsResponse(stats=await self._usage.container(record))

    async def list_container_stats(
        self, list_container_stats_request: v1.ListContainerStatsRequest
    ) -> v1.ListContainerStatsResponse:
        return v1.ListContainerStatsResponse(stats=await self._usage.containers(list_container_stats_request.filter))

    async def stream_container_stats(
        self, stream_container_stats_request: v1.StreamContainerStatsRequest
    ) -> AsyncIterator[v1.StreamContainerStatsResponse]:
        for part in _parts(await self._usage.containers(stream_container_stats_request.filter)):
            yield v1.StreamContainerStatsResponse(container_stats=list(part))

    async def pod_sandbox_stats(
        self, pod_sandbox_stats_request: v1.PodSandboxStatsRequest
    ) -> v1.PodSandboxStatsResponse:
        with _errors():
            record = self._inventory.sandbox(pod_sandbox_stats_request.pod_sandbox_id)
            return v1.PodSandboxStatsResponse(stats=await self._usage.sandbox(record))

    async def list_pod_sandbox_stats(
        self, list_pod_sandbox_stats_request: v1.ListPodSandboxStatsRequest
    ) -> v1.ListPodSandboxStatsResponse:
        return v1.ListPodSandboxStatsResponse(stats=await self._usage.sandboxes(list_pod_sandbox_stats_request.filter))

    async def stream_pod_sandbox_stats(
        self, stream_pod_sandbox_stats_request: v1.StreamPodSandboxStatsRequest
    ) -> AsyncIterator[v1.StreamPodSandboxStatsResponse]:
        for part in _parts(await self._usage.sandboxes(stream_pod_sandbox_stats_request.filter)):
            yield v1.StreamPodSandboxStatsResponse(pod_sandbox_stats=list(part))

    async def list_metric_descriptors(
        self, list_metric_descriptors_request: v1.ListMetricDescriptorsRequest
    ) -> v1.ListMetricDescriptorsResponse:
        return v1.ListMetricDescriptorsResponse(descriptors=descriptors())

    async def list_pod_sandbox_metrics(
        self, list_pod_sandbox_metrics_request: v1.ListPodSandboxMetricsRequest
    ) -> v1.ListPodSandboxMetricsResponse:
        return v1.ListPodSandboxMetricsResponse(pod_metrics=await self._metrics.of_all())

    async def stream_pod_sandbox_metrics(
        self, stream_pod_sandbox_metrics_request: v1.StreamPodSandboxMetricsRequest
    ) -> AsyncIterator[v1.StreamPodSandboxMetricsResponse]:
        for part in _parts(await self._metrics.of_all()):
            yield v1.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=list(part))


def _parts(records: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(records), _ITEMS_PER_MESSAGE):
        yield records[start : start + _ITEMS_PER_MESSAGE]


@contextmanager
def _errors() -> Iterator[None]:
    """What can go wrong, as the status codes that CRI clients expect."""
    try:
        yield
    except UnknownIdError as error:
        raise GRPCError(Status.NOT_FOUND, str(error)) from None
    except (SpecError, SandboxConfigError, ConfinementError, StreamRequestError) as error:
        raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from None
    except WrongStateError as error:
        raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from None
    except (StartFailedError, NetworkError, KeeperError) as error:
        raise GRPCError(Status.UNKNOWN, str(error)) from None
    except (CommandTimeoutError, NotEndedError) as error:
        raise GRPCError(Status.DEADLINE_EXCEEDED, str(error)) from None
    except TooManyTokensError as error:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, str(error)) from None
    except (KeeperLostError, NotServingError) as error:
        raise GRPCError(Status.UNAVAILABLE, str(error)) from None
    except trio.TooSlowError:
        raise GRPCError(Status.DEADLINE_EXCEEDED, "the container keeper did not answer in time") from None
    except OSError as error:
        raise GRPCError(Status.INTERNAL, _words(error)) from None


def _words(error: OSError) -> str:
    where = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror or error}{where}"
