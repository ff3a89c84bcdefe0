"""What the node's port shows and asks for in a TLS handshake: the configuration's choices and the current certificate.

A context is made once and used for every connection until the certificate or the bundle of client authorities is
another one; then the next connection gets a new one, and the connections there are keep theirs.

The names of the client authorities are sent along with the question for a certificate, so that a client with several
knows which one to show. They are not trusted here: nothing is verified but that the client has the key of what it
shows. No session is resumed: it would skip asking, and would outlive the certificate.

Go's names of cipher suites and numbers of key exchanges are what the configuration speaks; OpenSSL's are others. Below
TLS 1.2 nothing is served, even if the configuration asks for it (RFC 8996).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio
from cryptography import x509
from OpenSSL import SSL

from trikubelet.formats.values import frozen
from trikubelet.http.messages import Peer
from trikubelet.http.tls_stream import HandshakeError, PlainHttpError, TlsStream
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.kube_client.certificates.serving import ServingCertificate
    from trikubelet.kube_client.certificates.store import CertifiedKey

log = get_logger("http")

PROTOCOL: Final = b"http/1.1"

_NO_CERTIFICATE: Final = bytes.fromhex("15 0303 0002 02 50")
"""A record with the fatal alert internal_error, as Go's server sends it then."""
_SPEAK_TLS: Final = (
    b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
)
"""What Go's server answers."""
_HELLO: Final = 16 * 2**10

_VERSIONS: Final = {
    "": SSL.TLS1_2_VERSION,
    "VersionTLS10": SSL.TLS1_2_VERSION,
    "VersionTLS11": SSL.TLS1_2_VERSION,
    "VersionTLS12": SSL.TLS1_2_VERSION,
    "VersionTLS13": SSL.TLS1_3_VERSION,
}
_OUTDATED: Final = frozenset({"VersionTLS10", "VersionTLS11"})

_DEFAULT_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES+SHA1"
"""Go's choice: only key exchanges whose keys are forgotten afterwards."""

_CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
}
_BROKEN_CIPHERS: Final = frozenset(
    {
        "TLS_RSA_WITH_RC4_128_SHA",
        "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
        "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
        "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    }
)
"""Go still knows them, OpenSSL not."""
_TLS13_CIPHERS: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})

_KEY_EXCHANGES: Final = {
    23: "P-256",
    24: "P-384",
    25: "P-521",
    29: "X25519",
    4587: "SecP256r1MLKEM768",
    4588: "X25519MLKEM768",
    4589: "SecP384r1MLKEM1024",
}
"""By Go's CurveID, which are TLS's own numbers; as in Go the best of those named is taken, whatever their order."""
_BEST_FIRST: Final = (4588, 4587, 4589, 29, 23, 24, 25)


@frozen
class TlsSettingsError(ValueError):
    """The configuration asks for TLS that cannot be had."""

    field: str
    """By its name in the file."""
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


@frozen
class TlsSettings:
    """What the configuration says, in OpenSSL's words."""

    oldest: int = SSL.TLS1_2_VERSION
    ciphers: str = _DEFAULT_CIPHERS
    """For TLS 1.2; those of TLS 1.3 cannot be chosen, as in Go."""
    key_exchanges: tuple[str, ...] = ()
    """Empty: OpenSSL's own choice."""


def read_tls_settings(configuration: KubeletConfiguration) -> TlsSettings:
    """Raises TlsSettingsError (kubelet: `InitializeTLS`)."""
    named = configuration.tls_min_version
    if named not in _VERSIONS:
        expected = ", ".join(name for name in _VERSIONS if name)
        raise TlsSettingsError("tlsMinVersion", f"must be one of {expected}, got {named!r}")
    if named in _OUTDATED:
        log.warning("TLS below 1.2 is not served", tlsMinVersion=named)
    ciphers = _ciphers(configuration.tls_cipher_suites, only_tls13=named == "VersionTLS13")
    settings = TlsSettings(_VERSIONS[named], ciphers, _key_exchanges(configuration.tls_curve_preferences))
    _base_context(settings)
    return settings


def _ciphers(names: Sequence[str], *, only_tls13: bool) -> str:
    for name in names:
        if name not in _CIPHERS and name not in _TLS13_CIPHERS and name not in _BROKEN_CIPHERS:
            raise TlsSettingsError("tlsCipherSuites", f"cipher suite {name} is not supported or does not exist")
    if not names:
        return _DEFAULT_CIPHERS
    if only_tls13:
        log.warning("the cipher suites of TLS 1.3 cannot be chosen: tlsCipherSuites is ignored")
        return _DEFAULT_CIPHERS
    absent = sorted(_BROKEN_CIPHERS.intersection(names))
    if absent:
        log.warning("cipher suites that are broken are not served", suites=absent)
    chosen = [_CIPHERS[name] for name in names if name in _CIPHERS]
    if not chosen:
        problem = "names no cipher suite that TLS 1.2 has here: name another, or set tlsMinVersion to VersionTLS13"
        raise TlsSettingsError("tlsCipherSuites", problem)
    return ":".join(chosen)


def _key_exchanges(numbers: Sequence[int]) -> tuple[str, ...]:
    for number in numbers:
        if number not in _KEY_EXCHANGES:
            expected = ", ".join(f"{known} ({name})" for known, name in _KEY_EXCHANGES.items())
            raise TlsSettingsError("tlsCurvePreferences", f"expected some of {expected}, got {number}")
    return tuple(_KEY_EXCHANGES[number] for number in _BEST_FIRST if number in numbers)


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
            except (SSL.Error, ValueError) as error:
                log.error("the serving certificate or the client authorities cannot be used", error=str(error))
        return self._context


def serving_context(settings: TlsSettings, certificate: CertifiedKey, client_authorities: bytes = b"") -> SSL.Context:
    """Raises SSL.Error and ValueError for certificates that cannot be used."""
    context = _base_context(settings)
    context.use_certificate(certificate.leaf)
    context.use_privatekey(certificate.key)
    context.check_privatekey()
    for issuer in x509.load_pem_x509_certificates(certificate.pair.certificate)[1:]:
        context.add_extra_chain_cert(issuer)
    if client_authorities:
        context.set_verify(SSL.VERIFY_PEER, _accept)
        context.set_verify_depth(0)  # nothing is verified: no need to look for issuers in what the client sent
        for authority in x509.load_pem_x509_certificates(client_authorities):
            context.add_client_ca(authority)
    return context


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
