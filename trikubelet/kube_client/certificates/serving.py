"""The certificate that the node shows to its clients: one of three kinds, behind one interface.

    tlsCertFile, tlsPrivateKeyFile    files that somebody else keeps current: `WatchedPair`
    serverTLSBootstrap                asked for at the API server, for the node's addresses: `serving_manager`
    neither                           made by the node itself, once: `self_signed_files`, read by a `WatchedPair`

No controller approves requests for serving certificates: until an administrator does, there is none.
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import trio
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trikubelet.kube_client.certificates.requests import (
    SERVER_AUTH,
    SERVING_SIGNER,
    Wanted,
    alternative_names,
    key_pem,
    new_key,
    wanted_for_node,
)
from trikubelet.kube_client.certificates.rotation import CertificateManager
from trikubelet.kube_client.certificates.store import (
    CertificateError,
    CertificateStore,
    CertifiedKey,
    load_files,
)
from trikubelet.linux.durable_files import write_atomically
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

    from trikubelet.api import NodeAddress
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.types import ApiClient

log = get_logger("certificates")

STORE_PREFIX: Final = "kubelet-server"
LOOK: Final = 10.0
"""Seconds between two looks at files."""
LIFE: Final = timedelta(days=365)
CLOCKS_DIFFER: Final = timedelta(hours=1)
"""How much a certificate of our own is valid before it is made."""


class ServingCertificate(Protocol):
    """What a server needs to know of its certificate."""

    @property
    def current(self) -> CertifiedKey | None: ...

    def on_change(self, listener: Callable[[], None]) -> None: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...


class WatchedPair:
    """A pair in files that may be replaced. What is no pair is not taken: the last good one stays."""

    def __init__(self, certificate_file: Path, key_file: Path, *, watches: bool = True) -> None:
        """Reads the files; raises CertificateError. Unless it `watches`, the first pair is the only one."""
        self._watches = watches
        self._certificate_file, self._key_file = certificate_file, key_file
        self._seen = self._signature()
        self._current = load_files(certificate_file, key_file)
        self._listeners: list[Callable[[], None]] = []

    @property
    def current(self) -> CertifiedKey:
        """The last good pair, even when it has expired: clients of the node seldom look."""
        return self._current

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called synchronously when `current` is another pair. It must not block.

        Synchronously, so that no connection is made with the old pair afterwards.
        """
        self._listeners.append(listener)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the files from time to time, until cancelled."""
        task_status.started()
        while self._watches:
            await trio.sleep(LOOK)
            self.reload()

    def reload(self) -> None:
        """Read the files again if they have changed."""
        seen = self._signature()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            new = load_files(self._certificate_file, self._key_file)
        except CertificateError as error:
            log.warning("the serving certificate cannot be read again, the last good one stays", error=str(error))
            return
        if new.pair == self._current.pair:
            return
        self._current = new
        log.info("new serving certificate", file=str(self._certificate_file))
        for listener in self._listeners:
            listener()

    def _signature(self) -> list[tuple[int, int, int, int] | None]:
        return [_signature(path) for path in (self._certificate_file, self._key_file)]


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def names_and_addresses(addresses: Sequence[NodeAddress]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The DNS names and the IP addresses of a node, each sorted and once. What is no address is left out."""
    names, ips = set(), set()
    for entry in addresses:
        ip = _ip(entry.address)
        if entry.type in ("Hostname", "InternalIP", "ExternalIP") and ip is not None:
            ips.add(ip)
        elif entry.type in ("Hostname", "InternalDNS", "ExternalDNS") and entry.address:
            names.add(entry.address)
    return tuple(sorted(names)), tuple(sorted(ips))


def _ip(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def wanted_for_serving(
    node_name: str, addresses: Sequence[NodeAddress], *, names_suffice: bool = False
) -> Wanted | None:
    """What a node's serving certificate has to say; None while the node has no IP address.

    `names_suffice`: a DNS name is enough (feature gate AllowDNSOnlyNodeCSR).
    """
    names, ips = names_and_addresses(addresses)
    return wanted_for_node(node_name, names, ips) if ips or (names_suffice and names) else None


def serving_manager(
    client: ApiClient,
    node_name: str,
    folder: Path,
    addresses: Callable[[], Sequence[NodeAddress]],
    *,
    clock: WallClock,
    names_suffice: bool = False,
    rng: random.Random | None = None,
) -> CertificateManager:
    """Asks for serving certificates. Call `check_soon` when the node's addresses change. Raises CertificateError."""
    return CertificateManager(
        CertificateStore(folder, STORE_PREFIX, clock=clock),
        client=lambda _: nullcontext(client),
        wanted=lambda: wanted_for_serving(node_name, addresses(), names_suffice=names_suffice),
        signer=SERVING_SIGNER,
        purpose=SERVER_AUTH,
        clock=clock,
        rng=rng,
    )


def self_signed_files(folder: Path, host: str, now: datetime) -> tuple[Path, Path]:
    """Certificate and key of the node's own making: `kubelet.crt` and `kubelet.key`, kept once they are there.

    Raises CertificateError when only one of them can be read, and OSError.
    """
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    readable = [os.access(path, os.R_OK) for path in (certificate, key)]
    if all(readable):
        return certificate, key
    if any(readable):
        problem = key if readable[0] else certificate
        raise CertificateError(f"error reading {problem}, certificate and key must be supplied as a pair")
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    chain, secret = self_signed(host, now)
    write_atomically(key, secret)
    write_atomically(certificate, chain)
    certificate.chmod(0o644)
    return certificate, key


def self_signed(host: str, now: datetime) -> tuple[bytes, bytes]:
    """A certificate for a year with the authority that signed it, whose key is forgotten; and the key (PEM both).

    `host` is a name or an address.
    """
    begin, stamp = now - CLOCKS_DIFFER, int(now.timestamp())
    authority_key, key = new_key(), new_key()
    authority_name = _common_name(f"{host}-ca@{stamp}")
    signing = _key_usage(certificates=True)
    authority = (
        _certificate(authority_name, authority_name, authority_key.public_key(), begin)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(signing, critical=True)
        .sign(authority_key, SHA256())
    )
    ip = _ip(host)
    names = alternative_names([], [ip]) if ip is not None else alternative_names([host], [])
    assert names is not None
    own = (
        _certificate(_common_name(f"{host}@{stamp}"), authority_name, key.public_key(), begin)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(_authority_of(authority_key), critical=False)
        .sign(authority_key, SHA256())
    )
    return own.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM), key_pem(key)


def _certificate(
    name: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, begin: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin).not_valid_after(begin + LIFE)


def _authority_of(key: EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
