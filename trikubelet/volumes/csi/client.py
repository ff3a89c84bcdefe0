"""A CSI driver's Node service as the agent calls it: flat arguments, two minutes each, and one kind of failure.

A request may hold credentials, and a careless driver may repeat them in its answer. So requests are never logged, and
what a driver says is freed of every secret that it got before it is passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.formats.values import frozen
from trikubelet.rpc.csi import v1
from trikubelet.rpc.status_text import code_name, status_text
from trikubelet.telemetry.metrics import Histograms
from trikubelet.volumes.csi.rules import TOKENS_KEY
from trikubelet.volumes.errors import NotExpandedError, UncertainVolumeError, VolumeError
from trikubelet.volumes.expansion import Refusal
from trikubelet.volumes.metrics import bool_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.rpc.cri.caller import CallChannel, StubMethod

CALL_TIMEOUT: Final = 120.0
"""Seconds (kubelet: `csiTimeout`)."""
STRIPPED: Final = "***stripped***"

Capabilities = frozenset[v1.NodeServiceCapabilityRpcType]

Reply_co = TypeVar("Reply_co", covariant=True)
Reply = TypeVar("Reply")

_UNCERTAIN: Final = frozenset(
    {Status.CANCELLED, Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED, Status.ABORTED}
)
_INFEASIBLE: Final = frozenset({Status.INVALID_ARGUMENT, Status.OUT_OF_RANGE, Status.NOT_FOUND})
_NO_SECRET_IS_SHORTER: Final = 4


@frozen
class CSIError(Exception):
    """A driver said no, or said nothing. The text is the kubelet's."""

    rpc: str
    status: Status
    message: str
    """The driver's, without the secrets of the request."""

    @property
    def final(self) -> bool:
        """Whether it is sure that nothing of the call happens any more (kubelet: `isFinalError`)."""
        return self.status not in _UNCERTAIN

    def for_volume(self, volume: str) -> VolumeError:
        """The failure of a volume: uncertain unless it is final. `volume` is its name in the pod."""
        return (VolumeError if self.final else UncertainVolumeError)(volume, str(self))

    def for_expansion(self, volume: str) -> VolumeError:
        """The same for a volume that was to grow (kubelet: `nodeExpandWithClient`)."""
        failed = "Expander.NodeExpand failed to expand the volume"
        if self.status in _INFEASIBLE:
            return NotExpandedError(volume, f"{failed} {self}", Refusal.INFEASIBLE)
        if self.status is Status.FAILED_PRECONDITION:
            return NotExpandedError(volume, f"{failed} : {self}", Refusal.IN_USE)
        return (VolumeError if self.final else UncertainVolumeError)(volume, f"{failed} : {self}")

    def __str__(self) -> str:
        return status_text(self.status, self.message)


@frozen
class NodeInfo:
    """Which node this is, in a driver's words."""

    node_id: str
    max_volumes: int
    """0 or less: the driver knows no limit."""
    topology: Mapping[str, str]


