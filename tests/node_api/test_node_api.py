"""Every route of the table in every situation: what it answers, and who may ask for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.node_api.handlers.stage import RUNTIME_AWAY, Answer, FakeNode, ask, clock, fake_parts
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.http.messages import Response
from trikubelet.http.routing import ANY_METHOD, Route, Router
from trikubelet.node_api.auth.attributes import subresources
from trikubelet.node_api.node_api import Switches, node_api, read_only_api

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.http.messages import AnyResponse, Request

ON = Switches()
OFF = Switches(debugging=False)
SETTINGS = [
    ON,
    OFF,
    Switches(system_logs=False),
    Switches(profiling=False),
    Switches(debug_flags=False),
    Switches(system_log_queries=False),
    Switches(checkpoint=False, flagz=False, statusz=False),
]


def table(switches: Switches = ON, node: FakeNode | None = None) -> Router:
    return node_api(node or FakeNode(), fake_parts(), switches, clock())


def sample_path(route: Route) -> str:
    values = {"{namespace}": "default", "{pod}": "web", "{uid}": "uid-web", "{container}": "main", "{check}": "ping"}
    path = route.pattern
    for name, value in values.items():
        path = path.replace(name, value)
    return path.replace("{path:*}", "a/b").replace("{name:*}", "cmdline")


@pytest.mark.parametrize("switches", SETTINGS)
def test_every_route_names_the_subresources_that_the_authorizer_finds_in_its_path(switches: Switches) -> None:
    router = table(switches)
    assert len(router.routes) > 15
    for route in router.routes:
        path = sample_path(route)
        method = "GET" if route.method == ANY_METHOD else route.method
        assert router.find(method, path).route is route, path
        for written in (path, path + "/", path.replace("a", "%61"), "/" + path[1:].replace("s", "%73", 1)):
            found = router.find(method, written).route
            assert found is not None, written
            assert subresources(written) == found.subresources, written


@pytest.mark.parametrize("switches", SETTINGS)
def test_the_read_only_port_shows_what_is_read_only_and_nothing_else(switches: Switches) -> None:
    shown = {(r.method, r.pattern) for r in table(switches).routes if r.read_only}
    router = read_only_api(FakeNode(), fake_parts(), clock())
    assert {(r.method, r.pattern) for r in router.routes if r.read_only} == shown
    assert {r.pattern.split("/")[1] for r in router.routes if r.read_only} == {"healthz", "pods", "stats", "metrics"}


async def test_what_is_not_read_only_is_disabled_on_the_read_only_port() -> None:
    router = read_only_api(FakeNode(), fake_parts(), clock())
    for route in router.routes:
        if not route.read_only:
            answer = await ask(router, sample_path(route))
            assert (answer.status, answer.text) == (405, "Debug endpoints are disabled.\n")


NOWHERE = "/default/nobody/main"
HERE = "/default/web/main"
WITH_UID = "/default/web/uid-web/main"

TABLE = [
    # method, path, status, body (a part)
    ("GET", "/pods", 200, '{"apiVersion":"v1","kind":"PodList","metadata":{},"items":['),
    ("GET", "/pods/", 200, '"name":"web"'),
    ("POST", "/pods", 405, "only GET"),
    ("GET", "/runningpods/", 200, '"uid":"uid-web"'),
    ("GET", "/healthz", 200, "ok"),
    ("PUT", "/healthz", 200, "ok"),
    ("GET", "/healthz/ping", 200, "ok"),
    ("GET", "/healthz/log", 200, "ok"),
    ("GET", "/healthz/syncloop", 200, "ok"),
    ("GET", "/healthz/device-plugin", 200, "ok"),
    ("GET", "/healthz/pleg", 404, "there is no health check"),
    ("GET", "/metrics", 200, "metrics 1\n"),
    ("POST", "/metrics", 200, "metrics 1\n"),
    ("GET", "/metrics/cadvisor", 200, "cadvisor 1\n"),
    ("GET", "/metrics/resource", 200, "resource 1\n"),
    ("GET", "/metrics/probes", 200, "probes 1\n"),
    ("GET", "/metrics/slis", 200, "slis 1\n"),
    ("DELETE", "/metrics/slis", 200, "metrics reset\n"),
    ("DELETE", "/metrics", 200, "metrics 1\n"),
    ("GET", "/metrics/other", 404, "nothing at /metrics/other"),
    ("GET", "/stats/summary", 200, '{"narrow":0}'),
    ("POST", "/stats/summary?only_cpu_and_memory=true", 200, '{"narrow":1}'),
    ("PUT", "/stats/summary", 405, "only GET, POST"),
    ("GET", "/stats", 404, "nothing"),
    ("POST", f"/run{HERE}?cmd=ls", 200, "outerr"),
    ("POST", f"/run{WITH_UID}?cmd=ls", 200, "outerr"),
    ("POST", "/run/default/web/other-uid/main?cmd=ls", 500, 'container not found ("main")'),
    ("POST", "/run/default/web/other?cmd=ls", 500, 'container not found ("other")'),
    ("POST", f"/run{NOWHERE}?cmd=ls", 404, "pod does not exist"),
    ("GET", f"/run{HERE}", 405, "only POST"),
    ("GET", f"/exec{HERE}", 200, "exec {'namespace': 'default', 'pod': 'web', 'container': 'main'}"),
    ("POST", f"/exec{WITH_UID}", 200, "exec {'namespace': 'default', 'pod': 'web', 'uid': 'uid-web', 'container'"),
    ("PUT", f"/exec{HERE}", 405, "only GET, POST"),
    ("POST", f"/attach{HERE}", 200, "attach {'namespace'"),
    ("GET", f"/attach{WITH_UID}", 200, "attach {'namespace'"),
    ("POST", "/portForward/default/web", 200, "portForward {'namespace': 'default', 'pod': 'web'}"),
    ("GET", "/portForward/default/web/uid-web", 200, "'uid': 'uid-web'}"),
    ("GET", "/containerLogs/default/web/main", 400, "is waiting to start - no logs yet"),
    ("GET", "/containerLogs/default/nobody/main", 404, 'pod "nobody" does not exist'),
    ("GET", "/containerLogs/default/web/other", 404, 'container "other" not found in pod "web"'),
    ("GET", "/containerLogs/default/web/setup", 400, "waiting"),
    ("GET", "/containerLogs/default/web/debugger", 400, "waiting"),
    ("GET", f"/containerLogs{WITH_UID}", 404, "nothing"),
    ("GET", "/configz", 200, '{"kubeletconfig":{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io'),
    ("POST", "/checkpoint" + HERE, 200, '{"items":["'),
    ("POST", "/checkpoint/default/web/setup", 200, '{"items":["'),
    ("POST", "/checkpoint" + NOWHERE, 404, "pod does not exist"),
    ("POST", "/checkpoint/default/web/other", 404, "container other does not exist"),
    ("POST", f"/checkpoint{HERE}?timeout=x", 404, "cannot parse value of timeout parameter"),
    ("GET", "/checkpoint" + HERE, 405, "only POST"),
    ("GET", "/logs", 301, ""),
    ("POST", "/logs/", 405, "only GET"),
    ("GET", "/logs/no-such-file-in-any-log-folder", 404, "404 page not found\n"),
    ("GET", "/debug/pprof/", 200, "goroutine"),
    ("GET", "/debug/pprof/nothing", 404, "Unknown profile"),
    ("GET", "/debug/tasks", 200, "test_"),
    ("GET", "/debug/flags/v", 406, "unsupported http method"),
    ("PUT", "/debug/flags/v", 400, "expected a level"),
    ("GET", "/debug/flags", 404, "nothing"),
    ("GET", "/flagz", 200, "\nkubelet flagz\n"),
    ("GET", "/statusz", 200, "\nkubelet statusz\n"),
    ("GET", "/", 404, "nothing at /"),
    ("GET", "/spec", 404, "nothing at /spec"),
    ("OPTIONS", "/pods", 405, "only GET"),
]


@pytest.mark.parametrize(("method", "path", "status", "text"), TABLE)
async def test_with_everything_on(method: str, path: str, status: int, text: str, tmp_path: Path) -> None:
    answer = await ask(table(node=FakeNode(tmp_path)), path, method)
    assert answer.status == status
    assert text in answer.text
    if status == 405:
        assert answer.headers["Allow"] in answer.text


def test_no_route_is_without_a_line_in_the_table_of_situations() -> None:
    asked = {table().find(method, path.partition("?")[0]).route for method, path, *_ in TABLE}
    missing = [
        (route.method, route.pattern)
        for route in table().routes
        if not any(known is not None and known.pattern == route.pattern for known in asked)
    ]
    assert missing == []


DEBUGGING_OFF = "Debug endpoints are disabled.\n"
GONE = [("GET", "/configz"), ("POST", f"/checkpoint{HERE}"), ("GET", "/flagz"), ("GET", "/statusz")]


@pytest.mark.parametrize(
    ("switches", "method", "path", "text"),
    [
        *((OFF, "POST", f"/run{HERE}", DEBUGGING_OFF), (OFF, "GET", f"/exec{HERE}", DEBUGGING_OFF)),
        *((OFF, "POST", f"/attach{WITH_UID}", DEBUGGING_OFF), (OFF, "GET", "/portForward/a/b", DEBUGGING_OFF)),
        *((OFF, "GET", f"/containerLogs{HERE}", DEBUGGING_OFF), (OFF, "GET", "/runningpods/", DEBUGGING_OFF)),
        *((OFF, "GET", "/debug/pprof/", DEBUGGING_OFF), (OFF, "GET", "/debug/pprof/profile", DEBUGGING_OFF)),
        *((OFF, "GET", "/logs/", DEBUGGING_OFF), (OFF, "DELETE", "/logs/x/y", DEBUGGING_OFF)),
        *((OFF, "GET", "/exec", DEBUGGING_OFF), (OFF, "GET", "/debug/tasks", DEBUGGING_OFF)),
        (Switches(system_logs=False), "GET", "/logs/", "logs endpoint is disabled.\n"),
        (Switches(system_logs=False), "POST", "/logs/x", "logs endpoint is disabled.\n"),
        (Switches(profiling=False), "GET", "/debug/pprof/goroutine", "profiling endpoint is disabled.\n"),
        (Switches(profiling=False), "GET", "/debug/tasks", "profiling endpoint is disabled.\n"),
        (Switches(debug_flags=False), "PUT", "/debug/flags/v", "flags endpoint is disabled.\n"),
    ],
)
async def test_what_is_switched_off_says_so(switches: Switches, method: str, path: str, text: str) -> None:
    answer = await ask(table(switches), path, method)
    assert (answer.status, answer.text) == (405, text)


@pytest.mark.parametrize(("method", "path"), [*GONE, ("PUT", "/debug/flags/v")])
async def test_the_rest_of_what_needs_the_debugging_handlers_is_not_there_without_them(method: str, path: str) -> None:
    assert (await ask(table(OFF), path, method)).status == 404


@pytest.mark.parametrize("path", ["/healthz", "/pods", "/metrics", "/metrics/resource", "/stats/summary"])
async def test_what_every_node_shows_hangs_on_no_switch(path: str) -> None:
    assert (await ask(table(OFF), path)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/runningpods/", 500, "rpc error: code = Unavailable desc = no runtime\n"),
        ("POST", f"/run{HERE}?cmd=ls", 500, "rpc error: code = Unavailable desc = no runtime\n"),
        (
            "POST",
            f"/checkpoint{HERE}",
            500,
            "checkpointing of default/web/main failed (rpc error: code = Unavailable desc = no runtime)\n",
        ),
        ("GET", "/pods", 200, '"name":"web"'),
    ],
)
async def test_while_the_runtime_is_away(method: str, path: str, status: int, text: str, tmp_path: Path) -> None:
    node = FakeNode(tmp_path, runtime_error=RUNTIME_AWAY)
    answer: Answer = await ask(table(node=node), path, method)
    assert answer.status == status
    assert text in answer.text


async def test_what_a_guard_refuses_reaches_no_handler() -> None:
    """A stand-in for the real guard: it sees every route, and what no route knows."""

    async def guarded(request: Request) -> AnyResponse:
        return Response(b"Unauthorized", 401)

    reached: list[str] = []

    def note(route: Route) -> Route:
        async def handler(_: Request) -> AnyResponse:
            reached.append(route.pattern)
            return Response()

        return attrs.evolve(route, handler=handler)

    router = Router(map(note, table().routes))
    for route in (*router.routes, Route("GET", "/nothing", guarded)):
        assert (await ask(guarded, sample_path(route))).status == 401
    assert reached == []


@pytest.mark.parametrize(
    ("field", "switch"),
    [
        ("enable_debugging_handlers", "debugging"),
        ("enable_system_log_handler", "system_logs"),
        ("enable_system_log_query", "system_log_queries"),
        ("enable_profiling_handler", "profiling"),
        ("enable_debug_flags_handler", "debug_flags"),
    ],
)
def test_each_switch_is_a_field_of_the_configuration(field: str, switch: str) -> None:
    for value in (True, False):
        changes: dict[str, Any] = {field: value}
        configuration = attrs.evolve(FakeNode().configuration, **changes)
        assert getattr(Switches.of(configuration), switch) is value


@pytest.mark.parametrize(
    ("path", "bucket", "long"),
    [
        (f"/exec{HERE}", "exec", True),
        ("/portForward/a/b", "portForward", True),
        ("/debug/pprof/profile", "debug", True),
        ("/metrics/cadvisor", "metrics/cadvisor", False),
        ("/logs/x/y", "logs", False),
        ("/no/such/thing", "other", False),
    ],
)
def test_requests_are_counted_by_the_kind_of_route(path: str, bucket: str, long: bool) -> None:
    found = table().find("GET", path)
    assert found.bucket == bucket
    assert (found.route is not None and found.route.long_running) is long


async def test_pods_are_a_list_also_when_there_are_none() -> None:
    answer = await ask(table(node=FakeNode(known=[])), "/pods")
    assert json.loads(answer.body) == {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
    assert answer.content_type == "application/json"


@pytest.mark.parametrize(
    ("gate", "method", "path"),
    [
        ("ContainerCheckpoint", "POST", f"/checkpoint{HERE}"),
        ("ComponentFlagz", "GET", "/flagz"),
        ("ComponentStatusz", "GET", "/statusz"),
    ],
)
async def test_a_feature_gate_that_is_off_takes_its_route_away(
    gate: str, method: str, path: str, tmp_path: Path
) -> None:
    for value, status in ((True, 200), (False, 404)):
        switches = Switches.of(KubeletConfiguration(feature_gates={gate: value}))
        answer = await ask(table(switches, FakeNode(tmp_path)), path, method)
        assert answer.status == status
    assert f"nothing at {path}" in answer.text


@pytest.mark.parametrize(("query", "status"), [("?stream=Stdout", 400), ("?stream=All", 200), ("", 200)])
async def test_without_the_gate_streams_of_a_log_are_not_told_apart(query: str, status: int, tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("2026-01-01T00:00:00.000000000Z stdout F hello\n")
    off = Switches.of(KubeletConfiguration(feature_gates={"PodLogsQuerySplitStreams": False}))
    path = f"/containerLogs/default/web/main{query}"
    assert (await ask(table(ON, FakeNode(log=log)), path)).status == 200
    answer = await ask(table(off, FakeNode(log=log)), path)
    assert answer.status == status
    if status != 200:
        assert 'unable to return the given log stream: "Stdout". Please enable PodLogsQuerySplitStreams' in answer.text
