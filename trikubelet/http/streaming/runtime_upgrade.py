"""The agent's side of an upgraded connection to the container runtime.

The runtime answers CRI's Exec, Attach and PortForward with a URL of its own streaming server. The agent connects to the
host of that URL, sends the request of its client (or one of its own) with the URL's path, and gets the raw connection
when the answer is 101. Dialling and answering have deadlines here: a runtime that hangs must not hold clients. What is
said on the connection afterwards is not looked at.

The URL holds a token that is as good as a password for one session, so it is in no error and no log line.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import h11
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.asking import SWITCHING, Answer, ask_for_upgrade

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from trikubelet.http.raw_stream import RawStream  # noqa: TC004 - attrs evaluates no annotation

DIAL_TIMEOUT: Final = 10.0
ANSWER_TIMEOUT: Final = 30.0
KEEPALIVE_IDLE: Final = 15
"""Seconds without a packet before the first probe, as Go's clients: sessions may be silent for hours."""
KEEPALIVE_INTERVAL: Final = 15
"""Seconds between probes."""
KEEPALIVE_PROBES: Final = 9
"""So many without an answer end the connection."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@frozen
class RuntimeStreamError(Exception):
    """No upgraded connection: the runtime cannot be reached, or says something else than yes or no."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class RefusedError(Exception):
    """The runtime said no, with an HTTP status of 400 or more."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    """As sent, without those about the connection and the body's form."""
    body: bytes = b""

    def __str__(self) -> str:
        text = " ".join(self.body.decode(errors="replace").split())
        return f"the runtime refused the stream with status {self.status}: {text}"


@frozen
class RuntimeAddress:
    """Where a URL of the runtime leads."""

    host: str
    """A name or an address, IPv6 without brackets."""
    port: int
    target: str = attrs.field(repr=False)
    """Path and query, the token with them."""
    encrypted: bool = False

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@frozen
class Upgraded:
    """The runtime said yes."""

    headers: tuple[tuple[str, str], ...]
    """Of its answer, as sent."""
    stream: RawStream
    """Begins with what the runtime sent right after its answer."""
    half_closeable: bool
    """Whether `send_eof` says anything to the runtime."""

    def header(self, name: str) -> str:
        """The first value of a header field, "" when there is none."""
        return next((value.strip() for known, value in self.headers if known.lower() == name), "")


def runtime_address(url: str) -> RuntimeAddress:
    """Take a URL of the runtime apart. Raises RuntimeStreamError."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise RuntimeStreamError(
            "expected an http or https URL of a streaming server from the runtime, and it gave something else"
        ) from None
    if not parts.hostname:
        raise RuntimeStreamError("the runtime's URL of its streaming server names no host")
    target = parts._replace(scheme="", netloc="", fragment="").geturl()
    return RuntimeAddress(
        parts.hostname, port, target if target.startswith("/") else f"/{target}", parts.scheme == "https"
    )


async def dial(address: RuntimeAddress) -> trio.abc.Stream:
    """Connect. An address in digits asks no name server; https is checked by the machine's certificate authorities.

    Raises RuntimeStreamError, after `DIAL_TIMEOUT` at the latest. When cancelled, nothing stays open.
    """
    try:
        with trio.fail_after(DIAL_TIMEOUT):
            stream = await trio.open_tcp_stream(address.host, address.port)
            _keep_alive(stream)
            return await _encrypted(stream, address.host) if address.encrypted else stream
    except trio.TooSlowError:
        problem = f"no connection within {DIAL_TIMEOUT:g} seconds"
    except (OSError, trio.BrokenResourceError) as error:
        problem = _error_text(error)
    raise RuntimeStreamError(f"error dialing backend: {address.authority}: {problem}")


def _keep_alive(stream: trio.SocketStream) -> None:
    """Have the kernel find out when the other side is gone. Sockets that are no TCP are left alone."""
    if stream.socket.family not in (socket.AF_INET, socket.AF_INET6):
        return
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def _error_text(error: Exception) -> str:
    """What went wrong, for each address that was tried."""
    cause = error.__cause__
    tried = cause.exceptions if isinstance(cause, ExceptionGroup) else (cause or error,)
    return "; ".join(map(str, tried))


async def _encrypted(stream: trio.SocketStream, host: str) -> trio.abc.Stream:
    import ssl

    encrypted = trio.SSLStream(stream, ssl.create_default_context(), server_hostname=host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return encrypted


@asynccontextmanager
async def runtime_upgrade(
    url: str,
    method: str,
    headers: Sequence[tuple[str, str]],
    connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]] = dial,
) -> AsyncIterator[Upgraded]:
    """An upgraded connection to the runtime for the body of the `with`; closed after it, however it ends.

    `headers` say everything, `Host` too. Raises RuntimeStreamError and RefusedError.
    """
    address = runtime_address(url)
    stream = await connect(address)
    try:
        yield await _upgrade(stream, address, method, headers)
    finally:
        await trio.aclose_forcefully(stream)


async def _upgrade(
    stream: trio.abc.Stream, address: RuntimeAddress, method: str, headers: Sequence[tuple[str, str]]
) -> Upgraded:
    try:
        answer = await ask_for_upgrade(stream, method, address.target, headers, timeout=ANSWER_TIMEOUT)
    except h11.LocalProtocolError as error:
        raise RuntimeStreamError(f"error sending request: {error}") from error
    except h11.RemoteProtocolError as error:
        raise RuntimeStreamError(f"invalid upgrade response: {error}") from error
    except trio.TooSlowError:
        raise RuntimeStreamError(f"no answer from the runtime within {ANSWER_TIMEOUT:g} seconds") from None
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise RuntimeStreamError("the runtime closed the connection before it answered") from error
    if answer.status >= 400:
        raise RefusedError(answer.status, _refusal_headers(answer), answer.body)
    if answer.status != SWITCHING:
        raise RuntimeStreamError(f"invalid upgrade response: status code {answer.status}")
    return Upgraded(
        headers=answer.headers,
        stream=answer.stream,
        half_closeable=isinstance(stream, trio.abc.HalfCloseableStream),
    )


def _refusal_headers(answer: Answer) -> tuple[tuple[str, str], ...]:
    about_this_connection = {"connection", "keep-alive", "content-length", "transfer-encoding", "trailer", "upgrade"}
    return tuple((name, value) for name, value in answer.headers if name.lower() not in about_this_connection)
