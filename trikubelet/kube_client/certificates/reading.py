"""What certificates say, and whether a key is theirs, by Python's own OpenSSL.

An agent looks at certificates all its life, and makes or judges one now and then. `cryptography`, which can do all of
it, takes 12 MiB; the `ssl` module is there anyway for the connection to the API server.
"""

from __future__ import annotations

import _ssl
import errno
import ssl
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from trikubelet.formats.pem import pem_blocks
from trikubelet.formats.values import frozen
from trikubelet.kube_client.tls import MemoryFile, error_text, load_pair

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.kube_client.tls import KeyPair

_LINE: Final = 64
_OF_ANOTHER: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's words for a key that is not the certificate's; the last one: they are of different kinds."""


@frozen
class Certificate:
    """What an X.509 certificate says of its holder. Addresses are in their usual form."""

    not_before: datetime
    not_after: datetime
    common_names: frozenset[str] = frozenset()
    organizations: frozenset[str] = frozenset()
    dns_names: frozenset[str] = frozenset()
    ip_addresses: frozenset[str] = frozenset()


def certificate_blocks(pem: bytes) -> list[bytes]:
    """The certificates in a text, each as PEM of its own; whatever else stands there is passed over.

    As in Go a block with headers is none. OpenSSL would ask a person for the password of one that says it is encrypted.
    """
    return [_pem(block.body) for block in pem_blocks(pem) if block.label == b"CERTIFICATE" and b":" not in block.body]


def _pem(body: bytes) -> bytes:
    """As everybody writes it, whatever the lines were."""
    text = b"".join(body.split())
    lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    return b"\n".join((b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""))


def read_certificates(pem: bytes) -> list[Certificate]:
    """Every certificate in a text, of which there may be none. Raises as `read_certificate`."""
    return [read_certificate(block) for block in certificate_blocks(pem)]


def read_certificate(block: bytes) -> Certificate:
    """One of `certificate_blocks`. Raises ValueError when it cannot be read, and OSError without descriptors."""
    try:
        with MemoryFile(block) as file:
            # Python has it for its own tests. What is public reads a peer's certificate only.
            said = _ssl._test_decode_cert(file.path)  # type: ignore[attr-defined]
    except ssl.SSLError as error:
        if "open" in str(error):
            raise OSError(errno.EMFILE, "a certificate cannot be read: too many open files") from error
        raise ValueError("its content is none of a certificate, or not in base64") from error
    subject = [entry for part in said["subject"] for entry in part]
    names = said.get("subjectAltName", ())
    return Certificate(
        _moment(said["notBefore"]),
        _moment(said["notAfter"]),
        _values(subject, "commonName"),
        _values(subject, "organizationName"),
        _values(names, "DNS"),
        frozenset(str(ip_address(text.strip())) for text in _values(names, "IP Address")),
    )


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def _values(entries: Iterable[tuple[str, ...]], kind: str) -> frozenset[str]:
    return frozenset(entry[1] for entry in entries if entry[0] == kind)


def belong_together(pair: KeyPair) -> bool:
    """Whether the key is that of the first certificate. Raises ValueError for one that cannot be used, and OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # however weak they are: that is for who uses them to say
    try:
        load_pair(context, pair)
    except (ssl.SSLError, ValueError) as error:
        if isinstance(error, ssl.SSLError) and error.reason in _OF_ANOTHER:
            return False
        raise ValueError(error_text(error)) from error
    return True
