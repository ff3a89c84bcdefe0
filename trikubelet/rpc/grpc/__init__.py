"""gRPC on Trio: grpclib's contract, an HTTP/2 of its own, Trio's lifetimes.

The story of a call, from both ends:

1. `Channel.request` gives a `ClientStream` (`call.py`), shaped as betterproto's stubs expect grpclib's stream. Its
   first message takes the channel's open connection, or has one made (`channel.py`: on demand, with backoff).
2. The message is framed (`framing.py`) and put into HTTP/2 (`http2.py`, `hpack.py`) as a `WireStream` (`wire.py`); it
   goes out from the calling task itself (`connection.py`, `unix.py`).
3. On the server (`server.py`), the connection's reader hands the request to a task of its own, if it is a call that can
   be served (`accept.py`). The handler sees a `ServerStream` (`server_call.py`), shaped as betterproto's service bases
   expect it.
4. The reply goes back the same way; its trailers say how the call ended (`status.py`). The caller of a unary method is
   woken once, then.

Lifetimes: cancelling the scope around a call resets its stream, which cancels the handler's scope on the other side. A
deadline (`timeout=` of a stub's method) travels as `grpc-timeout` and holds on both sides. A lost connection ends the
calls on it at once, with UNAVAILABLE on the client, with a cancellation on the server.

    async with open_unix_channel("/run/containerd/containerd.sock") as channel:
        reply = await RuntimeServiceStub(channel).version(VersionRequest(), timeout=5)

    server = Server([runtime_service, image_service])
    await nursery.start(server.serve_unix, "/run/trikubelet/runtime.sock")

Failures are `grpclib.GRPCError`. It runs over any Trio stream; not supported are compression and client-side streaming
through betterproto's stubs, which use asyncio for it (`Channel.request` itself does all four kinds of calls).
"""

from __future__ import annotations

from trikubelet.rpc.grpc.call import ClientStream
from trikubelet.rpc.grpc.channel import Channel, ChannelStatistics, open_unix_channel
from trikubelet.rpc.grpc.deadline import Deadline
from trikubelet.rpc.grpc.framing import DEFAULT_MAX_MESSAGE_SIZE, SHORT_REPLY
from trikubelet.rpc.grpc.server import Servable, Server
from trikubelet.rpc.grpc.server_call import ServerStream
from trikubelet.rpc.grpc.unix import SocketInUseError, UnixStream, connect_unix

__all__ = [
    "DEFAULT_MAX_MESSAGE_SIZE",
    "SHORT_REPLY",
    "Channel",
    "ChannelStatistics",
    "ClientStream",
    "Deadline",
    "Servable",
    "Server",
    "ServerStream",
    "SocketInUseError",
    "UnixStream",
    "connect_unix",
    "open_unix_channel",
]
