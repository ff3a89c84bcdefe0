"""The embedded runtime as a whole: records, keeper and image store behind the two CRI services.

In the agent's own process (the default):

    runtime = EmbeddedRuntime(root, clock=SystemClock())
    await nursery.start(runtime.run)
    server = grpc.Server(runtime.handlers)          # and serve one end of a memory stream pair

Or alone, for any CRI client: `trikubelet runtime serve` (`cli/runtime.py`).
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.embedded import selinux
from trikubelet.embedded.cdi import CDI_FOLDERS
from trikubelet.embedded.image_service import EmbeddedImageService
from trikubelet.embedded.images.host import KUBELET_FOLDERS
from trikubelet.embedded.images.store import ImageStore
from trikubelet.embedded.keeper_client import KeeperError, KeeperLostError, KeeperStartError
from trikubelet.embedded.lifecycle import Lifecycle
from trikubelet.embedded.network.choice import NetworkOptions
from trikubelet.embedded.network.ways import all_networks
from trikubelet.embedded.pod_namespace import start_helper
from trikubelet.embedded.preload import Preload
from trikubelet.embedded.records import RecordStore
from trikubelet.embedded.registry.hosts import DEFAULT_HOSTS_DIRS
from trikubelet.embedded.registry.puller import Puller
from trikubelet.embedded.runtime_service import EmbeddedRuntimeService
from trikubelet.embedded.streaming_server import StreamingServer
from trikubelet.http.client.connect import networks_apart
from trikubelet.linux.relabel import has_label, relabel
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.embedded.network.model import PodNetwork
    from trikubelet.rpc.grpc.server import Servable

log = get_logger("embedded")

_TIDY_EVERY: Final = 60.0
"""Seconds: so long a pod may be cut off after somebody flushed the machine's firewall rules."""
# Documentation addresses: nothing is sent, the kernel only says which of its own it would use.
_SOMEWHERE: Final = ("192.0.2.1", 9)


