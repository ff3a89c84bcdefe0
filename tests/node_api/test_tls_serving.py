from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from tests.node_api.tls_peers import (
    RSA,
    OpenSslClient,
    Shown,
    authority,
    client_context,
    client_stream,
    handshake,
    serving_pair,
)
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.http.messages import Peer
from trikubelet.http.tls_stream import HandshakeError, TlsStream
from trikubelet.kube_client.certificates.signing import self_signed
from trikubelet.kube_client.certificates.store import CertifiedKey, certified_key
from trikubelet.node_api.serving_tls import ServingTls, serving_context
from trikubelet.node_api.tls_settings import TlsSettings, TlsSettingsError, read_tls_settings

BUNDLE = authority("clients").cert_pem.bytes()


async def agreed(configuration: KubeletConfiguration, client: SSL.Context, pair: CertifiedKey) -> tuple[str, str, str]:
    """Version, cipher suite and key exchange of a handshake. Raises HandshakeError."""
    near, far = trio.testing.memory_stream_pair()
    server = TlsStream(near, serving_context(read_tls_settings(configuration), pair))
    other = OpenSslClient(far, client)
    async with trio.open_nursery() as nursery:

        async def connect() -> None:
            try:
                await other.do_handshake()
            except HandshakeError:
                await far.aclose()

        nursery.start_soon(connect)
        try:
            await server.do_handshake()
        except HandshakeError:
            await near.aclose()
            raise
    return other.protocol


def client(
    *, oldest: int = 0, newest: int = 0, ciphers: bytes = b"DEFAULT:@SECLEVEL=0", protocols: tuple[bytes, ...] = ()
) -> SSL.Context:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(oldest)
    context.set_max_proto_version(newest)
    context.set_cipher_list(ciphers)
    if protocols:
        context.set_alpn_protos(list(protocols))
    return context


async def fails(configuration: KubeletConfiguration, context: SSL.Context) -> str:
    with pytest.RaisesGroup(HandshakeError) as caught:
        await agreed(configuration, context, serving_pair())
    return str(caught.value.exceptions[0])


# What the configuration chooses.


@pytest.mark.parametrize("oldest", ["", "VersionTLS10", "VersionTLS11", "VersionTLS12"])
async def test_nothing_older_than_tls_1_2_is_served(oldest: str) -> None:
    configuration = KubeletConfiguration(tls_min_version=oldest)
    old = client(oldest=SSL.TLS1_1_VERSION, newest=SSL.TLS1_1_VERSION)
    assert "protocol" in await fails(configuration, old)
    version, _, _ = await agreed(configuration, client(newest=SSL.TLS1_2_VERSION), serving_pair())
    assert version == "TLSv1.2"


async def test_tls_1_3_alone_can_be_asked_for() -> None:
    configuration = KubeletConfiguration(tls_min_version="VersionTLS13", tls_cipher_suites=("TLS_AES_128_GCM_SHA256",))
    assert "unsupported protocol" in await fails(configuration, client(newest=SSL.TLS1_2_VERSION))
    assert (await agreed(configuration, client(), serving_pair()))[0] == "TLSv1.3"


@pytest.mark.parametrize(
    ("go", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ],
)
async def test_only_the_cipher_suites_that_are_named_are_served(go: str, openssl: str) -> None:
    configuration = KubeletConfiguration(tls_cipher_suites=(go, "TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_RC4_128_SHA"))
    everything = client(newest=SSL.TLS1_2_VERSION, ciphers=b"ALL:@SECLEVEL=0")
    assert (await agreed(configuration, everything, serving_pair(RSA)))[1] == openssl
    others = client(newest=SSL.TLS1_2_VERSION, ciphers=f"ALL:!{openssl}:@SECLEVEL=0".encode())
    with pytest.RaisesGroup(HandshakeError):
        await agreed(configuration, others, serving_pair(RSA))


async def test_by_default_no_suite_is_served_whose_key_could_be_read_later() -> None:
    old = client(newest=SSL.TLS1_2_VERSION, ciphers=b"kRSA:@SECLEVEL=0")
    with pytest.RaisesGroup(HandshakeError):
        await agreed(KubeletConfiguration(), old, serving_pair(RSA))


@pytest.mark.parametrize(
    ("numbers", "expected"), [((24,), "secp384r1"), ((23, 29), "x25519"), ((25, 29, 4588), "X25519MLKEM768")]
)
async def test_only_the_key_exchanges_that_are_named_are_served(numbers: tuple[int, ...], expected: str) -> None:
    configuration = KubeletConfiguration(tls_curve_preferences=numbers)
    assert (await agreed(configuration, client(), serving_pair()))[2].lower() == expected.lower()


