"""Keeps a certificate valid: asks for the next one long before the end of the one in use.

A certificate is renewed after 70 to 90 percent of its life, at a point chosen anew for each, so that nodes that joined
together do not come back together. It is renewed at once when it does not say what is wanted: when there is none, when
the node has got another address. Each renewal has a new key. A request that is not signed within 15 minutes, and
whatever else fails, is tried again for ever; the certificate in use stays in use.

The end of a certificate is a date, so the time until a renewal is looked at every minute: a machine that slept for a
week notices.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.kube_client.certificates.requests import (
    SigningError,
    request_certificate,
    wait_for_certificate,
)
from trikubelet.kube_client.certificates.store import CertificateError, CertifiedKey, NoPairError, certified_key
from trikubelet.kube_client.errors import ApiError
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from trikubelet.clock import WallClock
    from trikubelet.kube_client.certificates.reading import Certificate
    from trikubelet.kube_client.certificates.requests import Wanted
    from trikubelet.kube_client.certificates.store import CertificateStore
    from trikubelet.kube_client.tls import KeyPair
    from trikubelet.kube_client.types import ApiClient

log = get_logger("certificates")

SIGNED_WITHIN: Final = 15 * 60.0
"""Seconds that one request is waited for."""
RETRIES: Final = Backoff(first=2.0, longest=32.0)
LOOK: Final = 60.0
"""Seconds between two looks at the date, and between two log lines about a certificate that has expired."""
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
AGE_BOUNDS: Final = (
    *(60, _HOUR, 4 * _HOUR, _DAY, 7 * _DAY),
    *(30 * _DAY, 90 * _DAY, 180 * _DAY, 360 * _DAY, 4 * 360 * _DAY),
)
"""Seconds, as of the kubelet's `certificate_manager_server_rotation_seconds`."""
LOOK_FOR_WANTED: Final = 5.0
"""Seconds between two looks whether it is known by now what to ask for."""


def rotation_time(not_before: datetime, not_after: datetime, chance: float) -> datetime:
    """When to renew a certificate; `chance` from 0 to 1 picks the point."""
    return not_before + (not_after - not_before) * (0.7 + 0.2 * chance)


def missing(certificate: Certificate, wanted: Wanted) -> str:
    """What a certificate does not say that is wanted, empty when it says all of it. It may say more."""
    if wanted.common_name not in (certificate.common_names or {""}):
        return f"CN {wanted.common_name}"
    for what, wished, got in (
        ("organizations", wanted.organizations, certificate.organizations),
        ("DNS names", wanted.dns_names, certificate.dns_names),
        ("IP addresses", wanted.ip_addresses, certificate.ip_addresses),
    ):
        absent = sorted(set(wished) - got)
        if absent:
            return f"{what} {', '.join(absent)}"
    return ""


@frozen
class RotationStatistics:
    """What became of the requests since the start."""

    renewed: int
    failed: int
    last_problem: str
    """Of the last failure; empty when the last request was answered with a certificate."""
    next_renewal: datetime | None


