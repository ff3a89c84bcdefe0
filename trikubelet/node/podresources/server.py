"""Both versions of the pod resources API on one socket.

Clients that may open the socket are trusted to ask, but not to ask without end: an answer for hundreds of pods takes
milliseconds, in which the agent does nothing else. So there is the kubelet's rate limit, over all calls and clients
together. A call beyond it fails at once, before its request is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio
from grpclib import GRPCError, Status

from trikubelet.node.podresources.metrics import PodResourcesMetrics
from trikubelet.node.podresources.providers import NO_PROVIDERS
from trikubelet.node.podresources.services import ListerV1, ListerV1Alpha1
from trikubelet.rpc.grpc import Servable, Server
from trikubelet.runtime.images.pull_rate import PullRate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from grpclib.const import Handler
    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.node.podresources.providers import Providers
    from trikubelet.pods.manager import PodManager

FOLDER: Final = "pod-resources"
"""Below the agent's root folder."""
SOCKET: Final = "kubelet.sock"
FOLDER_MODE: Final = 0o750
CALLS_PER_SECOND: Final = 100
BURST: Final = 10
"""Calls at once."""
CONCURRENT_CALLS: Final = 100
"""Of one client; those beyond wait in the client. No call takes long."""


class PodResourcesServer:
    """Serves the API to all clients."""

    def __init__(
        self,
        pods: PodManager,
        active_pods: Callable[[], Sequence[Pod]],
        providers: Providers = NO_PROVIDERS,
    ) -> None:
        """`active_pods` gives those of `pods` that have not ended."""
        self.metrics = PodResourcesMetrics()
        # What limits pulls of images limits calls as well.
        limit = PullRate(per_second=CALLS_PER_SECOND, burst=BURST)
        self._server = Server(
            [
                _Limited(ListerV1(pods, active_pods, providers, self.metrics), limit),
                _Limited(ListerV1Alpha1(pods, providers, self.metrics), limit),
            ],
            max_concurrent_streams=CONCURRENT_CALLS,
        )

    async def run(self, path: Path, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the socket `path` until cancelled; then it is removed. Its folder is made, but not the one above.

        Started when clients can connect. Raises `SocketInUseError` when somebody listens there, else `OSError`.
        """
        path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        await self._server.serve_unix(path, task_status=task_status)


class _Limited:
    """A service some of whose calls are rejected."""

    def __init__(self, service: Servable, limit: PullRate) -> None:
        self._service = service
        self._limit = limit

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            path: handler._replace(func=self._limited(handler.func))
            for path, handler in self._service.__mapping__().items()
        }

    def _limited(self, serve: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def serve_if_allowed(stream: Any) -> None:
            if not self._limit.take(trio.current_time()):
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
            await serve(stream)

        return serve_if_allowed
