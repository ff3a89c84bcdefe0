"""A netlink socket for Trio: requests go out, what the kernel says of each comes back.

The kernel does what a request asks while it is sent, so the answers lie ready when `send` returns, and several requests
in one datagram cost one way to the kernel. Requests of rtnetlink are carried out one by one, whatever becomes of the
others; a transaction of netfilter as a whole or not at all.

Changes of devices, addresses and routes wait for a lock that the kernel has one of, and who deletes a device holds it
for milliseconds. So they are sent by a thread: it costs 0.2 ms each, and everybody else in this process goes on.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.linux.netlink.messages import (
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTERRUPTED,
    NLMSG_DONE,
    NLMSG_ERROR,
    NLMSG_NOOP,
    MalformedMessageError,
    Message,
    Request,
    decode_error,
    decode_messages,
    encode_request,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

NETLINK_ROUTE: Final = 0
NETLINK_NETFILTER: Final = 12

_SOL_NETLINK: Final = 270
_NETLINK_CAP_ACK: Final = 10
_NETLINK_EXT_ACK: Final = 11
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33

_ANSWER_ROOM: Final = 1 << 16
"""The kernel fills at most 32 KiB of a datagram with a dump."""
_SOCKET_ROOM: Final = 8 << 20
"""For a transaction with the ports of thousands of pods."""
_LARGEST_DUMP: Final = 256 << 20
_DUMPS_AGAIN: Final = 5
_NFNL_MSG_BATCH_BEGIN: Final = 0x10
_NFNL_MSG_BATCH_END: Final = 0x11


class NetlinkError(OSError):
    """The kernel refused a request. `errno` is its code, the text has what was asked and the kernel's own words."""


@define
class _Outcome:
    """What came for one request."""

    messages: list[Message] = attrs.field(factory=list)
    error: NetlinkError | None = None


