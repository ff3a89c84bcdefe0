"""Certificates with their keys, in files that a kubelet of the same machine can take over, and the other way round.

A pair is one file, `PREFIX-2026-01-31-12-00-00.pem`, and `PREFIX-current.pem` is a link to the newest. Kubeconfigs
name the link. It is replaced by renaming a new link, `PREFIX-updated.pem`, over it: readers find the old pair or the
new one, whole, and so does an agent that was killed in between. A kubelet removes the old link first and may die there;
its `updated` link is completed when the store is opened.

The calls block on the disk, `update` until the disk has it: not for the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.pem import pem_blocks
from trikubelet.formats.values import frozen
from trikubelet.kube_client.certificates.reading import (
    Certificate,
    belong_together,
    certificate_blocks,
    read_certificate,
)
from trikubelet.kube_client.tls import KeyPair
from trikubelet.linux.durable_files import sync_folder, write_atomically

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from trikubelet.clock import WallClock


@frozen
class CertificateError(Exception):
    """A certificate or its key cannot be used, read or kept."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class NoPairError(CertificateError):
    """There is none yet: to be asked for."""


@frozen(eq=False)
class CertifiedKey:
    """A private key and the certificates for it, the node's own first."""

    pair: KeyPair
    leaf: Certificate

    def expired(self, now: datetime) -> bool:
        return now > self.leaf.not_after


class CertificateStore:
    """The pairs of one purpose in a folder.

    Without a current pair, `certificate_file` and `key_file` are looked at, then PREFIX.crt and PREFIX.key. Opening the
    store completes a change that was interrupted; raises CertificateError when the folder is not as expected.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        *,
        clock: WallClock,
        certificate_file: Path | None = None,
        key_file: Path | None = None,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._clock = clock
        self._files = (certificate_file, key_file)
        self._updated = folder / f"{prefix}-updated.pem"
        self.current_path = folder / f"{prefix}-current.pem"
        """Where the newest pair is to be found, once there is one."""
        if not self.current_path.exists() and _is_link(self._updated):
            self._updated.replace(self.current_path)

    def current(self) -> CertifiedKey:
        """The newest pair. Raises NoPairError, and CertificateError when it is there but of no use."""
        own = (self._folder / f"{self._prefix}.crt", self._folder / f"{self._prefix}.key")
        for certificate, key in ((self.current_path, self.current_path), self._files, own):
            if certificate is not None and key is not None and certificate.exists() and key.exists():
                return load_files(certificate, key)
        given = tuple("" if path is None else str(path) for path in self._files)
        raise NoPairError(
            f'no cert/key files read at "{self.current_path}", ("{given[0]}", "{given[1]}") or ("{own[0]}", "{own[1]}")'
        )

    def update(self, certificate: bytes, key: bytes) -> CertifiedKey:
        """Keep a new pair and make it the current one. Raises CertificateError and OSError; then nothing changed."""
        certified = certified_key(certificate, key)
        _is_link(self.current_path)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        path = self._folder / f"{self._prefix}-{self._clock.now():%Y-%m-%d-%H-%M-%S}.pem"
        write_atomically(path, certified.pair.certificate + certified.pair.key)
        if _is_link(self._updated):
            self._updated.unlink()
        self._updated.symlink_to(path.absolute())
        self._updated.replace(self.current_path)
        sync_folder(self._folder)
        return certified


def load_files(certificate: Path, key: Path) -> CertifiedKey:
    """Read a pair; one file may hold both. Raises CertificateError."""
    try:
        chain = certificate.read_bytes()
        # Of one file for both, two reads could see two versions.
        return certified_key(chain, chain if key == certificate else key.read_bytes())
    except OSError as error:
        raise CertificateError(f"cannot read {error.filename or certificate}: {error.strerror}") from error
    except CertificateError as error:
        raise CertificateError(f'could not convert data from "{certificate}" into cert/key pair: {error}') from error


def certified_key(certificate: bytes, key: bytes) -> CertifiedKey:
    """Take a pair out of PEM, whatever else stands there, and check that its parts belong together.

    Raises CertificateError.
    """
    blocks = certificate_blocks(certificate)
    try:
        chain = [read_certificate(block) for block in blocks]
    except ValueError as error:
        raise CertificateError(f"invalid certificate data: {error}") from error
    if not chain:
        raise CertificateError("invalid certificate data: expected a PEM block CERTIFICATE")
    pair = KeyPair(b"".join(blocks), private_key_block(key))
    try:
        if not belong_together(pair):
            raise CertificateError("the private key does not belong to the certificate")
    except ValueError as error:
        raise CertificateError(f"invalid key data: {error}") from error
    return CertifiedKey(pair, chain[0])


def private_key_block(pem: bytes) -> bytes:
    """The first private key in a text, of whatever kind. Raises CertificateError."""
    block = next((block for block in pem_blocks(pem) if block.label.endswith(b"PRIVATE KEY")), None)
    if block is None:
        raise CertificateError("invalid key data: expected a PEM block PRIVATE KEY")
    if b"ENCRYPTED" in block.text:
        raise CertificateError("invalid key data: expected a key without a password, got an encrypted one")
    return block.text + b"\n"


def _is_link(path: Path) -> bool:
    """Whether there is a link, however broken. Raises CertificateError for a file, which is a mistake."""
    if path.is_symlink():
        return True
    if path.exists():
        raise CertificateError(f'expected "{path}" to be a symlink but it is a file')
    return False