@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        (KubeletConfiguration(tls_min_version="VersionTLS14"), "tlsMinVersion"),
        (KubeletConfiguration(tls_cipher_suites=("ECDHE-RSA-AES128-SHA256",)), "tlsCipherSuites"),
        (KubeletConfiguration(tls_cipher_suites=("TLS_RSA_WITH_RC4_128_SHA",)), "tlsCipherSuites"),
        (KubeletConfiguration(tls_cipher_suites=("TLS_AES_128_GCM_SHA256",)), "tlsCipherSuites"),
        (KubeletConfiguration(tls_curve_preferences=(29, 30)), "tlsCurvePreferences"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_name_of_its_field(
    configuration: KubeletConfiguration, field: str
) -> None:
    with pytest.raises(TlsSettingsError, match=f"^{field}: ") as caught:
        read_tls_settings(configuration)
    assert caught.value.field == field


@pytest.mark.parametrize("offered", [(b"h2", b"http/1.1"), (b"h2",), ()])
async def test_http_1_1_is_the_protocol_for_those_who_ask(offered: tuple[bytes, ...]) -> None:
    near, far = trio.testing.memory_stream_pair()
    server, other = (
        TlsStream(near, serving_context(TlsSettings(), serving_pair())),
        OpenSslClient(far, client(protocols=offered)),
    )
    await handshake(server, other)
    assert other.connection.get_alpn_proto_negotiated() == (b"http/1.1" if b"http/1.1" in offered else b"")


# The certificate of the moment.


async def connect(serving: ServingTls, context: ssl.SSLContext | None = None, name: str = "node") -> Peer:
    """A handshake and a word. Raises trio.BrokenResourceError, which a failed one is for a client."""
    near, far = trio.testing.memory_stream_pair()
    client = client_stream(far, context, name=name)
    peers: list[Peer] = []

    async def begin() -> None:
        begun = await serving.begin(near, "192.0.2.1:5")
        if begun is not None:
            peers.append(begun[1])
        else:
            await near.aclose()

    failure: trio.BrokenResourceError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        try:
            await client.do_handshake()
        except trio.BrokenResourceError as error:
            failure = error
            await far.aclose()
    if failure is not None:
        raise failure
    return peers[0]


async def test_a_new_certificate_is_for_new_connections_and_old_ones_live_on() -> None:
    shown = Shown(serving_pair())
    serving = ServingTls(TlsSettings(), shown, bytes)
    near, far = trio.testing.memory_stream_pair()
    client = client_stream(far)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        begun = await serving.begin(near, "")
    assert begun is not None
    shown.current = serving_pair(name="other")
    with pytest.raises(trio.BrokenResourceError):
        await connect(serving, name="node")
    await connect(serving, name="other")
    await client.send_all(b"still here")
    assert await begun[0].receive_some() == b"still here"


async def test_contexts_are_made_when_something_has_changed_and_only_then() -> None:
    shown, bundle = Shown(serving_pair()), [b""]
    serving = ServingTls(TlsSettings(), shown, lambda: bundle[0])
    first = serving.context()
    assert serving.context() is first
    bundle[0] = BUNDLE
    assert serving.context() is not first


async def test_authorities_that_come_later_are_asked_for_later() -> None:
    bundle = [b""]
    serving = ServingTls(TlsSettings(), Shown(serving_pair()), lambda: bundle[0])
    me = authority("clients").issue_cert("me@example.org")
    assert await connect(serving, client_context(me)) == Peer("192.0.2.1:5", encrypted=True)
    bundle[0] = BUNDLE
    certificate = x509.load_pem_x509_certificate(me.cert_chain_pems[0].bytes())
    (shown,) = (await connect(serving, client_context(me))).certificates
    assert x509.load_der_x509_certificate(shown) == certificate


def of_version_4() -> bytes:
    """An authority that OpenSSL takes, and `cryptography` does not."""
    der = x509.load_pem_x509_certificate(BUNDLE).public_bytes(Encoding.DER)
    other = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020103"), 1)
    assert other != der
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(other) + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "more", [b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", of_version_4()]
)
async def test_what_cannot_be_read_in_a_bundle_hides_nothing_else_of_it(more: bytes) -> None:
    serving = ServingTls(TlsSettings(), Shown(serving_pair()), lambda: more + BUNDLE)
    asking = client_context(authority("clients").issue_cert("me@example.org"))
    assert len((await connect(serving, asking)).certificates) == 1


async def test_without_a_certificate_handshakes_fail_until_there_is_one() -> None:
    shown = Shown(None)
    serving = ServingTls(TlsSettings(), shown, bytes)
    with pytest.raises(trio.BrokenResourceError) as caught:
        await connect(serving)
    assert "INTERNAL_ERROR" in str(caught.value.__cause__)
    shown.current = serving_pair()
    await connect(serving)


async def test_the_certificate_that_a_node_makes_for_itself_can_be_served() -> None:
    own = certified_key(*self_signed("node", datetime(2026, 1, 1, tzinfo=UTC)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    assert (await connect(ServingTls(TlsSettings(), Shown(own), bytes), context)).encrypted
