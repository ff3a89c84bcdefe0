"""Client certificates of pods (kubelet: `podcertificate.IssuingManager`).

A projected volume may show a key and a certificate for it. The node makes the key, which never leaves it, and asks for
the certificate with a PodCertificateRequest; somebody in the cluster signs it or refuses. When the certificate is due
for renewal the same happens again, with a new key, and the pod has the old one until the new one is there.

One task keeps each certificate; what it does next is decided in `pod_certificate_state`. The requests of this node are
watched from when the first pod wants a certificate: few clusters have them at all. Nothing is kept over a restart of
the agent, since keys are kept nowhere: new certificates are requested then.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import (
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCertificateProjection,
    PodCertificateRequest,
    PodCertificateRequestSpec,
)
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.formats.values import define
from trikubelet.kube_client.errors import ApiError
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.pod_certificate_state import (
    JITTER,
    Issued,
    Nothing,
    Refused,
    State,
    advance,
    asked,
    request_of,
    state_label,
)
from trikubelet.kube_client.recovery import GrowingPauses
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import POD_CERTIFICATE_REQUESTS, SERVICE_ACCOUNTS, version_number
from trikubelet.kube_client.volume_objects import CertificateAndKey
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, timedelta
    from random import Random

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.pod_certificate_keys import KeyAndProof
    from trikubelet.kube_client.pod_certificate_state import Advance
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.telemetry.events import EventRecorder

FIRST_ISSUE_SECONDS: Final = 2.0
"""How long the first caller waits: signers are quick, and a moment saves the pod a failure."""
RETRY_FIRST: Final = 1.0
RETRY_LONGEST: Final = 600.0
"""Seconds between attempts to make a request."""
LONGEST_SLEEP: Final = 600.0
"""Seconds until the date is looked at again: clocks are set, and machines sleep."""

log = get_logger("certificates")

Key = tuple[str, str, int]
"""UID of the pod, name of the volume, number of the source."""


class _NotYetError(Exception):
    """Something that a request needs is missing."""


@define(eq=False)
class _Kept:
    """One certificate."""

    pod: Pod
    source: PodCertificateProjection
    state: State = attrs.field(factory=Nothing)
    changes: Broadcast[None] = attrs.field(factory=Broadcast)
    """Of its request."""
    settled: trio.Event = attrs.field(factory=trio.Event)
    """There is a certificate, or there will be none."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class PodCertificates:
    """Requests, keeps and renews them."""

    def __init__(
        self,
        client: ApiClient,
        *,
        node_name: str,
        node_uid: Callable[[], str | None],
        recorder: EventRecorder,
        clock: WallClock,
        rng: Random,
    ) -> None:
        """`node_uid`: as the API server gave it; None while it is not known."""
        self._client = client
        self._node_name = node_name
        self._node_uid = node_uid
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        self._store: Store[PodCertificateRequest] = Store(POD_CERTIFICATE_REQUESTS)
        self._store.subscribe(self._request_changed)
        self._kept: dict[Key, _Kept] = {}
        self._begin, self._begun = trio.open_memory_channel[_Kept](math.inf)
        self._follows = False
        """The requests are followed: some certificate was wanted."""
        self.changes: Broadcast[str] = Broadcast()
        """UIDs of pods that have a new certificate, or are refused one."""
        self._key_maker = trio.CapacityLimiter(1)

    async def certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        """The newest certificate for source number `index` of a projected volume; it is renewed from now on, until
        `forget`. Raises ObjectError while there is none. Cancellable: the request goes on."""
        key = (pod.metadata.uid, volume, index)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(pod, source)
            self._begin.send_nowait(kept)
            with trio.move_on_after(FIRST_ISSUE_SECONDS):
                await kept.settled.wait()
        await trio.lowlevel.checkpoint()
        match kept.state:
            case Issued(key=private, chain=chain):
                return CertificateAndKey(chain=chain, key=private)
            case Refused() as refused:
                raise ObjectError(str(refused), "unavailable")
            case _:
                raise ObjectError("credential bundle is not issued yet", "unavailable")

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        for key in [key for key in self._kept if key[0] == uid]:
            self._kept.pop(key).scope.cancel()

    def report(self) -> Mapping[tuple[str, str], int]:
        """How many certificates of each signer are in which state, for metrics."""
        counts: dict[tuple[str, str], int] = {}
        now = self._clock.now()
        for kept in self._kept.values():
            key = (kept.source.signer_name, state_label(kept.state, now))
            counts[key] = counts.get(key, 0) + 1
        return counts

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started at once; asks the API server for nothing before a pod wants a certificate."""
        task_status.started()
        selector = f"spec.nodeName={self._node_name}"
        reflector = Reflector(
            self._client, POD_CERTIFICATE_REQUESTS, self._store, rng=self._rng, field_selector=selector
        )
        async with trio.open_nursery() as nursery:
            await supervise(self._begin_to_keep, nursery, reflector)

    async def _begin_to_keep(self, nursery: trio.Nursery, reflector: Reflector[PodCertificateRequest]) -> None:
        async for kept in self._begun:
            if not self._follows:
                self._follows = True
                nursery.start_soon(supervise, reflector.run)
            nursery.start_soon(self._keep, kept)

    # One certificate

    async def _keep(self, kept: _Kept) -> None:
        with kept.scope:
            await supervise(self._keep_current, kept)

    async def _keep_current(self, kept: _Kept) -> None:
        pauses = GrowingPauses(
            self._client.health, RETRY_FIRST, RETRY_LONGEST, vary=lambda: 0.9 + 0.2 * self._rng.random()
        )
        with kept.changes.subscribe() as changes:
            await trio.lowlevel.checkpoint_if_cancelled()
            while not isinstance(kept.state, Refused):
                changes.drop(None)
                seen = self._inspect(kept)
                self._take(kept, seen)
                pauses.attempt()
                if seen.lost:
                    log.warning("PodCertificateRequest appears to have been deleted", pod=kept.pod.metadata.name)
                    await pauses.after_failure()
                if not seen.ask:
                    if isinstance(kept.state, Issued) and kept.state.renewal is None:
                        pauses.succeeded()
                    await self._wait(changes, seen.wake_at)
                elif (problem := await self._ask(kept)) is not None:
                    log.warning("no certificate was requested", pod=kept.pod.metadata.name, error=problem)
                    await pauses.after_failure()

    def _inspect(self, kept: _Kept) -> Advance:
        requested, request, gone = request_of(kept.state), None, False
        if requested is not None:
            request = self._store.get(requested.name, kept.pod.metadata.namespace)
            born = version_number(requested.version)
            gone = self._store.synced and 0 <= born <= version_number(self._store.resource_version) and request is None
        return advance(kept.state, self._clock.now(), request=request, gone=gone, jitter=self._jitter())

    def _take(self, kept: _Kept, seen: Advance) -> None:
        before, kept.state = kept.state, seen.state
        for warning in seen.warnings:
            self._recorder.pod_event(kept.pod, EventType.WARNING, warning.reason, warning.message)
        if isinstance(seen.state, Refused) or (isinstance(seen.state, Issued) and _chain(before) != seen.state.chain):
            log.info(
                "pod certificate decided", pod=kept.pod.metadata.name, state=state_label(kept.state, self._clock.now())
            )
            kept.settled.set()
            self.changes.send(kept.pod.metadata.uid)

    async def _wait(self, changes: Subscription[None], wake_at: datetime | None) -> None:
        """Until something may have changed, or the date is reached."""
        seconds = LONGEST_SLEEP
        if wake_at is not None:
            seconds = min(seconds, max(0.0, (wake_at - self._clock.now()).total_seconds()))
        with trio.move_on_after(seconds):
            await changes.receive()

    async def _ask(self, kept: _Kept) -> str | None:
        """Make a request; None once it is made, else why it was not."""
        try:
            key = await self._new_key(kept.source.key_type)
            request = await self._client.create(POD_CERTIFICATE_REQUESTS, await self._request(kept, key.request))
        except (ApiError, _NotYetError, ValueError) as error:
            return str(error)
        kept.state = asked(kept.state, request, key.key, self._clock.now(), self._jitter())
        return None

    async def _request(self, kept: _Kept, proof: bytes) -> PodCertificateRequest:
        pod, source = kept.pod.metadata, kept.source
        node_uid = self._node_uid()
        if node_uid is None:
            raise _NotYetError(f'expected the UID of node "{self._node_name}", which is not known yet')
        account = await self._client.get(SERVICE_ACCOUNTS, kept.pod.spec.service_account_name, pod.namespace)
        owner = OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid)
        return PodCertificateRequest(
            metadata=ObjectMeta(namespace=pod.namespace, generate_name="req-", owner_references=(owner,)),
            spec=PodCertificateRequestSpec(
                signer_name=source.signer_name,
                pod_name=pod.name,
                pod_uid=pod.uid,
                service_account_name=account.metadata.name,
                service_account_uid=account.metadata.uid,
                node_name=self._node_name,
                node_uid=node_uid,
                max_expiration_seconds=source.max_expiration_seconds,
                stub_pkcs10_request=proof,
                unverified_user_annotations=source.user_annotations,
            ),
        )

    async def _new_key(self, key_type: str) -> KeyAndProof:
        """Raises ValueError."""
        from trikubelet.kube_client.pod_certificate_keys import new_key, takes_long

        if takes_long(key_type):
            return await trio.to_thread.run_sync(new_key, key_type, limiter=self._key_maker, abandon_on_cancel=True)
        return new_key(key_type)

    def _jitter(self) -> timedelta:
        return JITTER * self._rng.random()

    def _request_changed(self, old: PodCertificateRequest | None, new: PodCertificateRequest | None) -> None:
        for request in (old, new):
            if request is not None:
                for key, kept in self._kept.items():
                    if key[0] == request.spec.pod_uid:
                        kept.changes.send(None)


def _chain(state: State) -> bytes | None:
    return state.chain if isinstance(state, Issued) else None
