"""The services."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio
from grpclib import GRPCError, Status

from tests.csi_driver.faults import Faults, FaultSource
from trikubelet.rpc.dra import v1
from trikubelet.rpc.dra_health import v1alpha1 as health
from trikubelet.rpc.plugin_registration import v1 as plugins

if TYPE_CHECKING:
    import grpclib.const

    from trikubelet.rpc.grpc import Servable

Reply = TypeVar("Reply")

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"


def a_device(
    name: str, *, requests: Iterable[str] = (), cdi: Iterable[str] = (), share_id: str | None = None
) -> v1.Device:
    """Of the pool `pool`."""
    return v1.Device(
        request_names=list(requests),
        pool_name="pool",
        device_name=name,
        cdi_device_ids=list(cdi),
        share_id=share_id,
    )


@attrs.define(eq=False)
class ToyDriver:
    """What it has prepared is on the disk, if it has a folder for it, so that a new one goes on where another ended."""

    name: str = "toy.example.com"
    endpoint: str = ""
    versions: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    devices: Mapping[str, list[v1.Device]] = attrs.field(factory=dict)
    """By the claim's name; others have one device for all of their requests."""
    errors: dict[str, str] = attrs.field(factory=dict)
    """By the claim's name: what is wrong with it."""
    skips: set[str] = attrs.field(factory=set)
    """Names of claims that it does not speak of in its answers."""
    faults: FaultSource = attrs.field(factory=Faults)
    takes: float = 0.0
    """Seconds for each call."""
    tells_health: bool = False
    state: Path | None = None
    cdi: Path | None = None
    log: Path | None = None
    prepared: set[str] = attrs.field(init=False)
    """UIDs."""
    calls: list[tuple[str, tuple[str, ...]]] = attrs.field(factory=list)
    """Method, and names of claims."""
    most_at_once: int = 0
    """Calls for one claim."""
    registrations: list[plugins.RegistrationStatus] = attrs.field(factory=list)
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set, and replaced, with each call that begins or ends."""
    _busy: Counter[str] = attrs.field(factory=Counter)
    _health: trio.MemorySendChannel[list[health.DeviceHealth]] | None = None

    def __attrs_post_init__(self) -> None:
        self.prepared = set() if self.state is None else {path.name for path in self.state.iterdir()}

    @property
    def services(self) -> list[Servable]:
        """For the driver's socket."""
        services: list[Servable] = [_Plugin(self), _OldPlugin(self)]
        return [*services, _Health(self)] if self.tells_health else services

    @property
    def registration(self) -> list[Servable]:
        """For a socket in the registry."""
        return [_Registration(self)]

    def names(self) -> list[str]:
        """The calls so far."""
        return [method for method, _ in self.calls]

    async def tell(self, **devices: str) -> None:
        """Names of devices, and `HEALTHY`, `UNHEALTHY` or `UNKNOWN`; to be used once the agent listens."""
        while self._health is None:
            await self.changed.wait()
        await self._health.send([a_health(name, status) for name, status in devices.items()])

    async def tell_devices(self, *devices: health.DeviceHealth) -> None:
        while self._health is None:
            await self.changed.wait()
        await self._health.send(list(devices))

    async def begun(self, method: str, times: int = 1) -> None:
        """Wait until there was such a call so many times."""
        while self.names().count(method) < times:
            await self.changed.wait()

    async def serve(self, method: str, claims: list[v1.Claim], work: Callable[[], Reply]) -> Reply:
        """One call with its fault."""
        names = [claim.name for claim in claims]
        self.calls.append((method, tuple(names)))
        uids = [claim.uid for claim in claims]
        self._busy.update(uids)
        self.most_at_once = max(self.most_at_once, *(self._busy[uid] for uid in uids), 0)
        self._note(method, names, "begun")
        outcome, fault = "cancelled", self.faults.take(method)
        try:
            await trio.sleep(self.takes)
            if fault is not None and fault.kind == "error":
                outcome = fault.error.status.name
                raise fault.error
            if fault is not None and fault.kind == "hang":
                await trio.sleep_forever()
            reply = work()
            if fault is not None and fault.kind == "lost":
                outcome = "lost"
                raise GRPCError(Status.UNAVAILABLE, "the connection is lost")
            if fault is not None and fault.kind == "late":
                await trio.sleep_forever()
            outcome = "ok"
            return reply
        finally:
            self._busy.subtract(uids)
            self._note(method, names, outcome)

    def _note(self, method: str, names: list[str], outcome: str) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps({"call": method, "claims": names, "outcome": outcome}) + "\n")
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    # The work

    def prepare(self, claims: list[v1.Claim]) -> v1.NodePrepareResourcesResponse:
        return v1.NodePrepareResourcesResponse(
            claims={claim.uid: self._prepare(claim) for claim in claims if claim.name not in self.skips}
        )

    def _prepare(self, claim: v1.Claim) -> v1.NodePrepareResourceResponse:
        if claim.name in self.errors:
            return v1.NodePrepareResourceResponse(error=self.errors[claim.name])
        self.prepared.add(claim.uid)
        if self.state is not None:
            (self.state / claim.uid).touch()
        if self.cdi is not None:
            self._specify(claim)
        devices = self.devices.get(claim.name)
        if devices is None:
            devices = [a_device(f"device-of-{claim.name}", cdi=[self.cdi_id(claim.uid)])]
        return v1.NodePrepareResourceResponse(devices=list(devices))

    def cdi_id(self, uid: str) -> str:
        return f"{self.name}/claim={uid}"

    def _specify(self, claim: v1.Claim) -> None:
        assert self.cdi is not None
        device = {"name": claim.uid, "containerEdits": {"env": [f"TOY_CLAIM={claim.name}"]}}
        path = self.cdi / f"{self.name}-{claim.uid}.json"
        path.with_suffix(".new").write_text(
            json.dumps({"cdiVersion": "0.5.0", "kind": f"{self.name}/claim", "devices": [device]})
        )
        path.with_suffix(".new").rename(path)

    def unprepare(self, claims: list[v1.Claim]) -> v1.NodeUnprepareResourcesResponse:
        return v1.NodeUnprepareResourcesResponse(
            claims={claim.uid: self._unprepare(claim) for claim in claims if claim.name not in self.skips}
        )

    def _unprepare(self, claim: v1.Claim) -> v1.NodeUnprepareResourceResponse:
        if claim.name in self.errors:
            return v1.NodeUnprepareResourceResponse(error=self.errors[claim.name])
        self.prepared.discard(claim.uid)
        if self.state is not None:
            (self.state / claim.uid).unlink(missing_ok=True)
        if self.cdi is not None:
            (self.cdi / f"{self.name}-{claim.uid}.json").unlink(missing_ok=True)
        return v1.NodeUnprepareResourceResponse()

    async def watch(self) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        self._health, told = trio.open_memory_channel[list[health.DeviceHealth]](0)
        self._tell()
        try:
            async for devices in told:
                yield health.NodeWatchResourcesResponse(devices=devices)
        finally:
            self._health = None


