from __future__ import annotations

import ssl
from collections.abc import Sequence

import attrs
import pytest
import trio
import trio.testing
import trustme

from tests.descriptors import open_descriptors
from tests.kube_client.pki import authority, pair, pem_of
from trikubelet.kube_client.dialing import open_cluster_stream
from trikubelet.kube_client.errors import ApiUnreachable
from trikubelet.kube_client.kubeconfig import ClusterAccess, TlsSettings
from trikubelet.kube_client.tls import KeyPair, TlsError, client_context

ACCESS = ClusterAccess("https://api.example:6443")


@attrs.define
class Server:
    """The other end of TLS in memory."""

    nursery: trio.Nursery
    name: str = "api.example"
    protocols: Sequence[str] = ("h2", "http/1.1")
    asks_for: trustme.CA | None = None
    peer: str | None = None

    async def dial(self) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority().issue_cert(self.name).configure_cert(context)
        context.set_alpn_protocols(list(self.protocols))
        if self.asks_for is not None:
            self.asks_for.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        server: trio.SSLStream[trio.abc.Stream] = trio.SSLStream(theirs, context, server_side=True)
        self.nursery.start_soon(self._serve, server)
        return ours

    async def _serve(self, stream: trio.SSLStream[trio.abc.Stream]) -> None:
        try:
            await stream.do_handshake()
            certificate = stream.getpeercert() or {}
            self.peer = dict(entry[0] for entry in certificate.get("subject", ())).get("commonName")
            await stream.send_all(b"hello")
        except trio.BrokenResourceError:
            pass
        await trio.aclose_forcefully(stream)


def trusting(ca: trustme.CA, identity: KeyPair | None = None) -> ssl.SSLContext:
    return client_context(pem_of(ca), identity)


@pytest.mark.parametrize(
    ("spoken", "agreed"), [(["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), (["other"], "")]
)
async def test_the_protocol_that_both_speak_is_told(nursery: trio.Nursery, spoken: list[str], agreed: str) -> None:
    server = Server(nursery, protocols=spoken)
    stream, protocol = await open_cluster_stream(ACCESS, dial=server.dial, context=trusting(authority()))
    assert protocol == agreed
    assert bytes(await stream.receive_some()) == b"hello"
    await trio.aclose_forcefully(stream)


async def test_the_client_certificate_is_shown(nursery: trio.Nursery) -> None:
    users = authority("users")
    server = Server(nursery, asks_for=users)
    identity = trusting(authority(), pair(users, "system:node:a"))
    stream, _ = await open_cluster_stream(ACCESS, dial=server.dial, context=identity)
    await stream.receive_some()
    assert server.peer == "system:node:a"


async def test_a_server_of_another_authority_is_refused_and_the_stream_closed(nursery: trio.Nursery) -> None:
    dialed: list[trio.abc.Stream] = []

    async def dial() -> trio.abc.Stream:
        dialed.append(await Server(nursery).dial())
        return dialed[0]

    with pytest.raises(ApiUnreachable) as failed:
        await open_cluster_stream(ACCESS, dial=dial, context=trusting(authority("other")))
    assert not failed.value.sent
    assert "TLS with api.example:6443: tls: failed to verify certificate: " in str(failed.value)
    with pytest.raises(trio.ClosedResourceError):
        await dialed[0].receive_some()


async def test_a_server_with_another_name_is_refused_unless_that_name_is_expected(nursery: trio.Nursery) -> None:
    server = Server(nursery, name="10.0.0.1")
    with pytest.raises(ApiUnreachable, match="Hostname mismatch"):
        await open_cluster_stream(ACCESS, dial=server.dial, context=trusting(authority()))
    access = attrs.evolve(ACCESS, tls=TlsSettings(server_name="10.0.0.1"))
    await open_cluster_stream(access, dial=server.dial, context=trusting(authority()))


async def test_anybody_is_the_server_when_nothing_is_verified(nursery: trio.Nursery) -> None:
    server = Server(nursery, name="whoever")
    _, protocol = await open_cluster_stream(ACCESS, dial=server.dial, context=client_context(None, None, insecure=True))
    assert protocol == "h2"


async def test_a_server_that_does_not_answer_is_given_up_after_ten_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def dial() -> trio.abc.Stream:
        return trio.testing.memory_stream_pair()[0]

    with pytest.raises(ApiUnreachable, match="i/o timeout"):
        await open_cluster_stream(ACCESS, dial=dial, context=trusting(authority()))
    assert trio.current_time() == pytest.approx(10.0, abs=0.1)


async def test_a_server_that_speaks_http_is_told_from_one_that_speaks_tls(nursery: trio.Nursery) -> None:
    async def dial() -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return ours

    with pytest.raises(ApiUnreachable, match="first record does not look like a TLS handshake"):
        await open_cluster_stream(ACCESS, dial=dial, context=trusting(authority()))


GOOD = pair(authority("users"), "a")
OTHER = pair(authority("users"), "b")


@pytest.mark.parametrize(
    ("trusted", "identity", "text"),
    [
        (b"nothing", None, "unable to load root certificates: unable to parse bytes as PEM block"),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            None,
            "unable to load root certificates: failed to parse certificate: ",
        ),
        (None, KeyPair(b"", b""), "failed to find any PEM data in certificate input"),
        (None, KeyPair(GOOD.certificate, b"x"), "failed to find any PEM data in key input"),
        (None, KeyPair(GOOD.certificate, OTHER.key), "the client certificate and its key cannot be used: "),
        (None, KeyPair(GOOD.certificate[:200], GOOD.key), "the client certificate and its key cannot be used: "),
    ],
)
def test_what_is_no_certificate_is_refused(trusted: bytes | None, identity: KeyPair | None, text: str) -> None:
    with pytest.raises(TlsError) as failed:
        client_context(trusted, identity, insecure=trusted is None)
    assert str(failed.value).startswith(text)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password() -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(GOOD.key, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    with pytest.raises(TlsError, match="cannot be used"):
        client_context(None, KeyPair(GOOD.certificate, encrypted), insecure=True)


def test_one_file_may_hold_certificate_and_key() -> None:
    both = GOOD.certificate + GOOD.key
    client_context(None, KeyPair(both, both), insecure=True)


def test_text_between_certificates_does_not_matter() -> None:
    bundle = "# Zertifikat für alle\n".encode() + pem_of(authority()) + b"\nmore\n" + pem_of(authority("other"))
    assert len(client_context(bundle, None).get_ca_certs()) == 2


def test_no_file_stays_open() -> None:
    before = open_descriptors()
    client_context(pem_of(authority()), GOOD)
    with pytest.raises(TlsError):
        client_context(pem_of(authority()), KeyPair(GOOD.certificate, OTHER.key))
    assert open_descriptors() == before
    assert GOOD.key.decode()[30:60] not in repr(GOOD)
