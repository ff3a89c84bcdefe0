"""Has drivers prepare the claims of pods, and undo it: the order of steps that survives every end of the agent.

Two pods that share a claim come one after the other: whatever is done about a claim is done holding its lock. So a
driver never has two calls of ours for one claim, and what one pod prepared the next one finds prepared. A pod takes the
locks of all its claims in one order, so nobody waits in a circle. A lock is held for as long as plugins have deadlines.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.kube_client.object_getter import ObjectError, look_up
from trikubelet.kube_client.types import RESOURCE_CLAIMS
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.node.dra.claims import claims_of, usable_claim
from trikubelet.node.dra.plugin import DRAPluginError
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable

    from trikubelet.api import Pod
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.node.dra.book import ClaimBook
    from trikubelet.node.dra.checkpoint import ClaimCheckpoint
    from trikubelet.node.dra.claims import ClaimGates
    from trikubelet.node.dra.metrics import ClaimMetrics
    from trikubelet.node.dra.model import ClaimDevice, ClaimKey, ClaimState
    from trikubelet.node.dra.plugins import DRAPlugins

log = get_logger("claims")


class ClaimPreparation:
    """Both ways. Its methods raise ResourceClaimError, and may be cancelled: whatever was left is done by the next."""

    def __init__(
        self,
        client: ApiClient,
        book: ClaimBook,
        checkpoint: ClaimCheckpoint,
        plugins: DRAPlugins,
        gates: ClaimGates,
        metrics: ClaimMetrics,
    ) -> None:
        self._client = client
        self._book = book
        self._checkpoint = checkpoint
        self._plugins = plugins
        self._gates = gates
        self._metrics = metrics
        self._locks: dict[ClaimKey, trio.Lock] = {}

    async def prepare(self, pod: Pod) -> None:
        """Have everything prepared that the pod claims. On the disk when it returns."""
        await self._measured("PrepareResources", self._prepare(pod))

    async def unprepare(self, uid: str) -> None:
        """The pod uses its claims no more: have those undone that no other uses. To be called when nothing of the pod
        runs. Fine for a pod without claims."""
        await self._measured("UnprepareResources", self._unprepare(uid))

    async def _prepare(self, pod: Pod) -> None:
        """Everything is looked at before anything is changed: a pod that fails here leaves nothing to undo. A driver
        that is not there is a failure even where the claim is prepared: something is wrong with the node."""
        wanted: list[ClaimState] = []
        for use in claims_of(pod):
            try:
                found = await look_up(self._client, RESOURCE_CLAIMS, use.name, pod.metadata.namespace)
            except ObjectError as error:
                raise ResourceClaimError(f"fetch ResourceClaim {use.name}: {error}") from error
            claim = usable_claim(pod, use, found, self._gates)
            for driver in claim.drivers:
                self._plugins.get(driver)
            wanted.append(claim)
        async with self._holding(claim.key for claim in wanted):
            lacking = self._book.enter(pod.metadata.uid, wanted)
            await self._write_down("cache")
            if not lacking:
                return
            given: dict[str, dict[str, tuple[ClaimDevice, ...]]] = {claim.uid: {} for claim in lacking}
            for driver, claims in _by_driver(lacking).items():
                for uid, devices in (await self._plugins.get(driver).prepare(claims)).items():
                    given[uid][driver] = devices
            for claim in lacking:
                self._book.set_prepared(claim.key, given[claim.uid])
            await self._write_down("state")

    async def _unprepare(self, uid: str) -> None:
        async with self._holding(claim.key for claim in self._book.used_by(uid)) as keys:
            last = self._book.leave(uid, keys)
            for driver, claims in _by_driver(last).items():
                await self._plugins.get(driver).unprepare(claims)
            self._book.forget(claim.key for claim in last)
            # Until this is written the next agent does it again, which drivers have to allow.
            await self._write_down("state")

    async def _measured(self, operation: str, work: Awaitable[None]) -> None:
        began, failed = trio.current_time(), True
        try:
            await work
            failed = False
        except DRAPluginError as error:
            raise ResourceClaimError(str(error)) from error
        finally:
            labels = (operation, str(failed).lower())
            self._metrics.operations.observe(labels, trio.current_time() - began)

    async def _write_down(self, what: str) -> None:
        try:
            await self._checkpoint.durable()
        except CheckpointError as error:
            raise ResourceClaimError(f"checkpoint ResourceClaim {what}: {error}") from error

    @asynccontextmanager
    async def _holding(self, keys: Iterable[ClaimKey]) -> AsyncIterator[list[ClaimKey]]:
        ordered = sorted(set(keys))
        async with AsyncExitStack() as stack:
            for key in ordered:
                await stack.enter_async_context(self._alone(key))
            yield ordered

    @asynccontextmanager
    async def _alone(self, key: ClaimKey) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(key, None)


def _by_driver(claims: Iterable[ClaimState]) -> dict[str, list[ClaimState]]:
    found: dict[str, list[ClaimState]] = {}
    for claim in claims:
        for driver in claim.drivers:
            found.setdefault(driver, []).append(claim)
    return dict(sorted(found.items()))
