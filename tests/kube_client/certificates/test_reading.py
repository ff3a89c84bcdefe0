"""What is read of certificates, beside what `cryptography` reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.kube_client.certificates.reading import (
    Certificate,
    belong_together,
    certificate_blocks,
    read_certificates,
)
from trikubelet.kube_client.certificates.signing import key_pem, new_key
from trikubelet.kube_client.tls import KeyPair

KEY, OTHER = new_key(), new_key()
WORDS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=20)
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z]{1,5}){0,2}", fullmatch=True)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC))


def made(said: Certificate) -> bytes:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, word) for word in sorted(said.organizations)]
    names += [x509.NameAttribute(NameOID.COMMON_NAME, word) for word in sorted(said.common_names)]
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in sorted(said.dns_names)]
    alternatives += [x509.IPAddress(ip_address(address)) for address in sorted(said.ip_addresses)]
    alternatives.append(x509.UniformResourceIdentifier("spiffe://one/two"))
    builder = (
        x509.CertificateBuilder(x509.Name([]), x509.Name(names))
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(said.not_before)
        .not_valid_after(said.not_after)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    )
    return builder.sign(KEY, SHA256()).public_bytes(Encoding.PEM)


@given(
    st.builds(
        Certificate,
        MOMENTS,
        st.just(datetime(2210, 1, 1, tzinfo=UTC)),
        st.frozensets(WORDS, max_size=2),
        st.frozensets(WORDS, max_size=3),
        st.frozensets(NAMES, max_size=3),
        st.frozensets(st.ip_addresses().map(str), max_size=3),
    )
)
def test_what_was_written_is_read(said: Certificate) -> None:
    assert read_certificates(made(said)) == [said]


PLAIN = Certificate(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_each_of_a_chain_is_read_and_nothing_else() -> None:
    later = Certificate(PLAIN.not_before, PLAIN.not_after + timedelta(days=1))
    text = b"for people\n" + made(PLAIN) + key_pem(KEY) + made(later) + b"-----BEGIN CERTIFICATE-----\n"
    assert read_certificates(text) == [PLAIN, later]
    assert [read_certificates(block) for block in certificate_blocks(text)] == [[PLAIN], [later]]
    assert read_certificates(b"") == []


@pytest.mark.parametrize("body", [b"", b"AAAA\n", b"*\n", b"MIIB" * 1000])
def test_what_is_no_certificate_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="none of a certificate"):
        read_certificates(b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n")


def test_the_lines_of_a_block_do_not_matter_and_one_with_headers_is_none() -> None:
    pem = made(PLAIN)
    for text in (pem.replace(b"\n", b"\r"), pem.replace(b"\n", b"\n  "), pem.replace(b"\n", b"\r\n")):
        assert certificate_blocks(text) == [pem]
    for headers in (b"Comment: x\n\n", b"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"):
        assert read_certificates(pem.replace(b"CERTIFICATE-----\n", b"CERTIFICATE-----\n" + headers, 1)) == []


def test_a_key_belongs_to_one_certificate() -> None:
    assert belong_together(KeyPair(made(PLAIN), key_pem(KEY)))
    for other in (OTHER, ed25519.Ed25519PrivateKey.generate()):
        assert not belong_together(KeyPair(made(PLAIN), key_pem(other)))
    with pytest.raises(ValueError, match="PEM lib"):
        belong_together(KeyPair(made(PLAIN), b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"))