class NodeClient:
    """A driver's Node service over a running channel. Every method raises CSIError and may be cancelled; the driver is
    told, but may have done the work."""

    def __init__(
        self,
        channel: CallChannel,
        *,
        timeout: float = CALL_TIMEOUT,
        driver: str = "",
        durations: Histograms | None = None,
        migrated: bool = False,
    ) -> None:
        """`durations`: where calls of this driver are counted, in seconds, by driver, call, code and whether they are
        about a migrated volume."""
        self._stub = v1.NodeStub(cast("Any", channel))
        self._timeout = timeout
        self._driver = driver
        self._durations = Histograms() if durations is None else durations
        self._migrated = migrated

    async def info(self, *, timeout: float | None = None) -> NodeInfo:
        reply = await self._call("NodeGetInfo", self._stub.node_get_info, v1.NodeGetInfoRequest(), timeout=timeout)
        return NodeInfo(reply.node_id, reply.max_volumes_per_node, dict(reply.accessible_topology.segments))

    async def capabilities(self) -> Capabilities:
        request = v1.NodeGetCapabilitiesRequest()
        reply = await self._call("NodeGetCapabilities", self._stub.node_get_capabilities, request)
        return frozenset(capability.rpc.type for capability in reply.capabilities)

    async def stage(
        self,
        volume_id: str,
        staging_path: str,
        capability: v1.VolumeCapability,
        *,
        publish_context: Mapping[str, str],
        volume_context: Mapping[str, str],
        secrets: Mapping[str, str],
    ) -> None:
        request = v1.NodeStageVolumeRequest(
            volume_id=volume_id,
            staging_target_path=staging_path,
            volume_capability=capability,
            publish_context=dict(publish_context),
            volume_context=dict(volume_context),
            secrets=dict(secrets),
        )
        await self._call("NodeStageVolume", self._stub.node_stage_volume, request, secrets=secrets.values())

    async def unstage(self, volume_id: str, staging_path: str) -> None:
        request = v1.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=staging_path)
        await self._call("NodeUnstageVolume", self._stub.node_unstage_volume, request)

    async def publish(
        self,
        volume_id: str,
        target_path: str,
        capability: v1.VolumeCapability,
        *,
        staging_path: str,
        read_only: bool,
        publish_context: Mapping[str, str],
        volume_context: Mapping[str, str],
        secrets: Mapping[str, str],
        tokens: Iterable[str] = (),
    ) -> None:
        """`staging_path`: "" when it was not staged. `tokens`: those that are somewhere in the request."""
        request = v1.NodePublishVolumeRequest(
            volume_id=volume_id,
            staging_target_path=staging_path,
            target_path=target_path,
            volume_capability=capability,
            readonly=read_only,
            publish_context=dict(publish_context),
            volume_context=dict(volume_context),
            secrets=dict(secrets),
        )
        hidden = [*secrets.values(), *tokens, volume_context.get(TOKENS_KEY, "")]
        await self._call("NodePublishVolume", self._stub.node_publish_volume, request, secrets=hidden)

    async def unpublish(self, volume_id: str, target_path: str) -> None:
        request = v1.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target_path)
        await self._call("NodeUnpublishVolume", self._stub.node_unpublish_volume, request)

    async def stats(self, volume_id: str, volume_path: str) -> list[v1.VolumeUsage]:
        request = v1.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=volume_path)
        reply = await self._call("NodeGetVolumeStats", self._stub.node_get_volume_stats, request)
        return reply.usage

    async def expand(
        self,
        volume_id: str,
        volume_path: str,
        capability: v1.VolumeCapability,
        *,
        staging_path: str,
        size: int,
        secrets: Mapping[str, str],
    ) -> int:
        """`size` in bytes. Returns what the driver says that it is now; drivers may leave it at 0."""
        request = v1.NodeExpandVolumeRequest(
            volume_id=volume_id,
            volume_path=volume_path,
            staging_target_path=staging_path,
            capacity_range=v1.CapacityRange(required_bytes=size),
            volume_capability=capability,
            secrets=dict(secrets),
        )
        reply = await self._call("NodeExpandVolume", self._stub.node_expand_volume, request, secrets=secrets.values())
        return reply.capacity_bytes

    async def _call(
        self,
        rpc: str,
        method: StubMethod[Reply],
        request: object,
        *,
        secrets: Iterable[str] = (),
        timeout: float | None = None,
    ) -> Reply:
        allowed = self._timeout if timeout is None else timeout
        failure = CSIError(rpc, Status.DEADLINE_EXCEEDED, f"the driver did not answer within {allowed:g} s")
        began, status = trio.current_time(), Status.CANCELLED
        try:
            with trio.move_on_after(allowed) as scope:
                try:
                    reply = await method(request, timeout=allowed)
                    status = Status.OK
                    return reply
                except GRPCError as error:
                    # A deadline that is not ours is the driver's own, of something behind it.
                    if error.status is not Status.DEADLINE_EXCEEDED or trio.current_time() < scope.deadline:
                        failure = CSIError(rpc, error.status, _without(secrets, error.message or "no message"))
            status = failure.status
        finally:
            labels = (self._driver, f"/csi.v1.Node/{rpc}", code_name(status), bool_label(self._migrated))
            self._durations.observe(labels, trio.current_time() - began)
        # Not from the driver's error: that still has the secrets.
        raise failure


def _without(secrets: Iterable[str], text: str) -> str:
    """Longest first: a secret may be part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _NO_SECRET_IS_SHORTER:
            text = text.replace(secret, STRIPPED)
    return text
