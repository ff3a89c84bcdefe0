"""Asking the API server for a certificate: a request that somebody approves and a signer answers.

The node makes a key, which never leaves it, and a CertificateSigningRequest for it. A request with a name is asked for
once: a node that restarts before the answer finds its request again. One without a name gets one from the server. Then
the request is watched until its certificate is there or its fate is known; whatever else goes wrong meanwhile is tried
again until the caller's time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.api import CertificateSigningRequest, CertificateSigningRequestSpec, ObjectMeta
from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.types import SIGNING_REQUESTS, Undecodable
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from trikubelet.kube_client.certificates.signing import PrivateKey
    from trikubelet.kube_client.types import ApiClient

log = get_logger("certificates")

CLIENT_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER: Final = "kubernetes.io/kubelet-serving"
ORGANIZATION: Final = "system:nodes"
CLIENT_AUTH: Final = "client auth"
SERVER_AUTH: Final = "server auth"
WATCH_TIMEOUT: Final = 300.0
"""Seconds after which a watch is begun anew."""
RETRIES: Final = Backoff(first=1.0, longest=10.0)


@frozen
class Wanted:
    """The subject of a certificate. Names and addresses (in their usual form) are sorted and unique."""

    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


def wanted_for_node(node_name: str, dns_names: Sequence[str] = (), ip_addresses: Sequence[str] = ()) -> Wanted:
    """The identity of a node, with the names that it serves as."""
    return Wanted(f"system:node:{node_name}", (ORGANIZATION,), tuple(dns_names), tuple(ip_addresses))


@frozen
class SigningError(Exception):
    """No certificate comes of this request."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class Submitted:
    """A request that the API server has."""

    name: str
    uid: str


async def request_certificate(
    client: ApiClient,
    signer: str,
    request: bytes,
    used_for: Sequence[str],
    *,
    key: PrivateKey,
    now: datetime,
    name: str = "",
) -> Submitted:
    """Submit a request (PEM), or find the one of this name that is there already.

    Raises ApiError, and SigningError when the one that is there is not for this key and this identity.
    """
    wanted = CertificateSigningRequest(
        metadata=ObjectMeta(name=name) if name else ObjectMeta(generate_name="csr-"),
        spec=CertificateSigningRequestSpec(request=request, signer_name=signer, usages=tuple(used_for)),
    )
    try:
        made = await client.create(SIGNING_REQUESTS, wanted)
    except ApiStatusError as error:
        if not (name and error.already_exists):
            raise
        from trikubelet.kube_client.certificates.signing import incompatibility

        made = await client.get(SIGNING_REQUESTS, name)
        problem = incompatibility(made, wanted, key, now)
        if problem:
            raise SigningError(f"retrieved csr is not compatible: {problem}") from error
        log.info("csr for this node already exists, reusing", csr=name)
    else:
        log.info("certificate signing request created", csr=made.metadata.name, signer=signer)
    return Submitted(made.metadata.name, made.metadata.uid)


async def wait_for_certificate(client: ApiClient, submitted: Submitted) -> bytes:
    """The certificate (PEM) that is issued for a request. Waits without end; cancellable.

    Raises SigningError when there will be none: the request was denied, failed, or is gone.
    """
    wait = RETRIES.first
    while True:
        try:
            found = await client.get(SIGNING_REQUESTS, submitted.name)
            certificate = issued(found, submitted)
            if certificate:
                return certificate
            certificate = await _watch(client, submitted, found.metadata.resource_version)
            if certificate:
                return certificate
            wait = RETRIES.first
        except ApiError as error:
            if isinstance(error, ApiStatusError) and error.not_found:
                raise SigningError(f'csr "{submitted.name}" was deleted') from error
            log.debug("cannot look at the certificate signing request", csr=submitted.name, error=str(error))
        await trio.sleep(wait)
        wait = RETRIES.after(wait)


async def _watch(client: ApiClient, submitted: Submitted, version: str) -> bytes:
    selector = f"metadata.name={submitted.name}"
    watch = client.watch(SIGNING_REQUESTS, field_selector=selector, resource_version=version, timeout=WATCH_TIMEOUT)
    async with watch as events:
        async for event in events:
            if event.type == "BOOKMARK" or isinstance(event.object, Undecodable):
                continue
            if event.type == "DELETED":
                raise SigningError(f'csr "{submitted.name}" was deleted')
            certificate = issued(event.object, submitted)
            if certificate:
                return certificate
    return b""


def issued(found: CertificateSigningRequest, submitted: Submitted) -> bytes:
    """The certificate of a request, empty while there is none. Raises SigningError when there will be none."""
    if found.metadata.uid != submitted.uid:
        raise SigningError(f'csr "{submitted.name}" changed UIDs')
    for condition in found.status.conditions:
        if condition.type == "Denied":
            fate = "certificate signing request is denied"
        elif condition.type == "Failed":
            fate = "certificate signing request failed"
        else:
            continue
        raise SigningError(f"{fate}, reason: {condition.reason}, message: {condition.message}")
    approved = any(condition.type == "Approved" for condition in found.status.conditions)
    return found.status.certificate if approved else b""
