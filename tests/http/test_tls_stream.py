from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from OpenSSL import SSL

from tests.examples import examples
from tests.node_api.tls_peers import (
    ECDSA,
    RSA,
    OpenSslClient,
    authority,
    client_context,
    client_stream,
    handshake,
    openssl_client,
    serving_pair,
    tls_pair,
)
from trikubelet.http.tls_stream import HandshakeError, PlainHttpError, TlsStream
from trikubelet.node_api.serving_tls import serving_context
from trikubelet.node_api.tls_settings import TlsSettings

if TYPE_CHECKING:
    import trustme
    from trio.testing import MockClock

BUNDLE = authority("clients").cert_pem.bytes()


def server_context(authorities: bytes = b"", kind: trustme.KeyType = ECDSA) -> SSL.Context:
    return serving_context(TlsSettings(), serving_pair(kind), authorities)


async def lockstep_pair() -> tuple[TlsStream, OpenSslClient]:
    """On a transport that keeps nothing."""
    near, far = trio.testing.lockstep_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(far)
    await handshake(server, client)
    return server, client


async def receive_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = await stream.receive_some()
        assert block
        data += block
    return bytes(data)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", [ECDSA, RSA])
async def test_a_client_that_knows_the_authority_talks_to_the_server(
    version: ssl.TLSVersion, kind: trustme.KeyType
) -> None:
    near, far = trio.testing.memory_stream_pair()
    server = TlsStream(near, server_context(kind=kind))
    client = client_stream(far, client_context(newest=version))
    await handshake(server, client)
    await client.send_all(b"question")
    assert await server.receive_some() == b"question"
    await server.send_all(b"answer")
    assert await client.receive_some() == b"answer"
    assert client.version() == {771: "TLSv1.2", 772: "TLSv1.3"}[version]


async def test_megabytes_go_both_ways_at_once() -> None:
    there, back = b"ab" * 2_000_000, b"xyz" * 1_500_000
    async with tls_pair() as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(server.send_all, back)
        nursery.start_soon(client.send_all, there)

        async def check() -> None:
            assert await receive_exactly(client, len(back)) == back

        nursery.start_soon(check)
        assert await receive_exactly(server, len(there)) == there


# Certificates of clients.


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("known", [True, False])
async def test_a_certificate_of_any_authority_passes_and_is_told(known: bool, version: ssl.TLSVersion) -> None:
    issuer = authority("clients") if known else authority("strangers")
    leaf = issuer.create_child_ca().issue_cert("me@example.org")
    near, far = trio.testing.memory_stream_pair()
    server = TlsStream(near, server_context(BUNDLE))
    await handshake(server, client_stream(far, client_context(leaf, newest=version)))
    sent = [x509.load_pem_x509_certificate(pem.bytes()) for pem in leaf.cert_chain_pems]
    assert len(sent) == 2
    assert server.peer_certificates == tuple(certificate.public_bytes(Encoding.DER) for certificate in sent)


async def test_a_long_chain_is_told_as_it_was_sent() -> None:
    leaf = authority("clients").create_child_ca().create_child_ca().create_child_ca().issue_cert("me@example.org")
    own = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
    others = [
        x509.load_pem_x509_certificate(pem.bytes())
        for pem in (*leaf.cert_chain_pems[1:], authority("strangers").cert_pem, leaf.cert_chain_pems[0])
    ]
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    async with tls_pair(server_context(BUNDLE), openssl_client([own, *others], key)) as (server, _):
        expected = [certificate.public_bytes(Encoding.DER) for certificate in (own, *others)]
        assert list(server.peer_certificates) == expected


async def test_a_client_may_show_nothing() -> None:
    async with tls_pair(server_context(BUNDLE)) as (server, _):
        assert server.peer_certificates == ()


async def test_without_client_authorities_nobody_is_asked() -> None:
    leaf = authority("clients").issue_cert("me@example.org")
    near, far = trio.testing.memory_stream_pair()
    server = TlsStream(near, server_context())
    await handshake(server, client_stream(far, client_context(leaf)))
    assert server.peer_certificates == ()


async def test_a_client_is_told_which_authorities_count() -> None:
    two = BUNDLE + authority("more clients").cert_pem.bytes()
    async with tls_pair(server_context(two)) as (_, client):
        named = [name.der() for name in client.connection.get_client_ca_list()]
    assert named == [certificate.subject.public_bytes() for certificate in x509.load_pem_x509_certificates(two)]