class NetlinkSocket:
    """One socket, in the network namespace that it was opened in. Several tasks may use it; they wait in turn.

    Every method raises NetlinkError, also when no answer came in time. A cancelled one leaves the socket in order: its
    request was carried out or never sent, and its answer is passed over by the next.
    """

    def __init__(self, plain: socket.socket, *, deadline: float = 10) -> None:
        """Takes over a socket of AF_NETLINK and of any kind of state. `deadline`: seconds for each call."""
        self._deadline = deadline
        self._sequences = itertools.count(1)
        self._lock = trio.Lock()
        try:
            plain.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
            plain.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
            plain.bind((0, 0))
        except OSError:
            plain.close()
            raise
        for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
            try:
                plain.setsockopt(socket.SOL_SOCKET, option, _SOCKET_ROOM)
            except PermissionError:
                break  # a user namespace: what the machine allows by default does for some hundred pods
        self._plain = plain
        self._socket = trio.socket.from_stdlib_socket(plain)

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    async def change(self, requests: Sequence[Request]) -> None:
        """Ask for changes, in their order. Raises the first NetlinkError; the others are asked for all the same."""
        await self.ask(requests)

    async def ask(self, requests: Sequence[Request]) -> list[list[Message]]:
        """Ask for changes and for things that are there, in their order. Raises the first NetlinkError."""
        outcomes = await self._acknowledged(requests)
        for each in outcomes:
            if each.error is not None:
                raise each.error
        return [each.messages for each in outcomes]

    async def try_each(self, requests: Sequence[Request]) -> list[NetlinkError | None]:
        """Ask for changes, in their order, and say of each why it was refused."""
        return [each.error for each in await self._acknowledged(requests)]

    async def get(self, request: Request) -> list[Message]:
        """Ask for one thing."""
        (answer,) = await self.ask([request])
        return answer

    async def dump(self, request: Request) -> list[Message]:
        """Ask for a list, again when it changed meanwhile: then the kernel says that it may be wrong."""
        for _ in range(_DUMPS_AGAIN):
            (outcome,) = await self._exchange([(request, NLM_F_DUMP)], {0}, self._send)
            if outcome.error is not None:
                raise outcome.error
            if not any(each.flags & NLM_F_DUMP_INTERRUPTED for each in outcome.messages):
                break
        return outcome.messages

    async def transact(self, subsystem: int, requests: Sequence[Request]) -> None:
        """Ask netfilter for changes that happen together or not at all. Raises the first NetlinkError."""
        if not requests:
            return
        frame = struct.pack("!BBH", 0, 0, subsystem)
        begin = Request(_NFNL_MSG_BATCH_BEGIN, frame, about="transaction")
        end = Request(_NFNL_MSG_BATCH_END, frame, about="transaction")
        # One acknowledgement, of the last change; an error is reported of each.
        flags = [0] * len(requests) + [NLM_F_ACK, 0]
        batch = list(zip([begin, *requests, end], flags, strict=True))
        for outcome in await self._exchange(batch, {len(requests)}, self._send):
            if outcome.error is not None:
                raise outcome.error

    async def _acknowledged(self, requests: Sequence[Request]) -> list[_Outcome]:
        return await self._exchange(
            [(each, NLM_F_ACK) for each in requests], set(range(len(requests))), self._send_in_thread
        )

    async def _send(self, payload: bytes) -> None:
        await self._socket.send(payload)

    async def _send_in_thread(self, payload: bytes) -> None:
        await trio.to_thread.run_sync(self._plain.send, payload)

    async def _exchange(
        self,
        requests: Sequence[tuple[Request, int]],
        awaited: set[int],
        send: Callable[[bytes], Awaitable[None]],
    ) -> list[_Outcome]:
        """Send all at once, and read until the awaited ones are done with, or the first of a transaction failed."""
        about = requests[0][0].about if requests else "nothing"
        try:
            async with self._lock:
                with trio.fail_after(self._deadline):
                    return await self._exchange_now(requests, awaited, send)
        except trio.TooSlowError:
            raise NetlinkError(
                errno.ETIMEDOUT, f"{about}: no answer from the kernel within {self._deadline:g} s"
            ) from None
        except MalformedMessageError as error:
            raise NetlinkError(errno.EBADMSG, f"{about}: an answer that cannot be read: {error}") from error
        except NetlinkError:
            raise
        except OSError as error:
            raise NetlinkError(error.errno, f"{about}: {error.strerror}") from error

    async def _exchange_now(
        self,
        requests: Sequence[tuple[Request, int]],
        awaited: set[int],
        send: Callable[[bytes], Awaitable[None]],
    ) -> list[_Outcome]:
        outcomes = [_Outcome() for _ in requests]
        if not requests:
            return outcomes
        first = next(self._sequences)
        for _ in requests[1:]:
            next(self._sequences)
        payload = b"".join(encode_request(each, first + at, flags) for at, (each, flags) in enumerate(requests))
        await send(payload)
        whole = 0 not in awaited  # a transaction, the first of which is its begin
        pending = set(awaited)
        size = 0
        while pending:
            data = await self._socket.recv(_ANSWER_ROOM)
            size += len(data)
            if size > _LARGEST_DUMP:
                raise NetlinkError(
                    errno.EMSGSIZE, f"{requests[0][0].about}: more than {_LARGEST_DUMP} bytes of answers"
                )
            for message in decode_messages(data):
                at = message.sequence - first
                if not 0 <= at < len(requests) or message.kind == NLMSG_NOOP:
                    continue  # the answer to somebody who was cancelled
                if message.kind not in (NLMSG_ERROR, NLMSG_DONE):
                    outcomes[at].messages.append(message)
                    continue
                pending.discard(at)
                code, words = decode_error(message)
                if code:
                    outcomes[at].error = _error(requests[at][0], code, words)
                    if whole and at == 0:
                        pending.clear()
        return outcomes


def _error(request: Request, code: int, words: str) -> NetlinkError:
    return NetlinkError(code, f"{request.about}: {os.strerror(code)}" + (f" ({words})" if words else ""))