class CertificateManager:
    """Has the current certificate of one purpose, and sees to it that there is one.

    `client` gives, for one renewal, a client of the API server; it gets the pair to identify with, or None when
    there is no valid one yet. `wanted` gives the certificate's subject; None: not known yet, nothing is asked
    for. Call `check_soon` when it has changed. `initial` is a pair to begin with when the store has none,
    which is renewed at once. Making a manager reads the store; raises CertificateError when that has something of no
    use.
    """

    def __init__(
        self,
        store: CertificateStore,
        *,
        client: Callable[[CertifiedKey | None], AbstractAsyncContextManager[ApiClient]],
        wanted: Callable[[], Wanted | None],
        signer: str,
        purpose: str,
        clock: WallClock,
        rng: random.Random | None = None,
        initial: KeyPair | None = None,
    ) -> None:
        self._store, self._client, self._wanted = store, client, wanted
        self._signer, self._purpose = signer, purpose
        self._clock = clock
        self._rng = rng or random.Random()
        self._listeners: list[Callable[[], None]] = []
        self._looked: Broadcast[None] = Broadcast()
        self._asked_for: Wanted | None = None
        self._asking: trio.CancelScope | None = None
        self._renewed = self._failed = 0
        self.ages = Histogram(AGE_BOUNDS)
        """Seconds that certificates had been valid when another took their place."""
        self._problem = ""
        self._held, self._at_once = _beginning(store, initial, clock.now())
        self._due: datetime | None = None

    @property
    def current(self) -> CertifiedKey | None:
        """The pair to use now; None while there is none, or none that is still valid."""
        return None if self._held is None or self._held.expired(self._clock.now()) else self._held

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called synchronously when `current` is another pair. It must not block.

        Synchronously, so that no connection is made with the old pair afterwards.
        """
        self._listeners.append(listener)

    def check_soon(self) -> None:
        """What is wanted may have changed: do not wait for the next look."""
        self._looked.send(None)
        wanted = self._wanted()
        if self._asking is not None and wanted not in (None, self._asked_for) and self._unsatisfied():
            self._asking.cancel()

    def statistics(self) -> RotationStatistics:
        return RotationStatistics(self._renewed, self._failed, self._problem, self._due)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew whenever it is time, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._complain_when_expired)
            task_status.started()
            await supervise(self._keep_renewing)

    async def _keep_renewing(self) -> None:
        while True:
            wanted = await self._until_due()
            await self._renew(wanted)

    async def _until_due(self) -> Wanted:
        """Wait until a certificate is to be asked for."""
        chance = self._rng.random()
        while True:
            now, wanted = self._clock.now(), self._wanted()
            self._due = now if self._at_once or self._held is None else self._time(self._held, now, chance)
            remaining = (self._due - now).total_seconds()
            if remaining <= 0 and wanted is not None:
                self._at_once = False
                return wanted
            seconds = LOOK_FOR_WANTED if remaining <= 0 else min(LOOK, remaining)
            with trio.move_on_after(seconds):
                await self._looked.wait()

    def _time(self, held: CertifiedKey, now: datetime, chance: float) -> datetime:
        lack = self._unsatisfied()
        if lack:
            log.info("the certificate does not say what is wanted, renewing it", missing=lack, signer=self._signer)
            return now
        return rotation_time(held.leaf.not_before, held.leaf.not_after, chance)

    def _unsatisfied(self) -> str:
        wanted = self._wanted()
        if self._held is None:
            return "everything"
        return "" if wanted is None else missing(self._held.leaf, wanted)

    async def _renew(self, wanted: Wanted) -> None:
        """Ask until there is a certificate, each time for what is wanted then."""
        wait = RETRIES.first
        while True:
            try:
                held = await self._ask(wanted)
            except (ApiError, SigningError, CertificateError, OSError) as error:
                self._failed += 1
                self._problem = str(error)
                log.warning("no certificate was issued, trying again", signer=self._signer, error=str(error))
                await trio.sleep(wait * (1 + 0.1 * self._rng.random()))
                wait = RETRIES.after(wait)
            else:
                if held is not None:
                    self._use(held)
                    return
            wanted = self._wanted() or wanted

    async def _ask(self, wanted: Wanted) -> CertifiedKey | None:
        """One request and its answer; None when meanwhile something else was wanted."""
        # Large, and wanted a few times a year.
        from trikubelet.kube_client.certificates.signing import key_pem, new_key, signing_request, usages

        key = new_key()
        request, used_for = signing_request(key, wanted), usages(key, self._purpose)
        with trio.CancelScope() as self._asking:
            self._asked_for = wanted
            try:
                async with self._client(self.current) as client:
                    now = self._clock.now()
                    submitted = await request_certificate(client, self._signer, request, used_for, key=key, now=now)
                    certificate = b""
                    with trio.move_on_after(SIGNED_WITHIN):
                        certificate = await wait_for_certificate(client, submitted)
            finally:
                self._asking = None
            if not certificate:
                raise SigningError(f'csr "{submitted.name}" was not signed within {SIGNED_WITHIN / 60:.0f} minutes')
            return await trio.to_thread.run_sync(self._store.update, certificate, key_pem(key))
        log.info("another certificate is wanted than the one asked for", signer=self._signer)
        return None

    def _use(self, held: CertifiedKey) -> None:
        if self._held is not None:
            self.ages.observe((self._clock.now() - self._held.leaf.not_before).total_seconds())
        self._held = held
        self._renewed += 1
        self._problem = ""
        log.info("new certificate", signer=self._signer, expires=held.leaf.not_after.isoformat())
        for listener in self._listeners:
            listener()

    async def _complain_when_expired(self) -> None:
        while True:
            if self._held is not None and self._held.expired(self._clock.now()):
                log.error(
                    "the certificate has expired and there is no new one",
                    signer=self._signer,
                    expired=self._held.leaf.not_after.isoformat(),
                    problem=self._problem or ("" if self._asking is None else "nobody has approved its request yet"),
                )
            await trio.sleep(LOOK)


def _beginning(store: CertificateStore, initial: KeyPair | None, now: datetime) -> tuple[CertifiedKey | None, bool]:
    """The pair to begin with, and whether it is to be renewed at once. Raises CertificateError."""
    try:
        stored = store.current()
    except NoPairError:
        stored = None
    if stored is not None and not stored.expired(now):
        return stored, False
    if initial is None:
        return stored, True
    try:
        return store.update(initial.certificate, initial.key), True
    except OSError as error:
        log.warning("the first certificate cannot be kept", error=str(error))
        return certified_key(initial.certificate, initial.key), True
