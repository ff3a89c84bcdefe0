"""Where exec, attach and port-forward come in: CRI answers each with a URL, and this serves the URLs.

A URL holds a token that works once and for a minute; it is all that protects it, besides the loopback address, so it
appears in no log. Nothing listens until the first URL is asked for. Behind the token lies what was asked for; what the
client then does with its connection is `trikubelet.http.streaming`'s, and where the bytes go is `sessions.py`'s.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.records import ContainerRecord, SandboxRecord
from trikubelet.formats.values import frozen
from trikubelet.http.streaming.command import CommandStreams
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trio_typing import TaskStatus

    from trikubelet.embedded.lifecycle import Lifecycle
    from trikubelet.http.messages import AnyResponse, Request, Takeover
    from trikubelet.http.server import HttpServer

log = get_logger("embedded")

TOKEN_LIFETIME: Final = 60.0
MOST_TOKENS: Final = 1000
"""As in the CRI's streaming server. One more is refused."""
_HOST: Final = "127.0.0.1"


class TooManyTokensError(Exception):
    """More URLs than MOST_TOKENS have been asked for and not used."""

    def __init__(self) -> None:
        super().__init__("maximum number of in-flight requests exceeded")


class NotServingError(Exception):
    """The runtime has not been started, or cannot listen."""


@frozen
class ExecSession:
    container: ContainerRecord
    argv: tuple[str, ...]
    streams: CommandStreams


@frozen
class AttachSession:
    container: ContainerRecord
    streams: CommandStreams


@frozen
class ForwardSession:
    sandbox: SandboxRecord
    ports: tuple[int, ...]


Session = ExecSession | AttachSession | ForwardSession
_PATHS: Final = {ExecSession: "exec", AttachSession: "attach", ForwardSession: "portforward"}


class Tokens:
    """What was asked for, by token."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[float, Session]] = {}

    def add(self, session: Session) -> str:
        """A new token. Raises TooManyTokensError."""
        now = trio.current_time()
        # In the order of their deadlines: the first that is not over ends the search.
        for token, (deadline, _) in list(self._sessions.items()):
            if deadline > now:
                break
            del self._sessions[token]
        if len(self._sessions) >= MOST_TOKENS:
            raise TooManyTokensError
        import secrets  # with OpenSSL's library, and few agents make a token

        token = secrets.token_urlsafe(24)
        self._sessions[token] = (now + TOKEN_LIFETIME, session)
        return token

    def take(self, token: str) -> Session | None:
        """What the token stands for, once; None when it is unknown, used or too old."""
        deadline, session = self._sessions.pop(token, (0.0, None))
        return session if deadline > trio.current_time() else None


class StreamingServer:
    """Serves the URLs of one runtime."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._tokens = Tokens()
        self._serve_on, self._served = trio.open_memory_channel[list[trio.SocketListener]](1)
        self._running = False
        self._starting = trio.Lock()
        self._port = 0

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, which ends all sessions."""
        self._running = True
        try:
            async with trio.open_nursery() as sessions:
                task_status.started()
                await supervise(self._accept, sessions)
        finally:
            self._running = False

    async def _accept(self, sessions: trio.Nursery) -> None:
        try:
            listeners = await self._served.receive()
            serve = partial(contain, self._http_server().serve_stream)
            await trio.serve_listeners(serve, listeners, handler_nursery=sessions)
        finally:
            self._port = 0

    async def url(self, session: Session) -> str:
        """Where a client can have this session, within a minute. Raises TooManyTokensError, NotServingError."""
        await self._listen()
        return f"http://{_HOST}:{self._port}/{_PATHS[type(session)]}/{self._tokens.add(session)}"

    async def _listen(self) -> None:
        async with self._starting:
            if self._port:
                return
            if not self._running:
                raise NotServingError("the embedded runtime is not running")
            try:
                listeners = await trio.open_tcp_listeners(0, host=_HOST)
            except OSError as error:
                raise NotServingError(f"listen on {_HOST}: {error.strerror or error}") from None
            self._port = listeners[0].socket.getsockname()[1]
            self._serve_on.send_nowait(listeners)

    def _http_server(self) -> HttpServer:
        """Made for the first client: an agent without streams does not load it."""
        from trikubelet.http.routing import Router
        from trikubelet.http.server import HttpServer

        router = Router()
        for path in _PATHS.values():
            for method in ("GET", "POST"):
                router.add(method, f"/{path}/{{token}}", self._serve)
        return HttpServer(router)

    async def _serve(self, request: Request) -> AnyResponse:
        from trikubelet.http.messages import HTTPError, UpgradeResponse

        session = self._tokens.take(request.params["token"])
        if session is None or not request.path.startswith(f"/{_PATHS[type(session)]}/"):
            raise HTTPError(404, "404 page not found")
        if isinstance(session, ForwardSession):
            forwards = session
            return UpgradeResponse(lambda takeover: self._forward(request, takeover, forwards))
        return UpgradeResponse(lambda takeover: self._command(request, takeover, session))

    async def _command(self, request: Request, takeover: Takeover, session: ExecSession | AttachSession) -> None:
        from trikubelet.embedded import sessions
        from trikubelet.http.streaming.remote_command import serve_remote_command

        async with serve_remote_command(request, takeover, session.streams) as remote:
            if isinstance(session, ExecSession):
                commands = self._lifecycle.commands
                await sessions.execute(commands, session.container, session.argv, session.streams, remote)
            else:
                await sessions.attach(self._lifecycle.attachments, session.container, session.streams, remote)

    async def _forward(self, request: Request, takeover: Takeover, session: ForwardSession) -> None:
        from trikubelet.embedded.forwarding import forward
        from trikubelet.http.streaming.port_forward import serve_port_forward

        keeper = self._lifecycle.keeper
        serve_one = partial(forward, own_network=session.sandbox.network is not None)
        async with (
            serve_port_forward(request, takeover, session.ports) as forwards,
            trio.open_nursery() as nursery,
        ):
            async for forwarded in forwards:
                nursery.start_soon(serve_one, keeper, session.sandbox.id, forwarded)
