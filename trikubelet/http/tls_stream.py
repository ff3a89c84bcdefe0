"""TLS on any Trio stream, from the server's side, by OpenSSL's state machine on two buffers in memory.

`trio.SSLStream` is what one would take, but it stands on Python's `ssl`, which knows two ways to treat a client's
certificate: not to ask for it, or to end the handshake when it does not lead to a trusted authority. The kubelet asks
and lets everything pass (`tls.RequestClientCert`): whether a certificate counts is found out per request, so that a
stranger's one is answered 401, and a bearer token beside it still counts. pyOpenSSL lets us decide that.

The flow: what the transport brings goes into one buffer, OpenSSL reads it there, and what it wants to send lies in the
other until a writer takes it out. Only writers send. What OpenSSL has to say while reading (it answers a key update)
waits for the next writer, as RFC 8446 allows; so receiving can be cancelled at any time and nothing is lost, which
`trio.SSLStream` cannot promise. A peer that makes it say too much that way is cut off.

The session tickets at the end of a TLS 1.3 handshake wait for a writer, too: they go out with the first answer. No
session is resumed, but OpenSSL sends them, and pyOpenSSL has no `SSL_CTX_set_num_tickets`. Sent at once they meet the
client's request half-way. A client that asks and goes has its connection reset by them, and one that reads in one
thread and writes in another (Python's `ssl` before 3.13 has no lock for that) reads them while it writes: two in a
thousand connections of the `websockets` library broke, or hung, before they were answered.

A renegotiation cannot be asked for, nothing is compressed, and no session is resumed: see `serving_tls.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate

if TYPE_CHECKING:
    from OpenSSL.crypto import X509

_RECORD: Final = 16 * 2**10
"""The most plaintext that one record has."""
_RECEIVE: Final = 32 * 2**10
_SEND: Final = 64 * 2**10
_OVERHEAD: Final = 2**10
"""More than what encryption adds to `_SEND`."""
_MOST_UNSENT: Final = 16 * 2**10
_RECORD_HEAD: Final = 5
_ALERT_TIMEOUT: Final = 1.0
_CLOSE_TIMEOUT: Final = 5.0
"""Go's `tls.Conn.Close` waits as long to get rid of its last word."""
_HTTP_BEGINNINGS: Final = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO", b"DELET", b"CONNE", b"PATCH", b"TRACE")


class HandshakeError(trio.BrokenResourceError):
    """TLS was not established. The text says why."""


class PlainHttpError(HandshakeError):
    """The client speaks HTTP without TLS."""


