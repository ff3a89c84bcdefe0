"""Which connection a request goes over: the client's transport.

What the API server speaks is known when TLS is established (ALPN), so the first request that needs a connection causes
one to be made, and all that come meanwhile wait for that same attempt. If it speaks HTTP/2, requests share that one
connection until it is full, and only then cause another. If not, the rest is left to a pool of HTTP/1.1 connections.

Attempts are made by the transport's own task, so a caller that gives up does not take the attempt of the others along.
There is no waiting between attempts: callers wait, each as long as suits it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio
from grpclib import GRPCError

from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.errors import ApiUnreachable, CredentialsError
from trikubelet.kube_client.exchange import NotSentError
from trikubelet.kube_client.http2 import ApiConnection, RefusedError, send_request
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.kube_client.access import Access
    from trikubelet.kube_client.exchange import Reply, Request
    from trikubelet.kube_client.http1 import Http1Pool

log = get_logger("cluster")

SETTINGS_TIMEOUT: Final = 10.0
"""For the server's first word in HTTP/2. `Access.connect` has a deadline of its own."""
_MOST_REFUSALS: Final = 3


@define
class _Attempt:
    """One try to connect, and the requests that wait for it."""

    done: trio.Event = attrs.Factory(trio.Event)
    failure: str = ""
    credentials: bool = False
    """The failure is that there is nothing to identify ourselves with."""


@frozen
class TransportStatistics:
    """A snapshot of `ClusterTransport.statistics`."""

    protocol: str
    """`HTTP/2`, `HTTP/1.1`, or empty before the first connection."""
    connections: int
    """HTTP/2 connections, those that only finish what they have begun included."""
    streams: int
    """Requests and watches on them."""
    connects: int
    """Connections that were ever made; with HTTP/1.1 only the first of each pool counts."""


class ClusterTransport:
    """Sends requests to one API server. `run` it; requests fail while it does not run."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connections: list[ApiConnection] = []
        self._http1: Http1Pool | None = None
        self._attempt: _Attempt | None = None
        self.generation = 0
        """Counts how often connections had to be made anew. What was made with an older one is not used any more."""
        self._connects = 0
        self._running = False
        self._start, self._starts = trio.open_memory_channel[Callable[[trio.Nursery], Awaitable[None]]](math.inf)
        access.on_change(self.replace_connections)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections until cancelled. Requests in flight fail then."""
        try:
            async with trio.open_nursery() as nursery:
                self._running = True
                task_status.started()
                await supervise(self._begin_tasks, nursery)
        finally:
            self._running = False
            self._finish_attempt("the client is closed")
            http1, self._http1 = self._http1, None
            if http1 is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await http1.drop()

    async def _begin_tasks(self, nursery: trio.Nursery) -> None:
        async for task in self._starts:
            nursery.start_soon(contain, task, nursery)

    async def send(self, request: Request) -> Reply:
        """Send a request.

        Raises NotSentError, other TransportErrors when it is unknown whether it was sent, and CredentialsError.
        """
        for refusals in range(_MOST_REFUSALS + 1):
            try:
                return await self._send(request)
            except RefusedError:
                request.exchange.sent = False
                if refusals == _MOST_REFUSALS:
                    raise
        raise AssertionError("unreachable")

    async def _send(self, request: Request) -> Reply:
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._http1 is not None:
                return await self._http1.send_request(request)
            connection = next((connection for connection in self._connections if connection.usable), None)
            if connection is not None:
                return await send_request(connection, request)
            await self._wait_for_attempt()

    def replace_connections(self) -> None:
        """Let connections finish what is in flight, end their watches, and make new ones for what follows."""
        self.generation += 1
        for connection in list(self._connections):
            connection.replace()
        http1, self._http1 = self._http1, None
        if http1 is not None and self._running:
            self._start.send_nowait(lambda _: http1.replace())

    def drop_connections(self) -> None:
        """Close all connections now. Requests and watches in flight fail."""
        self.generation += 1
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()
        http1, self._http1 = self._http1, None
        if http1 is not None and self._running:
            self._start.send_nowait(lambda _: http1.drop())

    def statistics(self) -> TransportStatistics:
        """What a debugger wants to see."""
        return TransportStatistics(
            protocol="HTTP/1.1" if self._http1 is not None else "HTTP/2" if self._connections else "",
            connections=len(self._connections),
            streams=sum(len(connection.streams) for connection in self._connections),
            connects=self._connects,
        )

    async def _wait_for_attempt(self) -> None:
        if not self._running:
            raise NotSentError("the client is not running: start its run(), or use open_client()")
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = _Attempt()
            self._start.send_nowait(self._connect)
        await attempt.done.wait()
        if attempt.credentials:
            raise CredentialsError("", attempt.failure)
        if attempt.failure:
            raise NotSentError(attempt.failure)

    async def _connect(self, nursery: trio.Nursery) -> None:
        """Make connections until one is of the current generation, and wake waiting callers."""
        try:
            while not await self._connect_once(nursery):
                pass
        except trio.TooSlowError:
            self._finish_attempt(f"the server does not say a word of HTTP/2 within {SETTINGS_TIMEOUT:g} s")
        except CredentialsError as error:
            self._finish_attempt(error.message, credentials=True)
        except ApiUnreachable as error:
            self._finish_attempt(error.cause)
        except GRPCError as error:
            self._finish_attempt(error.message or "the server does not speak HTTP/2")
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._finish_attempt(str(error) or type(error).__name__)
        else:
            self._finish_attempt("")
        finally:
            self._finish_attempt("the attempt to connect was broken off")

    async def _connect_once(self, nursery: trio.Nursery) -> bool:
        """True: the connection can be used. False: what it was made with has changed meanwhile."""
        generation = self.generation
        stream, protocol = await self._access.connect()
        if generation != self.generation:
            await trio.aclose_forcefully(stream)
            return False
        self._connects += 1
        if protocol != "h2":
            from trikubelet.kube_client.http1 import Http1Pool  # with httpcore, which most do not need

            self._http1 = Http1Pool(self._connect_http1, stream)
            return True
        connection = ApiConnection(stream)
        nursery.start_soon(contain, self._keep, connection)
        try:
            with trio.fail_after(SETTINGS_TIMEOUT):
                await connection.known()
        except BaseException:
            connection.close()
            raise
        if generation != self.generation:
            connection.close()
            return False
        if not connection.usable:
            connection.close()
            raise trio.BrokenResourceError("the server takes no requests on a new connection")
        self._connections.append(connection)
        log.debug("connected to the API server", server=self._access.server, protocol="HTTP/2")
        return True

    async def _keep(self, connection: ApiConnection) -> None:
        try:
            await connection.run()
        finally:
            if connection in self._connections:
                self._connections.remove(connection)

    async def _connect_http1(self) -> trio.abc.Stream:
        try:
            stream, protocol = await self._access.connect()
        except ApiUnreachable as error:
            raise NotSentError(error.cause) from error
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise NotSentError(str(error) or type(error).__name__) from error
        if protocol == "h2":
            # Something else stands at this address now. The next request finds out.
            await trio.aclose_forcefully(stream)
            self.replace_connections()
            raise NotSentError("the server speaks another HTTP version than before")
        return stream

    def _finish_attempt(self, failure: str, *, credentials: bool = False) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.failure = failure
            attempt.credentials = credentials
            attempt.done.set()
