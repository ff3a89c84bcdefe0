"""One plugin of a driver, over its socket: the two calls that it is asked, and the stream of its devices' health.

Both versions of its interface are the same on the wire but for one field that the older one has not, so that its
messages serve for both; only the service's name differs.

A plugin is somebody else's program, and it can be wrong in every way. Each call has the kubelet's deadline. Health that
comes faster than it can matter is skipped (`rpc.unread`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio
from grpclib import GRPCError, Status
from grpclib.const import Cardinality

from trikubelet.formats.values import frozen
from trikubelet.node.dra.model import ClaimDevice
from trikubelet.rpc.dra import v1
from trikubelet.rpc.dra_health import v1alpha1
from trikubelet.rpc.status_text import code_name, status_text
from trikubelet.rpc.unread import Unread, newest_of, pause_after
from trikubelet.scopes import off_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import betterproto

    from trikubelet.node.dra.metrics import ClaimMetrics
    from trikubelet.node.dra.model import ClaimState
    from trikubelet.rpc.grpc import Channel

CALL_SECONDS: Final = 45.0
"""(`defaultClientCallTimeout`)"""
MOST_FROM_PLUGIN: Final = 4 * 2**20
"""Bytes of a message from a plugin: the kubelet leaves it at gRPC's default."""
SERVICES: Final = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""What a plugin calls the versions of its interface when it registers, and their services; newest first."""
_WATCH: Final = "/v1alpha1.DRAResourceHealth/NodeWatchResources"

Reply = TypeVar("Reply", v1.NodePrepareResourcesResponse, v1.NodeUnprepareResourcesResponse)


@frozen
class DRAPluginError(Exception):
    """A plugin did not do what it was asked, or there is none."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def chosen_service(versions: Iterable[str]) -> str:
    """The newest that a plugin speaks. Raises ValueError when there is none."""
    spoken = list(versions)
    if not spoken:
        raise ValueError("empty list of supported gRPC services (aka supported versions)")
    for service in SERVICES:
        if service in spoken:
            return service
    raise ValueError(
        f"none of services supported by the plugin ({_listed(spoken)}) are supported by the kubelet "
        f"({_listed(SERVICES)})"
    )


class DRAPlugin:
    """A plugin, while it is registered."""

    def __init__(self, driver: str, endpoint: str, service: str, channel: Channel, metrics: ClaimMetrics) -> None:
        """`service`: one of `SERVICES`."""
        self.driver = driver
        self.endpoint = endpoint
        self.service = service
        self.connected = False
        """Whether somebody listens at the endpoint, as far as is known."""
        self.channel = channel
        self._metrics = metrics

    async def prepare(self, claims: Iterable[ClaimState]) -> dict[str, tuple[ClaimDevice, ...]]:
        """Have claims prepared; what each is given, by its UID. Raises DRAPluginError when one is not."""
        asked = list(claims)
        request = v1.NodePrepareResourcesRequest(claims=[_asked(claim) for claim in asked])
        method = "NodePrepareResources"
        reply = await self._call(method, request, v1.NodePrepareResourcesResponse)
        _check(method, asked, {uid: one.error for uid, one in reply.claims.items()})
        return {uid: tuple(map(_device, one.devices)) for uid, one in reply.claims.items()}

    async def unprepare(self, claims: Iterable[ClaimState]) -> None:
        """Have it undone. Raises DRAPluginError when that failed for one."""
        asked = list(claims)
        request = v1.NodeUnprepareResourcesRequest(claims=[_asked(claim) for claim in asked])
        method = "NodeUnprepareResources"
        reply = await self._call(method, request, v1.NodeUnprepareResourcesResponse)
        _check(method, asked, {uid: one.error for uid, one in reply.claims.items()})

    async def watch(self, on_health: Callable[[list[v1alpha1.DeviceHealth]], object]) -> None:
        """Hand over what the plugin tells of its devices, until it tells no more. Raises GRPCError."""
        reading = trio.CapacityLimiter(1)
        request = v1alpha1.NodeWatchResourcesRequest()
        call = self.channel.request(_WATCH, Cardinality.UNARY_STREAM, type(request), Unread)
        async with call as stream:
            await stream.send_message(request, end=True)
            while (message := await stream.recv_message()) is not None:
                newest = await newest_of(stream, message)
                on_health(await off_loop(reading, len(newest), _health, newest))
                await pause_after(newest)

    async def _call(self, method: str, request: betterproto.Message, reply_type: type[Reply]) -> Reply:
        """Raises DRAPluginError."""
        path = f"/{SERVICES[self.service]}/{method}"
        began, status = trio.current_time(), Status.OK
        call = self.channel.request(path, Cardinality.UNARY_UNARY, type(request), reply_type, timeout=CALL_SECONDS)
        try:
            async with call as stream:
                await stream.send_message(request, end=True)
                reply = await stream.recv_message()
            if reply is None:
                raise GRPCError(Status.INTERNAL, "the plugin sent no reply")
        except GRPCError as error:
            status = error.status
            raise DRAPluginError(f"{method}: {status_text(error.status, error.message)}") from error
        except trio.Cancelled:
            status = Status.CANCELLED
            raise
        else:
            return reply
        finally:
            self._metrics.calls.observe((self.driver, path, code_name(status)), trio.current_time() - began)


def _asked(claim: ClaimState) -> v1.Claim:
    return v1.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _device(device: v1.Device) -> ClaimDevice:
    return ClaimDevice(
        pool=device.pool_name,
        name=device.device_name,
        requests=tuple(device.request_names),
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id,
    )


def _check(method: str, asked: Iterable[ClaimState], errors: Mapping[str, str]) -> None:
    """Raises DRAPluginError unless the plugin did it for all claims and no other. `errors` by their UIDs."""
    names = {claim.uid: claim.name for claim in asked}
    for uid, error in sorted(errors.items()):
        if uid not in names:
            raise DRAPluginError(f"{method} returned result for unknown claim UID {uid}")
        if error:
            raise DRAPluginError(f"{method} failed for ResourceClaim {names[uid]}: {error}")
    if skipped := len(names) - len(errors):
        raise DRAPluginError(f"{method} skipped {skipped} ResourceClaims")


def _health(message: Unread) -> list[v1alpha1.DeviceHealth]:
    """Raises GRPCError for what is no list."""
    try:
        return v1alpha1.NodeWatchResourcesResponse.FromString(message).devices
    except Exception as error:
        raise GRPCError(Status.INTERNAL, f"not the health of devices: {error}") from error


def _listed(names: Iterable[str]) -> str:
    quoted = " ".join(f'"{name}"' for name in names)
    return f"[{quoted}]"
