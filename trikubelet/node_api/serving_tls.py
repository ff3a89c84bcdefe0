"""What the node's port shows and asks for in a TLS handshake: the configuration's choices and the current certificate.

Imported with the port's first client: an agent that nobody asks spares OpenSSL as `cryptography` brings it, 12 MiB.

A context is made once and used for every connection until the certificate or the bundle of client authorities is
another one; then the next connection gets a new one, and the connections there are keep theirs.

The names of the client authorities are sent along with the question for a certificate, so that a client with several
knows which one to show. They are not trusted here: nothing is verified but that the client has the key of what it
shows. No session is resumed: it would skip asking, and would outlive the certificate.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio
from cryptography import x509
from OpenSSL import SSL

from trikubelet.http.messages import Peer
from trikubelet.http.tls_stream import HandshakeError, PlainHttpError, TlsStream
from trikubelet.kube_client.certificates.reading import certificate_blocks
from trikubelet.kube_client.certificates.signing import load_key
from trikubelet.kube_client.certificates.store import CertificateError
from trikubelet.node_api.tls_settings import TlsSettingsError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.kube_client.certificates.serving import ServingCertificate
    from trikubelet.kube_client.certificates.store import CertifiedKey
    from trikubelet.node_api.tls_settings import TlsSettings

log = get_logger("http")

PROTOCOL: Final = b"http/1.1"

_NO_CERTIFICATE: Final = bytes.fromhex("15 0303 0002 02 50")
"""A record with the fatal alert internal_error, as Go's server sends it then."""
_SPEAK_TLS: Final = (
    b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
)
"""What Go's server answers."""
_HELLO: Final = 16 * 2**10


class ServingTls:
    """Gives the context for the next connection.

    `client_authorities` gives the PEM bundle that clients' certificates are held against later; empty: clients are
    not asked for certificates, as in a kubelet without `clientCAFile`.
    """

    def __init__(
        self, settings: TlsSettings, certificate: ServingCertificate, client_authorities: Callable[[], bytes]
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._client_authorities = client_authorities
        self._context: SSL.Context | None = None
        self._made_of: tuple[CertifiedKey, bytes] | None = None
        self._without = False

    async def begin(self, transport: trio.abc.Stream, address: str) -> tuple[TlsStream, Peer] | None:
        """A handshake; None when it failed. Has no deadline of its own. Does not close `transport`."""
        context = self.context()
        try:
            if context is None:
                await transport.receive_some(_HELLO)
                await transport.send_all(_NO_CERTIFICATE)
                return None
            stream = TlsStream(transport, context)
            await stream.do_handshake()
            return stream, Peer(address, encrypted=True, certificates=stream.peer_certificates)
        except PlainHttpError:
            with suppress(trio.BrokenResourceError):
                await transport.send_all(_SPEAK_TLS)
        except HandshakeError as error:
            log.debug("TLS handshake failed", client=address, error=str(error))
        except trio.BrokenResourceError:
            pass
        return None

    def context(self) -> SSL.Context | None:
        """None while there is no certificate. One that OpenSSL does not take is logged, and the last one stays."""
        current, bundle = self._certificate.current, self._client_authorities()
        if current is None:
            if not self._without:
                log.warning("no serving certificate available for the kubelet: TLS handshakes fail until there is one")
            self._without = True
            return None
        self._without = False
        if self._made_of is None or self._made_of[0] is not current or self._made_of[1] != bundle:
            self._made_of = current, bundle
            try:
                self._context = serving_context(self._settings, current, bundle)
            except (SSL.Error, ValueError, CertificateError, x509.InvalidVersion) as error:
                log.error("the serving certificate or the client authorities cannot be used", error=str(error))
        return self._context


def serving_context(settings: TlsSettings, certificate: CertifiedKey, client_authorities: bytes = b"") -> SSL.Context:
    """Raises SSL.Error, ValueError and CertificateError for certificates that cannot be used."""
    context = _base_context(settings)
    leaf, *issuers = x509.load_pem_x509_certificates(certificate.pair.certificate)
    context.use_certificate(leaf)
    context.use_privatekey(load_key(certificate.pair.key))
    context.check_privatekey()
    for issuer in issuers:
        context.add_extra_chain_cert(issuer)
    if client_authorities:
        context.set_verify(SSL.VERIFY_PEER, _accept)
        context.set_verify_depth(0)  # nothing is verified: no need to look for issuers in what the client sent
        for authority in certificate_blocks(client_authorities):
            try:
                context.add_client_ca(x509.load_pem_x509_certificate(authority))
            except Exception as error:  # noqa: BLE001 - `cryptography` is stricter than OpenSSL, which judges the chains
                log.warning("clients are not told of a client authority", error=str(error))
    return context


def check_settings(settings: TlsSettings) -> None:
    """Raises TlsSettingsError for what this OpenSSL cannot do."""
    _base_context(settings)


def _base_context(settings: TlsSettings) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(settings.oldest)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(b"node")
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.set_cipher_list(settings.ciphers.encode())
    if settings.key_exchanges:
        _choose_key_exchanges(context, settings.key_exchanges)
    context.set_alpn_select_callback(_choose_protocol)
    return context


def _choose_key_exchanges(context: SSL.Context, names: Sequence[str]) -> None:
    """pyOpenSSL has it for one curve only; the library under it for any (`SSL_CTX_set1_groups_list`)."""
    from OpenSSL._util import lib as openssl

    try:
        done = openssl.SSL_CTX_set1_curves_list(context._context, ":".join(names).encode())
    except AttributeError as error:
        raise TlsSettingsError("tlsCurvePreferences", "this pyOpenSSL cannot choose: leave it out") from error
    if done != 1:
        raise TlsSettingsError("tlsCurvePreferences", f"this OpenSSL does not know all of {', '.join(names)}")


def _choose_protocol(_: SSL.Connection, offered: list[bytes]) -> bytes | SSL._NoOverlappingProtocols:
    return PROTOCOL if PROTOCOL in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def _accept(*_: object) -> bool:
    return True