# Ends.


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
async def test_either_side_can_end_its_half_and_go_on_with_the_other(version: int) -> None:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(version)
    async with tls_pair(client=context) as (server, client):
        await server.send_all(b"last words")
        await server.send_eof()
        assert await receive_exactly(client, 10) == b"last words"
        assert await client.receive_some() == b""
        await client.send_all(b"but I go on")
        assert await server.receive_some() == b"but I go on"
        with pytest.raises(trio.ClosedResourceError):
            await server.send_all(b"more")
        await client.send_eof()
        assert await server.receive_some() == b""
        assert await server.receive_some() == b""
    async with tls_pair(client=context) as (server, client):
        await client.send_eof()
        assert await server.receive_some() == b""
        await server.send_all(b"the answer")
        assert await client.receive_some() == b"the answer"


async def test_closing_says_so() -> None:
    async with tls_pair() as (server, client):
        await server.aclose()
        assert await client.receive_some() == b""
        with pytest.raises(trio.ClosedResourceError):
            await server.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await server.send_all(b"x")
        await server.aclose()


async def test_a_connection_that_is_cut_does_not_look_like_one_that_ended() -> None:
    near, far = trio.testing.memory_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(far)
    await handshake(server, client)
    await client.send_all(b"half of i")
    await far.send_eof()
    assert await server.receive_some() == b"half of i"
    with pytest.raises(trio.BrokenResourceError, match="without close_notify"):
        await server.receive_some()


async def test_closing_does_not_wait_for_ever_for_a_client_that_takes_nothing(autojump_clock: MockClock) -> None:
    server, _ = await lockstep_pair()
    begin = trio.current_time()
    await server.aclose()
    assert trio.current_time() - begin == pytest.approx(5)


# Cancelling, and several tasks.


async def test_a_cancelled_receive_loses_nothing(autojump_clock: MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    between_near, between_far = trio.testing.memory_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(between_far)

    async def trickle() -> None:
        async for block in between_near:
            for index in range(len(block)):
                await trio.sleep(0.1)
                await far.send_all(block[index : index + 1])

    async def back() -> None:
        async for block in far:
            await between_near.send_all(block)

    received, cancelled = b"", 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        nursery.start_soon(back)
        await handshake(server, client)
        for text in (b"one ", b"two ", b"three"):
            await client.send_all(text)
        while len(received) < 13:
            with trio.move_on_after(0.25) as scope:
                received += await server.receive_some(3)
            cancelled += scope.cancelled_caught
        nursery.cancel_scope.cancel()
    assert received == b"one two three"
    assert cancelled > 10


async def test_after_a_cancelled_send_nothing_can_be_sent_but_received(autojump_clock: MockClock) -> None:
    server, client = await lockstep_pair()
    with trio.move_on_after(1):
        await server.send_all(b"x" * 100_000)
    with pytest.raises(trio.BrokenResourceError):
        await server.send_all(b"y")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, b"still there")
        assert await server.receive_some() == b"still there"


async def test_two_tasks_cannot_do_the_same_at_once(autojump_clock: MockClock) -> None:
    server, _ = await lockstep_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.receive_some)
        nursery.start_soon(server.send_all, b"x")
        await trio.testing.wait_all_tasks_blocked()
        for action in (server.receive_some, server.send_eof, server.wait_send_all_might_not_block):
            with pytest.raises(trio.BusyResourceError):
                await action()
        with pytest.raises(trio.BusyResourceError):
            await server.send_all(b"y")
        nursery.cancel_scope.cancel()


# Clients that are not as they should be.


async def outcome(sent: bytes) -> Exception | None:
    near, far = trio.testing.memory_stream_pair()
    server = TlsStream(near, server_context(BUNDLE))
    await far.send_all(sent)
    await far.send_eof()
    try:
        await server.do_handshake()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error
    return None


@given(
    st.binary(max_size=400) | st.binary(max_size=400).map(lambda data: b"\x16\x03\x01\x00\xff\x01\x00\x00\xfb" + data)
)
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_no_handshake_fails_as_one(sent: bytes) -> None:
    assert isinstance(trio.run(outcome, sent), HandshakeError)


@given(
    st.binary(min_size=1, max_size=400)
    | st.binary(min_size=24, max_size=300).map(lambda b: b"\x17\x03\x03\x00\x18" + b)
)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_garbage_after_the_handshake_breaks_the_connection(sent: bytes) -> None:
    async def main() -> None:
        near, far = trio.testing.memory_stream_pair()
        server, client = TlsStream(near, server_context()), OpenSslClient(far)
        await handshake(server, client)
        await far.send_all(sent)
        await far.send_eof()
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some()

    trio.run(main)


