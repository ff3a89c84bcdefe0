"""One certificate of a pod, from its first request to its renewals (kubelet: `podcertificate.projectionRecord`).

              ┌──── the request is lost ────┐
              ▼                             │
    nothing ── asked ──► Requested ── issued ──► Issued ◄──── issued, or the request is lost ──┐
                             │                    │  └── due for renewal, asked ──► with `renewal`
                             └── denied, failed ──┴─────── denied, failed ──► Refused

What is refused stays refused, though the certificate before it may be good still: the signer has its reasons.

No clock, no randomness: both are given. A request counts as lost when it is known to be gone, and when it was not seen
for ten minutes. An observer that lags behind must not make a second request.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import POD_CERTIFICATE_DENIED, POD_CERTIFICATE_FAILED, POD_CERTIFICATE_ISSUED
from trikubelet.formats.go_quote import go_quote
from trikubelet.formats.pem import pem_blocks
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import PodCertificateRequest

LOST_AFTER: Final = timedelta(minutes=10)
"""From a request's creation, when it was never seen."""
OVERDUE_AFTER: Final = timedelta(minutes=10)
"""From when a certificate was due for renewal."""
JITTER: Final = timedelta(minutes=5)
"""By which renewals, and giving up requests, are put off at most: pods that started together should not go on so."""
SHORTEST_USE: Final = timedelta(minutes=1)
"""A certificate that is due for renewal when it comes is used for so long all the same."""
NEVER: Final = datetime(9000, 1, 1, tzinfo=UTC)


@frozen
class Nothing:
    """A request is to be made."""


@frozen
class Requested:
    """A request was made, and nothing is decided."""

    name: str
    version: str
    """Its resource version at birth: a later list without it shows that it is gone."""
    key: bytes = attrs.field(repr=False)
    """PEM, of the private key that the certificate is to be for."""
    lost_at: datetime


@frozen
class Issued:
    """A certificate is there, for what it is worth by now."""

    key: bytes = attrs.field(repr=False)
    chain: bytes = attrs.field(repr=False)
    renew_at: datetime
    expires: datetime
    warned_overdue: bool = False
    warned_expired: bool = False
    renewal: Requested | None = None


@frozen
class Refused:
    """There will be none."""

    decision: str
    """Denied or Failed."""
    reason: str
    message: str

    def __str__(self) -> str:
        return (
            f"PodCertificateRequest was permanently {self.decision.lower()}: "
            f"reason={go_quote(self.reason)} message={go_quote(self.message)}"
        )


State = Nothing | Requested | Issued | Refused


@frozen
class Warned:
    """A warning that the pod's owner is to have."""

    reason: str
    message: str


@frozen
class Advance:
    """What follows from what is known now."""

    state: State
    ask: bool = False
    """A request is to be made, then `asked` gives the state."""
    lost: bool = False
    """A request was lost, so the next one should not come at once."""
    warnings: tuple[Warned, ...] = ()
    wake_at: datetime | None = None
    """When time alone changes something."""


def request_of(state: State) -> Requested | None:
    """The request whose decision is awaited."""
    match state:
        case Requested():
            return state
        case Issued(renewal=renewal):
            return renewal
        case _:
            return None


def advance(
    state: State, now: datetime, *, request: PodCertificateRequest | None, gone: bool, jitter: timedelta
) -> Advance:
    """`request`: that of `request_of`, as far as it is known; `gone`: it is known not to be there any more."""
    match state:
        case Nothing():
            return Advance(state, ask=True)
        case Refused():
            return Advance(state)
        case Requested():
            if request is not None:
                return _decided(state, request, now, jitter) or Advance(state)
            if gone or now >= state.lost_at:
                return Advance(Nothing(), ask=True, lost=True)
            return Advance(state, wake_at=state.lost_at)
        case Issued():
            return _inspect_issued(state, now, request, gone, jitter)


