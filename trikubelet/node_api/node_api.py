"""The table of the node's HTTP API: all of the kubelet's routes, and one of our own (`/debug/tasks`).

Every route is one line that says which right it needs (any one of some subresources of the node), whether it is served
on the read-only port too, which switch of the configuration it hangs on, and its handler. What is switched off has its
line as well, with an answer that says so. `node_api` makes the routes of the authenticated port, `read_only_api` those
of the port without: there, as in the kubelet, whatever is not read-only is "disabled".

Two things are not as in the kubelet. HEAD is answered where GET is. And a request for what is not in the table has to
be authenticated like all others: `auth.guard` stands before the router. What it asks for it takes from the
path; the tests hold that against what the lines here say.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.formats.values import frozen
from trikubelet.http.messages import AnyResponse, Handler, Request, Response
from trikubelet.http.routing import ANY_METHOD, Route, Router
from trikubelet.node_api.handlers.checkpoint import CheckpointHandlers
from trikubelet.node_api.handlers.debug import DebugHandlers
from trikubelet.node_api.handlers.exposition import Exposition
from trikubelet.node_api.handlers.health import HealthHandlers
from trikubelet.node_api.handlers.logs import LogHandlers
from trikubelet.node_api.handlers.pods import PodHandlers
from trikubelet.node_api.handlers.run import RunHandlers
from trikubelet.node_api.handlers.zpages import ZPageHandlers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.clock import WallClock
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.node_api.handlers.node_logs import NodeLogHandlers  # noqa: TC004 - for a type
    from trikubelet.node_api.view import NodeApiView

DEBUGGING: Final = "enableDebuggingHandlers"
SYSTEM_LOGS: Final = "enableSystemLogHandler"
PROFILING: Final = "enableProfilingHandler"
DEBUG_FLAGS: Final = "enableDebugFlagsHandler"
_OFF: Final = {
    DEBUGGING: "Debug endpoints are disabled.",
    SYSTEM_LOGS: "logs endpoint is disabled.",
    PROFILING: "profiling endpoint is disabled.",
    DEBUG_FLAGS: "flags endpoint is disabled.",
}
"""What a route says whose switch is off."""
_POD: Final = "{namespace}/{pod}"
_CONTAINER: Final = (f"{_POD}/{{container}}", f"{_POD}/{{uid}}/{{container}}")
_DISABLED_WITH_DEBUGGING: Final = (
    ("/run/{path:*}", "proxy"),
    ("/exec/{path:*}", "proxy"),
    ("/attach/{path:*}", "proxy"),
    ("/portForward/{path:*}", "proxy"),
    ("/containerLogs/{path:*}", "proxy"),
    ("/runningpods", "pods", "proxy"),
    ("/debug/pprof/{path:*}", "proxy"),
    ("/debug/tasks", "proxy"),
    ("/logs/{path:*}", "log"),
)
"""These answer that they are switched off; the other routes of the switch are not there then."""


@frozen(kw_only=True)
class Switches:
    """Which parts of the API there are (fields and feature gates of the KubeletConfiguration)."""

    debugging: bool = True
    system_logs: bool = True
    system_log_queries: bool = True
    profiling: bool = True
    debug_flags: bool = True
    checkpoint: bool = True
    flagz: bool = True
    statusz: bool = True
    split_logs: bool = True
    """Whether one stream of a container may be asked for."""

    @classmethod
    def of(cls, configuration: KubeletConfiguration) -> Switches:
        return cls(
            debugging=configuration.enable_debugging_handlers,
            system_logs=configuration.enable_system_log_handler,
            system_log_queries=configuration.enable_system_log_query,
            profiling=configuration.enable_profiling_handler,
            debug_flags=configuration.enable_debug_flags_handler,
            checkpoint=configuration.enabled("ContainerCheckpoint"),
            flagz=configuration.enabled("ComponentFlagz"),
            statusz=configuration.enabled("ComponentStatusz"),
            split_logs=configuration.enabled("PodLogsQuerySplitStreams"),
        )


class Streams(Protocol):
    """The handlers of what is streamed (`handlers.streams.StreamHandlers`)."""

    async def exec(self, request: Request) -> AnyResponse: ...

    async def attach(self, request: Request) -> AnyResponse: ...

    async def port_forward(self, request: Request) -> AnyResponse: ...


@frozen(kw_only=True)
class Parts:
    """Handlers that are made elsewhere."""

    streams: Streams
    exposition: Exposition
    node_logs: NodeLogHandlers | None = None
    """None: those of /var/log."""


def node_api(view: NodeApiView, parts: Parts, switches: Switches, clock: WallClock) -> Router:
    """The routes of the authenticated port, and of the agent's own socket."""
    router = Router()
    router.extend(_always(view, parts, clock))
    if switches.debugging:
        router.extend(_debugging(view, parts, switches, clock, router))
    else:
        off = _off(DEBUGGING)
        router.extend(_line(ANY_METHOD, path, off, *granted_by) for path, *granted_by in _DISABLED_WITH_DEBUGGING)
    return router


