"""What the configuration says of TLS on the node's port, in OpenSSL's words.

Go's names of cipher suites and numbers of key exchanges are what the configuration speaks; OpenSSL's are others. Below
TLS 1.2 nothing is served, even if the configuration asks for it (RFC 8996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.config.kubelet_configuration import KubeletConfiguration

log = get_logger("http")

TLS_1_2: Final = 0x0303
"""A version by TLS's own number."""
TLS_1_3: Final = 0x0304
_VERSIONS: Final = {
    "": TLS_1_2,
    "VersionTLS10": TLS_1_2,
    "VersionTLS11": TLS_1_2,
    "VersionTLS12": TLS_1_2,
    "VersionTLS13": TLS_1_3,
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

    oldest: int = TLS_1_2
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
    return TlsSettings(_VERSIONS[named], ciphers, _key_exchanges(configuration.tls_curve_preferences))


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