def asked(state: State, request: PodCertificateRequest, key: bytes, now: datetime, jitter: timedelta) -> State:
    """The state after a request was made in it."""
    metadata = request.metadata
    lost_at = (metadata.creation_timestamp or now) + LOST_AFTER + jitter
    requested = Requested(metadata.name, metadata.resource_version, key, lost_at)
    return attrs.evolve(state, renewal=requested) if isinstance(state, Issued) else requested


def _inspect_issued(
    state: Issued, now: datetime, request: PodCertificateRequest | None, gone: bool, jitter: timedelta
) -> Advance:
    if now < state.renew_at:
        return Advance(state, wake_at=state.renew_at)
    if state.renewal is not None and request is not None:
        decided = _decided(state.renewal, request, now, jitter)
        if decided is not None:
            return decided
    lost = state.renewal is not None and request is None and (gone or now >= state.renewal.lost_at)
    if lost:
        state = attrs.evolve(state, renewal=None)
    state, warnings = _warned(state, now)
    times = [] if state.warned_overdue else [state.renew_at + OVERDUE_AFTER]
    times += [] if state.warned_expired else [state.expires]
    times += [] if state.renewal is None or request is not None else [state.renewal.lost_at]
    return Advance(state, state.renewal is None, lost, warnings, min(times, default=None))


def _warned(state: Issued, now: datetime) -> tuple[Issued, tuple[Warned, ...]]:
    """The warnings about a certificate that should have been renewed: each once."""
    warnings = []
    if now >= state.renew_at + OVERDUE_AFTER and not state.warned_overdue:
        warnings.append(Warned("CertificateOverdueForRefresh", "PodCertificate refresh overdue"))
        state = attrs.evolve(state, warned_overdue=True)
    if now >= state.expires and not state.warned_expired:
        warnings.append(Warned("CertificateExpired", "PodCertificate expired"))
        state = attrs.evolve(state, warned_expired=True)
    return state, tuple(warnings)


def _decided(requested: Requested, request: PodCertificateRequest, now: datetime, jitter: timedelta) -> Advance | None:
    """None while nothing is decided."""
    status, metadata = request.status, request.metadata
    for condition in status.conditions:
        if condition.type == POD_CERTIFICATE_ISSUED:
            renew_at = status.begin_refresh_at or status.not_after
            renew_at = NEVER if renew_at is None else max(renew_at + jitter, now + SHORTEST_USE)
            chain = cleaned_chain(status.certificate_chain)
            return Advance(Issued(requested.key, chain, renew_at, status.not_after or NEVER), wake_at=renew_at)
        if condition.type in (POD_CERTIFICATE_DENIED, POD_CERTIFICATE_FAILED):
            refused = Refused(condition.type, condition.reason, condition.message)
            verb = "was denied" if condition.type == POD_CERTIFICATE_DENIED else "failed"
            text = (
                f"PodCertificateRequest {metadata.namespace}/{metadata.name} {verb}, "
                f"reason={go_quote(condition.reason)}, message={go_quote(condition.message)}"
            )
            return Advance(refused, warnings=(Warned(condition.type, text),))
    return None


def cleaned_chain(text: str) -> bytes:
    """A PEM chain without what stands between its certificates or in their headers."""
    chain = bytearray()
    for block in pem_blocks(text.encode(errors="replace")):
        body = block.body.rpartition(b"\n\n")[2] if b":" in block.body else block.body
        try:
            der = base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error:
            continue
        lines = base64.b64encode(der)
        wrapped = b"".join(lines[begin : begin + 64] + b"\n" for begin in range(0, len(lines), 64))
        chain += b"-----BEGIN CERTIFICATE-----\n" + wrapped + b"-----END CERTIFICATE-----\n"
    return bytes(chain)


def state_label(state: State, now: datetime) -> str:
    """For metrics (`metricsState`)."""
    match state:
        case Refused():
            return state.decision.lower()
        case Issued():
            if now >= state.expires:
                return "expired"
            return "overdue_for_refresh" if now >= state.renew_at + OVERDUE_AFTER else "fresh"
        case _:
            return "not_yet_issued"
