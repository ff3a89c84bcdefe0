"""TLS contexts for connections to an API server, made of PEM that is in memory.

Python's ssl takes a client's key from a file only. Keys that came in a kubeconfig or from a plugin are in memory and
shall not be written to a disk, so they are handed over in a memfd: a file without a name that goes with its descriptor.

What clusters use as certificates is checked as Go does it: authorities of old clusters lack extensions that Python
insists on by default, whatever is in the bundle is trusted (an intermediate authority too), and a common name is no
host's name.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

ALPN: Final = ("h2", "http/1.1")
UNTRUSTED: Final = "tls: failed to verify certificate"
"""How `handshake_problem` begins when the server has shown a certificate that is not to be trusted."""
_BEGIN: Final = b"-----BEGIN"


@frozen
class KeyPair:
    """A certificate with what leads from it to an authority, and its key, as PEM."""

    certificate: bytes
    key: bytes = attrs.field(repr=False)


@frozen
class TlsError(Exception):
    """Certificates or keys cannot be used."""

    message: str

    def __str__(self) -> str:
        return self.message


def client_context(authority: bytes | None, pair: KeyPair | None, *, insecure: bool = False) -> ssl.SSLContext:
    """A context that trusts `authority` (None: what the system trusts), or any server if `insecure`.

    Raises TlsError for PEM that is none, and for a key that belongs to another certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(list(ALPN))
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.hostname_checks_common_name = False
        _trust(context, authority)
    if pair is not None:
        _identify(context, pair)
    return context


def _trust(context: ssl.SSLContext, authority: bytes | None) -> None:
    if authority is None:
        context.load_default_certs()
        return
    if _BEGIN not in authority:
        raise TlsError("unable to load root certificates: unable to parse bytes as PEM block")
    try:
        # What stands between the blocks is for people, in any encoding.
        context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"unable to load root certificates: failed to parse certificate: {error_text(error)}") from error


def _identify(context: ssl.SSLContext, pair: KeyPair) -> None:
    for what, pem in (("certificate", pair.certificate), ("key", pair.key)):
        if _BEGIN not in pem:
            raise TlsError(f"failed to find any PEM data in {what} input")
    try:
        load_pair(context, pair)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"the client certificate and its key cannot be used: {error_text(error)}") from error


def load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Have a context show this certificate. Raises ssl.SSLError, ValueError and OSError."""
    with MemoryFile(pair.certificate) as certificate, MemoryFile(pair.key) as key:
        # A password is given so that nobody is asked for one on a terminal.
        context.load_cert_chain(certificate.path, key.path, password="")


class MemoryFile:
    """A file without a name, in memory; its path while it is open."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._descriptor = -1

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def __enter__(self) -> MemoryFile:
        self._descriptor = os.memfd_create("trikubelet-pem", os.MFD_CLOEXEC)
        try:
            with os.fdopen(self._descriptor, "wb", closefd=False) as file:
                file.write(self._content)
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def error_text(error: BaseException) -> str:
    """Why OpenSSL did not take something, in words."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)


def handshake_problem(error: BaseException) -> str:
    """Why TLS was not established, in words: what a certificate lacks, or what the peer did instead."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{UNTRUSTED}: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            if cause.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
                return "tls: first record does not look like a TLS handshake: is it an http server?"
            return f"tls: {error_text(cause)}"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return "tls: the connection was closed during the handshake"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