def a_health(name: str, status: str, *, seconds: int = 0, message: str = "") -> health.DeviceHealth:
    """Of a device in the pool `pool`."""
    return health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name="pool", device_name=name),
        health=health.HealthStatus[status],
        health_check_timeout_seconds=seconds,
        message=message,
    )


class _Plugin(v1.DraPluginBase):
    def __init__(self, driver: ToyDriver) -> None:
        self._driver = driver

    async def node_prepare_resources(
        self, node_prepare_resources_request: v1.NodePrepareResourcesRequest
    ) -> v1.NodePrepareResourcesResponse:
        claims = node_prepare_resources_request.claims
        return await self._driver.serve(PREPARE, claims, lambda: self._driver.prepare(claims))

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: v1.NodeUnprepareResourcesRequest
    ) -> v1.NodeUnprepareResourcesResponse:
        claims = node_unprepare_resources_request.claims
        return await self._driver.serve(UNPREPARE, claims, lambda: self._driver.unprepare(claims))


class _OldPlugin(_Plugin):
    """v1beta1."""

    def __mapping__(self) -> dict[str, grpclib.const.Handler]:
        return {path.replace(".v1.", ".v1beta1."): handler for path, handler in super().__mapping__().items()}


class _Health(health.DraResourceHealthBase):
    def __init__(self, driver: ToyDriver) -> None:
        self._driver = driver

    async def node_watch_resources(
        self, node_watch_resources_request: health.NodeWatchResourcesRequest
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        async for told in self._driver.watch():
            yield told


class _Registration(plugins.RegistrationBase):
    def __init__(self, driver: ToyDriver) -> None:
        self._driver = driver

    async def get_info(self, info_request: plugins.InfoRequest) -> plugins.PluginInfo:
        driver = self._driver
        return plugins.PluginInfo(
            type="DRAPlugin", name=driver.name, endpoint=driver.endpoint, supported_versions=list(driver.versions)
        )

    async def notify_registration_status(
        self, registration_status: plugins.RegistrationStatus
    ) -> plugins.RegistrationStatusResponse:
        self._driver.registrations.append(registration_status)
        return plugins.RegistrationStatusResponse()