class TlsStream(trio.abc.HalfCloseableStream):
    """The server's end of a TLS connection. Call `do_handshake` first, once.

    One task may receive while another sends. A connection that ends without the peer's word for it (`close_notify`)
    is broken: somebody may have cut it.
    """

    def __init__(self, transport: trio.abc.Stream, context: SSL.Context) -> None:
        self._transport = transport
        self._tls = SSL.Connection(context)
        self._tls.set_accept_state()
        self._unsent = bytearray()
        """What is encrypted already and waits for a writer."""
        self._established = False
        self._broken = False
        self._closed = False
        self._eof_sent = False
        self._sending = False
        self._receiving = False

    async def do_handshake(self) -> None:
        """Establish TLS. Has no deadline: the caller knows one. When cancelled, the stream is of no use any more.

        Raises HandshakeError; the client has been told by an alert, where there is one to tell.
        """
        self._broken = True  # until it has succeeded
        await self._await_record()
        while True:
            try:
                self._tls.do_handshake()
            except SSL.WantReadError:
                await self._flush_handshake()
                self._tls.bio_write(await self._receive_handshake())
            except (SSL.Error, ValueError) as error:
                await self._send_alert()
                raise HandshakeError(_error_text(error)) from error
            else:
                break
        if self._tls.get_protocol_version() != SSL.TLS1_3_VERSION:
            await self._flush_handshake()  # else only session tickets are left to say: see above
        self._established, self._broken = True, False

    @property
    def peer_certificates(self) -> tuple[bytes, ...]:
        """DER of what the client showed, its own first. It has proven to have the key of that one, and nothing else."""
        own = self._tls.get_peer_certificate()
        if own is None:
            return ()
        others = [_der(certificate) for certificate in self._tls.get_peer_cert_chain() or []]
        first = _der(own)
        return (first, *(others[1:] if others[:1] == [first] else others))

    # Handshake.

    async def _await_record(self) -> None:
        first = b""
        while len(first) < _RECORD_HEAD:
            first += await self._receive_handshake()
        if first.startswith(_HTTP_BEGINNINGS):
            raise PlainHttpError("client sent an HTTP request to an HTTPS server")
        self._tls.bio_write(first)

    async def _receive_handshake(self) -> bytes:
        try:
            data = bytes(await self._transport.receive_some(_RECEIVE))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise HandshakeError("the connection broke during the handshake") from error
        if not data:
            raise HandshakeError("the client closed the connection during the handshake")
        return data

    async def _flush_handshake(self) -> None:
        self._take_unsent()
        try:
            await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise HandshakeError("the connection broke during the handshake") from error

    async def _send_alert(self) -> None:
        with trio.move_on_after(_ALERT_TIMEOUT):
            try:
                await self._flush_handshake()
            except HandshakeError:
                return

    # Sending.

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. When cancelled, how much was sent is unknown, and nothing more can be."""
        self._begin_sending()
        try:
            if self._eof_sent:
                raise trio.ClosedResourceError("send_eof was called before")
            with memoryview(data) as view:
                if not view:
                    await trio.lowlevel.checkpoint()
                for start in range(0, len(view), _SEND):
                    self._encrypt(view[start : start + _SEND])
                    await self._flush()
        finally:
            self._sending = False

    def _encrypt(self, part: memoryview) -> None:
        try:
            self._tls.sendall(part)
        except (SSL.Error, ValueError) as error:
            self._broken = True
            raise trio.BrokenResourceError(_error_text(error)) from error
        self._take_unsent()

    def _take_unsent(self) -> None:
        """Take what OpenSSL wants to send out of its buffer, so that the buffer never grows."""
        block = _SEND + _OVERHEAD
        taken = block
        while taken == block:
            try:
                data = self._tls.bio_read(block)
            except SSL.WantReadError:
                return
            taken = len(data)
            self._unsent += data

    async def _flush(self) -> None:
        if not self._unsent:
            await trio.lowlevel.checkpoint()
            return
        data, self._unsent = self._unsent, bytearray()
        try:
            await self._transport.send_all(data)
        except BaseException:
            self._broken = True  # how much was sent is unknown
            raise

    async def wait_send_all_might_not_block(self) -> None:
        self._begin_sending()
        try:
            await self._transport.wait_send_all_might_not_block()
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """Say that nothing more comes (`close_notify`); receiving goes on. When cancelled, it may be unsaid."""
        self._begin_sending()
        try:
            await self._send_close_notify()
        finally:
            self._sending = False

    async def _send_close_notify(self) -> None:
        if self._eof_sent:
            await trio.lowlevel.checkpoint()
            return
        self._eof_sent = True
        try:
            self._tls.shutdown()
        except SSL.Error as error:
            self._broken = True
            raise trio.BrokenResourceError(_error_text(error)) from error
        self._take_unsent()
        await self._flush()

    def _begin_sending(self) -> None:
        self._check()
        if self._sending:
            raise trio.BusyResourceError("another task is sending")
        if self._broken:
            raise trio.BrokenResourceError("the connection is broken")
        self._sending = True

    # Receiving.

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has arrived, of one record at most; b"" when the peer has said that nothing more comes.

        Nothing is lost when this is cancelled.
        """
        self._check()
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes: expected at least 1, got {max_bytes}")
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving")
        self._receiving = True
        try:
            return await self._receive(min(max_bytes or _RECORD, _RECORD))
        finally:
            self._receiving = False

    async def _receive(self, size: int) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                data = self._tls.recv(size)
                break
            except SSL.WantReadError:
                await self._fill()
            except SSL.ZeroReturnError:
                data = b""
                break
            except (SSL.Error, ValueError) as error:
                self._broken = True
                raise trio.BrokenResourceError(_error_text(error)) from error
        await trio.lowlevel.cancel_shielded_checkpoint()
        return data

    async def _fill(self) -> None:
        data = await self._transport.receive_some(_RECEIVE)
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if not data:
            self._broken = True
            raise trio.BrokenResourceError("the connection ended without close_notify: it may have been cut")
        # Before OpenSSL reads more, so that its answers to what it has read do not pile up in its buffer.
        self._take_unsent()
        if len(self._unsent) > _MOST_UNSENT:
            self._broken = True
            raise trio.BrokenResourceError("the peer asks for answers and takes none")
        self._tls.bio_write(bytes(data))

    # Ending.

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if not self._established:
            raise trio.BrokenResourceError("TLS was not established")

    async def aclose(self) -> None:
        """Say that nothing more comes, for at most five seconds, and close. When cancelled, close without a word."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        try:
            if self._established and not self._broken and not self._sending:
                with trio.move_on_after(_CLOSE_TIMEOUT):
                    await self._send_close_notify()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self._transport.aclose()


def _der(certificate: X509) -> bytes:
    return dump_certificate(FILETYPE_ASN1, certificate)


def _error_text(error: Exception) -> str:
    """OpenSSL's reason, without its coordinates."""
    if isinstance(error, SSL.SysCallError):
        return "unexpected end of the connection"
    details = error.args[0] if error.args else None
    if isinstance(details, list):
        return "tls: " + (", ".join(str(entry[-1]) for entry in details if entry) or "protocol error")
    return f"tls: {error}"
