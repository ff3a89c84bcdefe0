"""Somebody who approves and signs the requests of a ScriptedClient."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from trikubelet.api import (
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestStatus,
)
from trikubelet.kube_client.certificates.requests import Wanted
from trikubelet.kube_client.certificates.signing import key_pem, new_key, signing_request, subject
from trikubelet.kube_client.types import SIGNING_REQUESTS

if TYPE_CHECKING:
    from tests.kube_client.scripted_client import ScriptedClient
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.certificates.signing import PrivateKey

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NODE = Wanted("system:node:n1", ("system:nodes",))


class Signer:
    """An authority. Certificates are valid from `begin`, or the clock's time, for `life`."""

    def __init__(self, life: timedelta = timedelta(hours=100)) -> None:
        self._key = new_key()
        self._name = subject(Wanted("authority"))
        self.life = life

    def sign(self, request: bytes, begin: datetime = EPOCH, life: timedelta | None = None) -> bytes:
        parsed = x509.load_pem_x509_csr(request)
        builder = (
            x509.CertificateBuilder()
            .subject_name(parsed.subject)
            .issuer_name(self._name)
            .public_key(parsed.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + (life or self.life))
        )
        for extension in parsed.extensions:
            builder = builder.add_extension(extension.value, critical=False)
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def pair(
        self,
        wanted: Wanted = NODE,
        begin: datetime = EPOCH,
        life: timedelta | None = None,
        key: PrivateKey | None = None,
    ) -> tuple[bytes, bytes]:
        """A certificate and its key."""
        key = key or new_key()
        return self.sign(signing_request(key, wanted), begin, life), key_pem(key)

    async def run(self, client: ScriptedClient, clock: WallClock) -> None:
        """Approve and sign every request, until cancelled."""
        async with client.watch(SIGNING_REQUESTS, send_initial_events=True, timeout=1e9) as events:
            async for event in events:
                found = event.object
                if event.type != "BOOKMARK" and isinstance(found, CertificateSigningRequest):
                    self.answer(client, found, clock.now())

    def answer(self, client: ScriptedClient, found: CertificateSigningRequest, begin: datetime | None = None) -> None:
        if not found.status.conditions:
            certificate = self.sign(found.spec.request, begin or EPOCH)
            client.put(decided(found, "Approved", certificate=certificate))


def decided(
    found: CertificateSigningRequest, kind: str, reason: str = "", message: str = "", certificate: bytes = b""
) -> CertificateSigningRequest:
    """The request with a decision about it."""
    condition = CertificateSigningRequestCondition(type=kind, status="True", reason=reason, message=message)
    conditions = (*found.status.conditions, condition)
    return attrs.evolve(found, status=CertificateSigningRequestStatus(conditions, certificate))