def read_only_api(view: NodeApiView, parts: Parts, clock: WallClock) -> Router:
    """The routes of the read-only port, without authentication."""
    return node_api(view, parts, Switches(debugging=False), clock)


def _always(view: NodeApiView, parts: Parts, clock: WallClock) -> Iterator[Route]:
    """What is there on every port."""
    exposition = parts.exposition
    health = HealthHandlers(view.health, observe=exposition.observe_health)
    pods = PodHandlers(view)
    yield _open(ANY_METHOD, "/healthz", health.root, "healthz", "proxy")
    yield _open(ANY_METHOD, "/healthz/{check}", health.check, "healthz", "proxy")
    yield _open("GET", "/pods", pods.pods, "pods", "proxy")
    for method in ("GET", "POST"):
        yield _open(method, "/stats/summary", exposition.summary, "stats")
    yield _open(ANY_METHOD, "/metrics", exposition.metrics, "metrics")
    yield _open(ANY_METHOD, "/metrics/cadvisor", exposition.cadvisor, "metrics")
    yield _open(ANY_METHOD, "/metrics/resource", exposition.resource, "metrics")
    yield _open(ANY_METHOD, "/metrics/probes", exposition.probes, "metrics")
    yield _open(ANY_METHOD, "/metrics/slis", exposition.slis, "metrics")


def _debugging(
    view: NodeApiView, parts: Parts, switches: Switches, clock: WallClock, router: Router
) -> Iterator[Route]:
    """What is there with the debugging handlers only."""
    checkpoint = CheckpointHandlers(view, view.root_dir, clock)
    pages = ZPageHandlers(view, lambda: [route.pattern for route in router.routes], clock)
    yield from _container_routes(view, parts.streams, clock, switches)
    yield _line("GET", "/runningpods", PodHandlers(view).running_pods, "pods", "proxy")
    if switches.checkpoint:
        yield _line("POST", f"/checkpoint/{_POD}/{{container}}", checkpoint.checkpoint, "checkpoint")
    yield _line(ANY_METHOD, "/configz", pages.configz, "configz", "proxy")
    if switches.flagz:
        yield _line(ANY_METHOD, "/flagz", pages.flagz, "configz")
    if switches.statusz:
        yield _line(ANY_METHOD, "/statusz", pages.statusz, "statusz")
    yield from _switched(SYSTEM_LOGS, switches.system_logs, _system_logs(parts, switches))
    yield from _switched(PROFILING, switches.profiling, _profiling(debug := DebugHandlers()))
    flags = [_line(ANY_METHOD, "/debug/flags/v", debug.verbosity)]
    yield from _switched(DEBUG_FLAGS, switches.debug_flags, flags)


def _container_routes(view: NodeApiView, streams: Streams, clock: WallClock, switches: Switches) -> Iterator[Route]:
    """Into containers."""
    logs, run = LogHandlers(view, clock, splits=switches.split_logs), RunHandlers(view)
    for place in _CONTAINER:
        yield _line("POST", f"/run/{place}", run.run)
        for method in ("GET", "POST"):
            yield _line(method, f"/exec/{place}", streams.exec, long_running=True)
            yield _line(method, f"/attach/{place}", streams.attach, long_running=True)
    for place in (_POD, f"{_POD}/{{uid}}"):
        for method in ("GET", "POST"):
            yield _line(method, f"/portForward/{place}", streams.port_forward, long_running=True)
    yield _line("GET", f"/containerLogs/{_POD}/{{container}}", logs.container_logs)


def _system_logs(parts: Parts, switches: Switches) -> Iterator[Route]:
    @cache
    def handlers() -> NodeLogHandlers:
        from trikubelet.node_api.handlers.node_logs import NodeLogHandlers  # with all that reads files of the node

        return parts.node_logs or NodeLogHandlers(queries=switches.system_log_queries)

    async def logs(request: Request) -> AnyResponse:
        return await handlers().logs(request)

    yield _line("GET", "/logs/{path:*}", logs, "log")


def _profiling(debug: DebugHandlers) -> Iterator[Route]:
    yield _line("GET", "/debug/pprof/{name:*}", debug.profile, long_running=True)
    yield _line("GET", "/debug/tasks", debug.tasks, long_running=True)


def _line(method: str, pattern: str, handler: Handler, *subresources: str, long_running: bool = False) -> Route:
    granted_by = subresources or ("proxy",)
    return Route(method, pattern, handler, granted_by, switch=DEBUGGING, long_running=long_running)


def _open(method: str, pattern: str, handler: Handler, *subresources: str) -> Route:
    return Route(method, pattern, handler, subresources, read_only=True)


def _switched(switch: str, on: bool, routes: Iterable[Route]) -> Iterator[Route]:
    """The routes as they are, or each one saying that it is off, to any method."""
    for route in routes:
        changed = attrs.evolve(route, switch=switch)
        yield changed if on else attrs.evolve(changed, method=ANY_METHOD, handler=_off(switch))


def _off(switch: str) -> Handler:
    async def answer(_: Request) -> AnyResponse:
        return Response(f"{_OFF[switch]}\n".encode(), 405)

    return answer
