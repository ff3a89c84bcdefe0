"""The manager of resource claims (kubelet: `dra.Manager`): the book, the plugins, and the questions of others.

The callers, in the order of a pod's life:

    runtime         `prepare` before each sandbox, `cdi_devices` before each start of a container
    status          `health`
    syncer          `unprepare`, once nothing of the pod runs and before that is reported
    status writer   `holds`: such a pod is not deleted yet
    pod resources   `claims`

Beside that, pods that are in the book and not wanted any more are taken off it: those that an earlier agent left, and
those whose drivers were not there when they ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.api import ResourceHealth, ResourceStatus
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.node.dra.book import ClaimBook
from trikubelet.node.dra.checkpoint import FILE, ClaimCheckpoint, read_claims, replace_file
from trikubelet.node.dra.claims import ClaimGates, base_request, claim_name, claims_shown, container_requests
from trikubelet.node.dra.health import FILE as HEALTH_FILE
from trikubelet.node.dra.health_watch import HealthWatch
from trikubelet.node.dra.metrics import ClaimMetrics
from trikubelet.node.dra.plugins import DRAPlugins
from trikubelet.node.dra.preparation import ClaimPreparation
from trikubelet.node.dra.slices import SliceWiper
from trikubelet.node.podresources.providers import Claim, ClaimDevice
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError
from trikubelet.status.container_statuses import no_resource_health
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.api import Container, Pod, ResourceClaim
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.node.dra.checkpoint import Write
    from trikubelet.node.dra.health import DeviceName
    from trikubelet.rpc.grpc import Channel
    from trikubelet.status.container_statuses import ResourceHealthOf

RECONCILE_PERIOD: Final = 60.0
SOURCES_PERIOD: Final = 1.0
"""Between looks at whether all wanted pods are known, at the start."""

log = get_logger("claims")


@frozen(kw_only=True)
class PodsOnNode:
    """What a manager asks of pods, by their UIDs."""

    sources_ready: Callable[[], bool]
    """Whether all that are wanted here are known."""
    needed: Callable[[str], bool]
    """Whether the pod is wanted and has not ended, or something of it may still run."""


class ClaimManager:
    """The runtime's `ResourceClaims`, and a `node.podresources.providers.Claims`."""

    def __init__(
        self,
        root: Path,
        client: ApiClient,
        node_name: str,
        pods: PodsOnNode,
        *,
        clock: WallClock,
        rng: Random,
        connect: Callable[[Path], AbstractAsyncContextManager[Channel]],
        gates: ClaimGates = ClaimGates(),  # noqa: B008 - frozen
        write: Write = replace_file,
    ) -> None:
        """`root`: the folder of the files; `connect` opens a plugin's socket. Blocks on the disk. Raises
        CheckpointError for what cannot be read there."""
        self.metrics = ClaimMetrics()
        self.changed: Broadcast[str] = Broadcast()
        """UIDs of pods that should be looked at: their devices do otherwise, or what they wait for is there."""
        self._pods = pods
        self._gates = gates
        self._book = ClaimBook(read_claims(root / FILE))
        self._health = HealthWatch(root / HEALTH_FILE, clock, self._health_changed, write)
        watch = self._health.follow if gates.resource_health else None
        self._plugins = DRAPlugins(connect, self.metrics, changed=self._driver_changed, watch=watch)
        self._preparation = ClaimPreparation(
            client,
            self._book,
            ClaimCheckpoint(root / FILE, lambda: self._book, write),
            self._plugins,
            gates,
            self.metrics,
        )
        self._wiper = SliceWiper(client, node_name, rng)
        self._waiting: set[str] = set()
        """Pods for which it failed last, either way."""
        self._look: Broadcast[None] = Broadcast()

    @property
    def plugin_handler(self) -> DRAPlugins:
        """For the registrar of plugins."""
        return self._plugins

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take plugins until cancelled; then they, and what they have prepared, are left as they are."""
        async with trio.open_nursery() as nursery:
            if self._gates.resource_health:
                await nursery.start(self._health.run)
            await nursery.start(self._plugins.run)
            await nursery.start(self._wiper.run)
            nursery.start_soon(supervise, self._reconcile_now_and_then)
            task_status.started()

    # The life of a pod.

    async def prepare(self, pod: Pod) -> None:
        """Have everything prepared that the pod claims. Raises ResourceClaimError; `changed` tells when to try anew."""
        uid = pod.metadata.uid
        self._waiting.discard(uid)
        try:
            await self._preparation.prepare(pod)
        except ResourceClaimError as error:
            self._waiting.add(uid)
            raise ResourceClaimError(f"prepare dynamic resources: {error}") from error

    def cdi_devices(self, pod: Pod, container: Container) -> list[str]:
        """Names for the runtime, each once (kubelet: `GetResources`). Raises ResourceClaimError."""
        found: dict[str, None] = {}
        for name, requests in container_requests(pod, container).items():
            claim = self._book.get((pod.metadata.namespace, name))
            if claim is None:
                raise ResourceClaimError(
                    f"internal error: unable to get claim info for ResourceClaim {name} in namespace "
                    f"{pod.metadata.namespace}"
                )
            found.update((id_, None) for request in requests for id_ in claim.cdi_ids(request))
        return list(found)

    async def unprepare(self, uid: str) -> None:
        """Nothing of the pod runs any more. Raises ResourceClaimError: then it still holds claims."""
        self._waiting.discard(uid)
        try:
            await self._preparation.unprepare(uid)
        except ResourceClaimError as error:
            self._waiting.add(uid)
            raise ResourceClaimError(f"unprepare dynamic resources: {error}") from error

    def holds(self, uid: str) -> bool:
        """Whether the pod has claims that may be prepared for it."""
        return any(uid in claim.pods for claim in self._book)

    # What others ask.

    def health(self, pod: Pod) -> ResourceHealthOf:
        """How the devices of the pod's containers do (KEP-4680)."""
        if not self._gates.resource_health or not pod.spec.resource_claims:
            return no_resource_health
        containers = {container.name: container for container in pod.spec.containers}

        def of_container(name: str) -> tuple[ResourceStatus, ...]:
            container = containers.get(name)
            claims = () if container is None else container.resources.claims
            statuses = {status.name: status for claim in claims if (status := self._status(pod, claim)).resources}
            return tuple(status for _, status in sorted(statuses.items()))

        return of_container

    def claims(self, pod: Pod, container: Container) -> Iterator[Claim]:
        """What a container has (kubelet: `GetDynamicResources`)."""
        for name in claims_shown(pod, container):
            claim = self._book.get((pod.metadata.namespace, name))
            if claim is not None:
                devices = tuple(
                    ClaimDevice(driver, one.pool, one.name, one.cdi_ids, one.share_id or "")
                    for driver, one in claim.devices()
                )
                yield Claim(claim.name, claim.namespace, devices)

    def claims_in_use(self) -> dict[str, int]:
        """See `ClaimBook.in_use`."""
        return self._book.in_use()

    def _status(self, pod: Pod, claim: ResourceClaim) -> ResourceStatus:
        """Of the devices that a container has by this claim."""
        name = claim_name(pod, claim.name)
        known = None if name is None else self._book.get((pod.metadata.namespace, name))
        request = base_request(claim.request)
        found: dict[str, ResourceHealth] = {}
        for driver, device in () if known is None else known.devices():
            if device.is_for(request):
                id_ = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.name}"
                health, message = self._health.get(driver, (device.pool, device.name))
                shown = message if message and self._gates.health_message else None
                found.setdefault(id_, ResourceHealth(resource_id=id_, health=health, message=shown))
        called = f"claim:{claim.name}" + (f"/{claim.request}" if claim.request else "")
        return ResourceStatus(name=called, resources=tuple(one for _, one in sorted(found.items())))

    # Drivers that come and go.

    def _driver_changed(self, driver: str) -> None:
        if not self._plugins.usable(driver):
            self._wiper.unusable(driver)
            return
        self._wiper.usable(driver)
        self._look.send(None)
        for uid in self._waiting:
            self.changed.send(uid)

    def _health_changed(self, driver: str, devices: Collection[DeviceName]) -> None:
        for uid in self._book.pods_with(driver, devices):
            self.changed.send(uid)

    # Pods that are gone.

    async def _reconcile_now_and_then(self) -> None:
        with self._look.subscribe() as news:
            while True:
                ready = self._pods.sources_ready()
                if ready:
                    await self._reconcile()
                with trio.move_on_after(RECONCILE_PERIOD if ready else SOURCES_PERIOD):
                    await news.receive()

    async def _reconcile(self) -> None:
        """Take pods off the book that nobody needs. One whose driver hangs does not keep the others."""
        self._waiting = {uid for uid in self._waiting if self._pods.needed(uid)}
        async with trio.open_nursery() as nursery:
            for uid in self._book.pods():
                if not self._pods.needed(uid):
                    nursery.start_soon(contain, self._take_off, uid)

    async def _take_off(self, uid: str) -> None:
        try:
            await self.unprepare(uid)
        except ResourceClaimError as error:
            log.warning("claims of a pod that is gone are still prepared; it is tried again", uid=uid, error=str(error))
