"""The node's lease: a small object that is renewed to say that the node lives (component-helpers' lease controller).

The control plane takes a node whose lease has run out for lost, and its pods with it. So renewing is as cheap as it can
be: one PUT of the version that was last seen, and nothing is read before. Another writer causes a conflict, and
only then it is read again. The lease belongs to the node object and goes with it; the node may not be
there yet when the lease is first wanted, and creating it waits for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Lease, LeaseSpec, ObjectMeta, OwnerReference
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.recovery import GrowingPauses
from trikubelet.kube_client.types import LEASES, Urgency
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime
    from random import Random

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.types import ApiClient

log = get_logger("node")

NAMESPACE: Final = "kube-node-lease"
RENEW_FRACTION: Final = 0.25
"""Of the lease's duration; so three renewals may fail."""
JITTER: Final = 0.04
TRIES: Final = 5
"""Attempts to renew, at once."""
RETRY_FIRST: Final = 0.2
RETRY_LONGEST: Final = 7.0


def renewed(base: Lease | None, node_name: str, uid: str | None, duration: int, now: datetime) -> Lease:
    """The lease as it is to be written: `base` with a new time, or a new one. `uid`: the node's, None while unknown."""
    lease = base or Lease(
        metadata=ObjectMeta(name=node_name, namespace=NAMESPACE), spec=LeaseSpec(holder_identity=node_name)
    )
    if uid is not None and not lease.metadata.owner_references:
        owner = OwnerReference(api_version="v1", kind="Node", name=node_name, uid=uid)
        lease = attrs.evolve(lease, metadata=attrs.evolve(lease.metadata, owner_references=(owner,)))
    return attrs.evolve(lease, spec=attrs.evolve(lease.spec, lease_duration_seconds=duration, renew_time=now))


def connection_may_be_bad(error: ApiError) -> bool:
    """Whether another connection may lead to a server that answers better."""
    return not isinstance(error, ApiStatusError) or error.server_fault


class LeaseController:
    """Creates the lease and renews it."""

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        *,
        duration: int,
        uid: Callable[[], str | None],
        node_comes: Callable[[], Awaitable[None]] = trio.sleep_forever,
        clock: WallClock,
        rng: Random,
    ) -> None:
        """`client`: without a rate limit. `duration` in seconds. `uid`: of the node object, None while it is unknown.
        `node_comes` returns when that changes."""
        self._client = client
        self._name = node_name
        self._duration = duration
        self._uid = uid
        self._node_comes = node_comes
        self._clock = clock
        self._rng = rng
        self._latest: Lease | None = None

    async def run(self) -> None:
        """Until cancelled. A renewal that failed is tried again as soon as the API server answers, or in its turn."""
        period = self._duration * RENEW_FRACTION
        while True:
            seen = self._client.health.recoveries
            held = await self._hold()
            with trio.move_on_after(period * (1 + JITTER * self._rng.random())):
                if held:
                    await trio.sleep_forever()
                await self._client.health.wait_recovery(seen)

    async def _hold(self) -> bool:
        """Renew the lease, or create it. Returns whether it is held now."""
        if self._latest is not None and await self._renew(self._latest):
            return True
        lease, created = await self._ensure()
        return created or await self._renew(lease)

    async def _renew(self, lease: Lease) -> bool:
        for attempt in range(TRIES):
            wanted = renewed(lease, self._name, self._uid(), self._duration, self._clock.now())
            try:
                self._latest = await self._client.update(LEASES, wanted, urgency=Urgency.URGENT)
            except ApiError as error:
                log.warning("the node's lease was not renewed", error=str(error))
                if isinstance(error, ApiStatusError) and (error.not_found or error.conflict):
                    lease, created = await self._ensure()
                    if created:
                        return True
                if attempt > 0 and connection_may_be_bad(error):
                    self._client.drop_connections()
            else:
                return True
        return False

    async def _ensure(self) -> tuple[Lease, bool]:
        """The lease that there is, or a new one, and whether it is new. Waits until there is one."""
        pauses = GrowingPauses(self._client.health, RETRY_FIRST, RETRY_LONGEST)
        while True:
            pauses.attempt()
            try:
                self._latest, created = await self._get_or_create()
            except ApiError as error:
                log.warning("the node has no lease yet", error=str(error), retry_in=pauses.next)
                await pauses.after_failure()
            else:
                if self._latest is not None:
                    return self._latest, created
                await pauses.until(self._node_comes)

    async def _get_or_create(self) -> tuple[Lease | None, bool]:
        """None: there is no lease, and without the node's UID none can be made."""
        try:
            return await self._client.get(LEASES, self._name, NAMESPACE), False
        except ApiStatusError as error:
            if not error.not_found:
                raise
        uid = self._uid()
        if uid is None:
            return None, False
        lease = renewed(None, self._name, uid, self._duration, self._clock.now())
        return await self._client.create(LEASES, lease, urgency=Urgency.URGENT), True