async def test_a_client_without_tls_is_known_by_its_first_words() -> None:
    assert isinstance(await outcome(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"), PlainHttpError)


async def test_a_failed_handshake_is_told_by_an_alert() -> None:
    near, far = trio.testing.memory_stream_pair()
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    server = TlsStream(near, serving_context(TlsSettings(oldest=SSL.TLS1_3_VERSION), serving_pair()))
    client = OpenSslClient(far, context)
    failed: list[str] = []

    async def fails(stream: TlsStream) -> None:
        with pytest.raises(HandshakeError) as caught:
            await stream.do_handshake()
        failed.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails, server)
        nursery.start_soon(fails, client)
    assert sorted(failed) == ["tls: tlsv1 alert protocol version", "tls: unsupported protocol"]


async def test_a_renegotiation_is_not_entered_into() -> None:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    near, far = trio.testing.memory_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(far, context)
    await handshake(server, client)
    client.connection.renegotiate()
    with pytest.raises(SSL.WantReadError):
        client.connection.do_handshake()
    await far.send_all(client.connection.bio_read(10_000))
    with trio.move_on_after(0.05):
        await server.receive_some()
    await server.send_all(b"no")
    client.connection.bio_write(bytes(await far.receive_some()))
    with pytest.raises(SSL.Error, match="no renegotiation"):
        client.connection.do_handshake()


class Talkative:
    """OpenSSL as it is with a client that asks for a renegotiation in every record."""

    def __init__(self) -> None:
        self.asked = 0
        self.told = 0

    def recv(self, _: int) -> bytes:
        raise SSL.WantReadError

    def bio_write(self, _: bytes) -> None:
        self.asked += 1

    def bio_read(self, _: int) -> bytes:
        if self.told == self.asked:
            raise SSL.WantReadError
        self.told += 1
        return b"x" * 31


async def test_answers_that_nobody_takes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = trio.testing.memory_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(far)
    await handshake(server, client)
    openssl = Talkative()
    monkeypatch.setattr(server, "_tls", openssl)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                while True:
                    await far.send_all(b"?")
                    await trio.testing.wait_all_tasks_blocked()

            nursery.start_soon(ask)
            with pytest.raises(trio.BrokenResourceError, match="takes none"):
                await server.receive_some()
            nursery.cancel_scope.cancel()
    assert openssl.told * 31 < 20_000


async def test_nothing_is_said_between_the_handshake_and_the_first_answer(autojump_clock: MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(far)
    await handshake(server, client)
    assert client.protocol[0] == "TLSv1.3"
    await client.send_all(b"question")
    assert await server.receive_some() == b"question"
    with trio.move_on_after(60) as listening:
        await far.receive_some()
    assert listening.cancelled_caught
    await server.send_all(b"answer")
    assert await client.receive_some() == b"answer"


async def test_a_client_that_asks_and_goes_has_still_asked() -> None:
    near, far = trio.testing.memory_stream_pair()
    server, client = TlsStream(near, server_context()), OpenSslClient(far).connection
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        with pytest.raises(SSL.WantReadError):
            client.do_handshake()
        await far.send_all(client.bio_read(10_000))
        client.bio_write(bytes(await far.receive_some()))
        client.do_handshake()
        client.send(b"last words")
        # The end of the handshake, the words and the client's end, before the server looks.
        near.receive_stream.put_data(client.bio_read(10_000))
        far.receive_stream.close()
    assert await server.receive_some() == b"last words"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_is_resumed(version: ssl.TLSVersion) -> None:
    leaf = authority("clients").issue_cert("me@example.org")
    context, serving = client_context(leaf, newest=version), server_context(BUNDLE)
    session: ssl.SSLSession | None = None
    for _ in range(2):
        near, far = trio.testing.memory_stream_pair()
        server = TlsStream(near, serving)
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(into, out, server_hostname="node", session=session)

        async def talk(
            client: ssl.SSLObject = client,
            into: ssl.MemoryBIO = into,
            out: ssl.MemoryBIO = out,
            far: trio.abc.Stream = far,
        ) -> None:
            while True:
                try:
                    client.do_handshake()
                    await far.send_all(out.read())
                    return
                except ssl.SSLWantReadError:
                    await far.send_all(out.read())
                    into.write(bytes(await far.receive_some()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.do_handshake)
            nursery.start_soon(talk)
        await server.send_all(b"x")
        into.write(bytes(await far.receive_some()))
        client.read(1)
        session = client.session
        assert not client.session_reused
        assert len(server.peer_certificates) == 1