class EmbeddedRuntime:
    """A CRI runtime on a folder. `images_root` is where images lie, `root/images` unless given.

    `host_image`: whether containers may have the machine's own root filesystem as their image. `hidden`: files and
    folders that these do not see, besides this runtime's own and a kubelet's. `networks`: the ways to give pods
    networks, in the order in which they are tried; None: all that there are. Its folder is made with mode 0700. Raises
    OSError where it cannot be, NetworkError for a podCIDR that is none.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: WallClock,
        images_root: Path | None = None,
        node_ip: str = "",
        registry_hosts_dirs: Sequence[Path] = DEFAULT_HOSTS_DIRS,
        host_image: bool = True,
        hidden: Sequence[Path] = (),
        network: NetworkOptions = NetworkOptions(),  # noqa: B008 - frozen
        networks: Mapping[str, PodNetwork] | None = None,
        cdi_folders: Sequence[Path] = CDI_FOLDERS,
    ) -> None:
        self.root = root.absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self._images_root = images_root or self.root / "images"
        self.images = ImageStore(self._images_root, clock=clock, host=host_image)
        self._node_ip = node_ip
        self._records = RecordStore(self.root)
        self._lifecycle = Lifecycle(
            self._records,
            clock=clock,
            address=self._address,
            networks=all_networks(self.root, network, self._start_helper) if networks is None else networks,
            network_options=network,
        )
        self._streaming = StreamingServer(self._lifecycle)
        self.runtime_service = EmbeddedRuntimeService(
            self._lifecycle,
            self._records,
            self.images.resolve,
            streaming=self._streaming,
            address=self._address,
            hidden=[*(path.absolute() for path in hidden), *KUBELET_FOLDERS],
            cdi_folders=cdi_folders,
        )
        self.puller = Puller(self.images, clock=clock, hosts_dirs=registry_hosts_dirs)
        self._preload = Preload(self.root / "preload", self.root / "preloaded.json", self.images, self.puller)
        self.image_service = EmbeddedImageService(
            self.images,
            self.puller,
            clock=clock,
            users=self._lifecycle.inventory.users_of_image,
            containers_root=self.root / "containers",
        )

    @property
    def handlers(self) -> Sequence[Servable]:
        """The two services, for a gRPC server."""
        return [self.runtime_service, self.image_service]

    def capabilities(self) -> dict[str, Any]:
        """What this machine lets the runtime do; empty until `run` has started."""
        return self.runtime_service.capabilities()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Find the keeper or start one, adopt its containers, and serve until cancelled.

        Cancelling leaves the keeper and the containers as they are. Raises KeeperStartError if none can be started.
        """
        failure: KeeperStartError | None = None
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(supervise, self._lifecycle.keeper.run)
            except KeeperStartError as error:
                failure = error  # raised below: here the nursery would wrap it
            else:
                if self._lifecycle.has_networks():
                    await contain(self._lifecycle.reconcile_networks)  # it asks plugins
                await nursery.start(supervise, self._lead_into_networks)
                nursery.start_soon(supervise, self._preload.run)
                nursery.start_soon(supervise, self._keep_tidy)
                await nursery.start(self._streaming.run)
                await self._prepare_for_selinux()
                task_status.started()
        if failure is not None:
            raise failure

    async def _prepare_for_selinux(self) -> None:
        """Tell if containers have no labels though they should; else let them read their images.

        The files of a container's root have its own label as it sees them. But what it executes is mapped from the
        image, which the kernel checks too. What is unpacked later has the label of the folder that it comes into.
        """
        abilities = self._lifecycle.abilities
        problem = "" if abilities is None else selinux.why_not(abilities)
        if problem:
            if selinux.is_enforcing():
                log.warning(
                    "SELinux is enforcing, and does not confine containers: they run with this process's label. Mounts "
                    "are not relabelled, and seLinuxOptions are refused",
                    reason=problem,
                )
            return
        label = selinux.of_images()
        try:
            if not has_label(self._images_root, label):
                check = trio.from_thread.check_cancelled
                await trio.to_thread.run_sync(relabel, self._images_root, label, check, abandon_on_cancel=True)
        except OSError as error:
            log.warning("images cannot be given their SELinux label", label=label, error=str(error))

    async def _lead_into_networks(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Have probes of this process reach pods behind pasta, by sockets in their networks."""
        with networks_apart(self._lifecycle.networks.enter):
            task_status.started()
            await trio.sleep_forever()

    async def _start_helper(self, sandbox_id: str, argv: Sequence[str], output: int) -> int:
        return await start_helper(self._lifecycle.keeper, sandbox_id, argv, output)

    async def shutdown(self) -> bool:
        """End the keeper, if no container is left, and take the pods' network down. Returns whether it ends."""
        await self.take_networks_down()
        try:
            return await self._lifecycle.keeper.shutdown()
        except (KeeperError, KeeperLostError, trio.TooSlowError) as error:
            log.warning("the container keeper was not ended", error=str(error))
            return False

    async def take_networks_down(self) -> None:
        """Leave nothing of the pods' networks on the machine, if no pod has one. The next pod makes it anew."""
        if not self._lifecycle.has_networks():
            await self._lifecycle.networks.close()

    async def _keep_tidy(self) -> None:
        """After the start and whenever another keeper is there, and from time to time."""
        while True:
            with trio.move_on_after(_TIDY_EVERY):
                await self._lifecycle.untidy.receive()
            await self._tidy()

    async def _tidy(self) -> None:
        """What cannot be tidied is left for the next time, and ends nothing."""
        try:
            await self._lifecycle.tidy()
            await self.images.collect_garbage()
        except OSError as error:
            log.warning("not all that earlier runs left could be removed", root=str(self.root), error=str(error))

    def _address(self) -> str:
        """The address that pods on the machine's network are reached at: the node's."""
        if not self._node_ip:
            self._node_ip = _own_address()
        return self._node_ip


def _own_address() -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_SOMEWHERE)
            return str(ipaddress.ip_address(probe.getsockname()[0]))
    except OSError:
        return "127.0.0.1"
