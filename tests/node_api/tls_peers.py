"""Certificates, and the client's end of a TLS connection, for the tests of the server's end."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

import trio
import trio.testing
import trustme
from OpenSSL import SSL

from trikubelet.http.tls_stream import TlsStream
from trikubelet.kube_client.certificates.store import CertifiedKey, certified_key
from trikubelet.node_api.serving_tls import serving_context
from trikubelet.node_api.tls_settings import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

ECDSA, RSA = trustme.KeyType.ECDSA, trustme.KeyType.RSA


@cache
def authority(name: str, kind: trustme.KeyType = ECDSA) -> trustme.CA:
    return trustme.CA(organization_name=name, key_type=kind)


@cache
def serving_pair(kind: trustme.KeyType = ECDSA, name: str = "node") -> CertifiedKey:
    leaf = authority("servers", kind).create_child_ca(key_type=kind).issue_cert(name, key_type=kind)
    return certified_key(b"".join(pem.bytes() for pem in leaf.cert_chain_pems), leaf.private_key_pem.bytes())


class Shown:
    """A serving certificate that a test can replace."""

    def __init__(self, current: CertifiedKey | None) -> None:
        self.current = current

    def on_change(self, listener: Callable[[], None]) -> None: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()


def client_context(
    shown: trustme.LeafCert | None = None, *, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for kind in (ECDSA, RSA):
        authority("servers", kind).configure_trust(context)
    context.maximum_version = newest
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # which Python 3.11.2 sets: a cut would look like an end
    if shown is not None:
        shown.configure_cert(context)
    return context


def client_stream(
    transport: trio.abc.Stream, context: ssl.SSLContext | None = None, *, name: str = "node"
) -> trio.SSLStream[trio.abc.Stream]:
    return trio.SSLStream(transport, context or client_context(), server_hostname=name)


class OpenSslClient(TlsStream):
    """A client that can do what Python's `ssl` cannot: close one side only, see what it was offered."""

    def __init__(self, transport: trio.abc.Stream, context: SSL.Context | None = None) -> None:
        super().__init__(transport, context or SSL.Context(SSL.TLS_CLIENT_METHOD))
        self._tls.set_connect_state()

    async def _await_record(self) -> None: ...

    async def do_handshake(self) -> None:
        await super().do_handshake()
        await self._flush_handshake()  # a client has the last word of it

    @property
    def connection(self) -> SSL.Connection:
        return self._tls

    @property
    def protocol(self) -> tuple[str, str, str]:
        """Version, cipher suite and key exchange, in OpenSSL's names."""
        tls = self._tls
        return tls.get_protocol_version_name(), tls.get_cipher_name() or "", tls.get_group_name() or ""


@asynccontextmanager
async def tls_pair(
    context: SSL.Context | None = None, client: SSL.Context | None = None
) -> AsyncIterator[tuple[TlsStream, OpenSslClient]]:
    """The server's end and the client's, after the handshake."""
    near, far = trio.testing.memory_stream_pair()
    server = TlsStream(near, context or serving_context(TlsSettings(), serving_pair()))
    other = OpenSslClient(far, client)
    await handshake(server, other)
    yield server, other


async def handshake(server: TlsStream, client: TlsStream | trio.SSLStream[trio.abc.Stream]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        nursery.start_soon(client.do_handshake)


def openssl_client(shown: list[x509.Certificate], key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> SSL.Context:
    """A client that shows these certificates, whatever they are."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.use_certificate(shown[0])
    context.use_privatekey(key)
    for certificate in shown[1:]:
        context.add_extra_chain_cert(certificate)
    return context
