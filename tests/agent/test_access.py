"""Who may ask the node's API for what: every route, on every port, over real TLS, with whatever somebody may show."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.agent.serving import POD, UID, Caller, Served, authentication, served
from tests.apiserver.users import AUTHENTICATED
from tests.apiserver.users import User as ServerUser
from tests.captured_logs import capture_logs
from tests.node_api.auth.people import NOW, SERVER_AUTH, YEAR, authority, client
from tests.node_api.handlers.stage import FakeNode, clock, fake_parts
from trikubelet.agent.server import ServerError
from trikubelet.config.kubelet_configuration import (
    AnonymousAuthentication,
    Authentication,
    Authorization,
    WebhookAuthentication,
    X509Authentication,
)
from trikubelet.kube_client.certificates.serving import LOOK
from trikubelet.kube_client.certificates.signing import self_signed
from trikubelet.node_api.auth.client_ca import REREAD_SECONDS
from trikubelet.node_api.node_api import Switches, node_api

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.apiserver.server import ApiServer
    from tests.node_api.auth.people import Signer

HERE: Final = f"default/{POD}"

PROXY: Final = ("proxy",)
PODS: Final = ("pods", "proxy")
HEALTHZ: Final = ("healthz", "proxy")
CONFIGZ: Final = ("configz", "proxy")

TABLE: Final = [
    # method, path, what grants it (any one of them), the answer to who may, the read-only port's answer
    ("GET", "/healthz", HEALTHZ, 200, 200),
    ("PUT", "/healthz", HEALTHZ, 200, 200),
    ("GET", "/healthz/syncloop", HEALTHZ, 200, 200),
    ("GET", "/pods", PODS, 200, 200),
    ("GET", "/pods/", PODS, 200, 200),
    ("GET", "/p%6fds", PODS, 200, 200),
    ("POST", "/pods", PODS, 405, 405),
    ("GET", "/runningpods/", PODS, 200, 405),
    ("GET", "/stats/summary", ("stats",), 200, 200),
    ("POST", "/stats/summary", ("stats",), 200, 200),
    ("GET", "/metrics", ("metrics",), 200, 200),
    ("GET", "/metrics/cadvisor", ("metrics",), 200, 200),
    ("GET", "/metrics/resource", ("metrics",), 200, 200),
    ("GET", "/metrics/probes", ("metrics",), 200, 200),
    ("GET", "/metrics/slis", ("metrics",), 200, 200),
    ("DELETE", "/metrics/slis", ("metrics",), 200, 200),
    ("POST", f"/run/{HERE}/main?cmd=ls", PROXY, 200, 405),
    ("POST", f"/run/{HERE}/{UID}/main?cmd=ls", PROXY, 200, 405),
    ("POST", "/run/default/other/main?cmd=ls", PROXY, 404, 405),
    ("GET", f"/exec/{HERE}/main", PROXY, 400, 405),
    ("POST", f"/exec/{HERE}/main?output=1", PROXY, 500, 405),
    ("GET", f"/exec/{HERE}/{UID}/main", PROXY, 400, 405),
    ("POST", f"/exec/{HERE}/{UID}/main", PROXY, 400, 405),
    ("GET", f"/attach/{HERE}/main", PROXY, 400, 405),
    ("POST", f"/attach/{HERE}/main?output=1", PROXY, 500, 405),
    ("GET", f"/attach/{HERE}/{UID}/main", PROXY, 400, 405),
    ("POST", f"/attach/{HERE}/{UID}/main", PROXY, 400, 405),
    ("GET", f"/portForward/{HERE}", PROXY, 500, 405),
    ("POST", f"/portForward/{HERE}", PROXY, 500, 405),
    ("GET", f"/portForward/{HERE}/{UID}", PROXY, 500, 405),
    ("POST", f"/portForward/{HERE}/{UID}", PROXY, 500, 405),
    ("GET", f"/containerLogs/{HERE}/main", PROXY, 200, 405),
    ("POST", f"/checkpoint/{HERE}/main", ("checkpoint",), 500, 404),
    ("GET", "/configz", CONFIGZ, 200, 404),
    ("GET", "/flagz", ("configz",), 200, 404),
    ("GET", "/statusz", ("statusz",), 200, 404),
    ("GET", "/logs/", ("log",), 200, 405),
    ("GET", "/logs/no-such-file-on-any-machine", ("log",), 404, 405),
    ("GET", "/debug/pprof/cmdline", PROXY, 200, 405),
    ("GET", "/debug/tasks", PROXY, 200, 405),
    ("PUT", "/debug/flags/v", PROXY, 400, 404),
    ("GET", "/", PROXY, 404, 404),
    ("GET", "/nothing/there", PROXY, 404, 404),
    ("GET", "/pods%2Fx", PROXY, 404, 404),
    ("GET", "//pods", PROXY, 404, 404),
]
ROW: Final = [
    # what is shown, and the answer; None: what the table says
    ("nothing", 401),
    ("a token that nobody knows", 401),
    ("a certificate of another authority", 401),
    ("a certificate that has expired", 401),
    ("a certificate that is not valid yet", 401),
    ("a certificate for servers", 401),
    ("a certificate, with every right but this one", 403),
    ("a token, with every right but this one", 403),
    ("a certificate, with the right for other verbs", 403),
    ("a certificate, with the first right", None),
    ("a certificate, with the last right", None),
    ("a token, with the first right", None),
    ("a token, with the last right", None),
    ("a certificate of another authority, and a token with the right", None),
]

SUBRESOURCES: Final = ("proxy", "stats", "metrics", "log", "checkpoint", "statusz", "configz", "pods", "healthz")
VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}


@pytest.fixture
def running_clock() -> MockClock:
    return MockClock(rate=1.0)


# Everybody in the table.


def only(subresource: str) -> str:
    return f"only-{subresource}"


def all_but(things: Iterable[str]) -> str:
    return f"all-but-{'-'.join(things)}"


def introduce(api: ApiServer, name: str, subresources: Iterable[str], verbs: Iterable[str] = VERBS.values()) -> None:
    """Somebody with rights, and with a token of the same name."""
    api.identities.add_token(name, ServerUser(name, (AUTHENTICATED,)))
    for subresource in subresources:
        for verb in verbs:
            api.reviews.grant(name, verb, f"nodes/{subresource}")


def introduce_all(api: ApiServer) -> None:
    for subresource in SUBRESOURCES:
        introduce(api, only(subresource), [subresource])
    for granted in {row[2] for row in TABLE}:
        introduce(api, all_but(granted), set(SUBRESOURCES) - set(granted))
    for verb in VERBS.values():
        introduce(api, all_but([verb]), SUBRESOURCES, set(VERBS.values()) - {verb})


class Crowd:
    """Whoever asks for a route, by what he shows. Each keeps one connection for all routes."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._callers: dict[object, Caller] = {}
        self._bad = {
            "a certificate of another authority": client("ann", "system:masters", by=authority("others")),
            "a certificate that has expired": client("ann", "system:masters", end=NOW - timedelta(seconds=1)),
            "a certificate that is not valid yet": client("ann", "system:masters", begin=NOW + YEAR / 2),
            "a certificate for servers": client("ann", "system:masters", uses=[SERVER_AUTH]),
        }

    def of(self, shown: str, method: str, granted: tuple[str, ...]) -> Caller:
        """Who shows that, to get what `granted` grants."""
        kind, _, right = shown.partition(", ")
        match right:
            case "":
                return self._caller(self._bad.get(kind), "unknown" if "token" in kind else "")
            case "and a token with the right":
                return self._caller(self._bad[kind], only(granted[0]))
            case "with every right but this one":
                name = all_but(granted)
            case "with the right for other verbs":
                name = all_but([VERBS[method]])
            case "with the first right":
                name = only(granted[0])
            case _:
                assert right == "with the last right"
                name = only(granted[-1])
        return self._caller(None, name) if "token" in kind else self._named(name)

    def _named(self, name: str) -> Caller:
        known = self._callers.get(name)
        if known is None:
            known = self._callers[name] = self._served.caller(certificate=client(name))
        return known

    def _caller(self, certificate: Signer | None, token: str) -> Caller:
        key = (certificate and certificate.certificate.serial_number, token)
        known = self._callers.get(key)
        if known is None:
            known = self._callers[key] = self._served.caller(certificate=certificate, token=token)
        return known

    @property
    def connections(self) -> tuple[int, int]:
        """How many were opened, and by how many callers."""
        return sum(caller.connections for caller in self._callers.values()), len(self._callers)


async def test_every_route_is_for_who_may_and_for_nobody_else(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path) as node:
        assert node.api is not None
        introduce_all(node.api)
        crowd = Crowd(node)
        wrong = []
        for method, path, granted, answer, _ in TABLE:
            for shown, refusal in ROW:
                found = await crowd.of(shown, method, granted).ask(method, path)
                if found.status != (refusal or answer):
                    wrong.append((method, path, shown, found.status, found.text[:100]))
                elif refusal == 401:
                    assert found.text == "Unauthorized"
                elif refusal == 403:
                    subresources = f"verb={VERBS[method]}, resource=nodes, subresource(s)=[{' '.join(granted)}])\n"
                    assert found.text.endswith(subresources), (method, path, found.text)
        assert wrong == []
        opened, callers = crowd.connections
        assert opened == callers, "somebody was refused and cut off"


def test_every_route_has_a_line_in_the_table() -> None:
    """And the table's word of what grants it is the route's own; a route that grants itself would be missed else."""
    router = node_api(FakeNode(), fake_parts(), Switches(), clock())
    lines: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for method, path, granted, *_ in TABLE:
        route = router.find(method, path.partition("?")[0]).route
        if route is not None:
            lines.setdefault((route.method, route.pattern), set()).add(granted)
    assert lines == {(route.method, route.pattern): {route.subresources} for route in router.routes}


async def test_the_read_only_port_asks_nobody_and_shows_little(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path) as node:
        for stranger in (node.caller("read-only"), node.caller("read-only", token="unknown")):
            found = {(row[0], row[1]): await stranger.status(row[0], row[1]) for row in TABLE}
            assert found == {(row[0], row[1]): row[4] for row in TABLE}
        answer = await stranger.ask("POST", f"/exec/{HERE}/main")
        assert answer.text == "Debug endpoints are disabled.\n"


async def test_the_socket_in_the_root_folder_shows_everything(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path, enable_debugging_handlers=False) as node:
        owner = node.caller("socket")
        found = {(row[0], row[1]): await owner.status(row[0], row[1]) for row in TABLE}
        assert found == {(row[0], row[1]): row[3] for row in TABLE}


async def test_the_health_port_says_ok_and_nothing_else(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path) as node:
        assert node.server.addresses["health"][0] == "127.0.0.1"
        stranger = node.caller("health")
        answer = await stranger.ask("GET", "/healthz")
        assert (answer.status, answer.text) == (200, "ok")
        found = {path: await stranger.status(method, path) for method, path, *_ in TABLE if "healthz" not in path}
        assert set(found.values()) == {404}


# The kubelet's switches.


NOT_ALLOWED_WITHOUT: Final = {
    "enable_debugging_handlers": {row[1] for row in TABLE if row[4] == 405 and row[1] != "/pods"},
    "enable_system_log_handler": {"/logs/", "/logs/no-such-file-on-any-machine"},
    "enable_profiling_handler": {"/debug/pprof/cmdline", "/debug/tasks"},
    "enable_debug_flags_handler": {"/debug/flags/v"},
}
NOT_THERE_WITHOUT: Final = {
    "enable_debugging_handlers": {row[1] for row in TABLE if row[4] == 404},
}


@pytest.mark.parametrize("switch", NOT_ALLOWED_WITHOUT)
async def test_what_is_switched_off_says_so_to_who_may_ask(
    switch: str, tmp_path: Path, running_clock: MockClock
) -> None:
    not_allowed, not_there = NOT_ALLOWED_WITHOUT[switch], NOT_THERE_WITHOUT.get(switch, ())
    fields: dict[str, Any] = {switch: False}
    async with served(tmp_path, **fields) as node:
        nobody, master = node.caller(), node.caller(certificate=client("ann", "system:masters"))
        for method, path, _, answer, _ in TABLE:
            expected = 405 if path in not_allowed else 404 if path in not_there else answer
            assert await master.status(method, path) == expected, (method, path)
            assert await nobody.status(method, path) == 401, (method, path)


async def test_without_a_server_there_is_health_and_the_socket(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path, enable_server=False, read_only_port=0) as node:
        assert set(node.server.addresses) == {"health"}
        assert await node.caller("health").status("GET", "/healthz") == 200
        assert await node.caller("socket").status("GET", "/pods") == 200


# Who is who.


async def test_a_method_that_is_none_of_the_apis_needs_every_verb(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path) as node:
        assert node.api is not None
        introduce(node.api, "monitor", ["metrics"])
        monitor, master = node.caller(token="monitor"), node.caller(certificate=client("ann", "system:masters"))
        for method in ("HEAD", "OPTIONS", "TRACE", "PROPFIND"):
            assert await monitor.status(method, "/metrics") == 403
            assert await master.status(method, "/metrics") == 200


async def test_a_token_that_ended_is_good_until_it_is_asked_about_again(
    tmp_path: Path, running_clock: MockClock
) -> None:
    async with served(tmp_path) as node:
        assert node.api is not None
        introduce(node.api, "monitor", ["metrics"])
        monitor = node.caller(token="monitor")
        assert await monitor.status("GET", "/metrics/probes") == 200
        node.api.identities.remove_token("monitor")
        assert await monitor.status("GET", "/metrics/probes") == 200
        running_clock.jump(121)
        assert await monitor.status("GET", "/metrics/probes") == 401


async def test_a_right_that_was_withdrawn_ends_and_a_new_one_begins(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path) as node:
        assert node.api is not None
        introduce(node.api, "monitor", ["metrics"])
        monitor = node.caller(certificate=client("monitor"))
        assert await monitor.status("GET", "/metrics/probes") == 200
        assert await monitor.status("GET", "/stats/summary") == 403
        node.api.reviews.revoke("monitor", "get", "nodes/metrics")
        node.api.reviews.grant("monitor", "get", "nodes/stats")
        assert await monitor.status("GET", "/stats/summary") == 403
        running_clock.jump(31)
        assert await monitor.status("GET", "/stats/summary") == 200
        assert await monitor.status("GET", "/metrics/probes") == 200
        running_clock.jump(270)
        assert await monitor.status("GET", "/metrics/probes") == 403


async def test_a_certificate_that_expires_during_a_connection_is_refused_on_it(
    tmp_path: Path, running_clock: MockClock
) -> None:
    async with served(tmp_path) as node:
        ann = node.caller(certificate=client("ann", "system:masters", end=NOW + timedelta(seconds=3600)))
        assert await ann.status("GET", "/pods") == 200
        running_clock.jump(80)
        assert await ann.status("GET", "/pods") == 200
        assert ann.connections == 1
        running_clock.jump(3600)
        assert await ann.status("GET", "/pods") == 401


async def test_while_the_api_server_is_away_only_what_is_remembered_goes_on(
    tmp_path: Path, running_clock: MockClock
) -> None:
    async with served(tmp_path) as node:
        assert node.api is not None
        introduce(node.api, "monitor", ["metrics"])
        introduce(node.api, "stranger", ["metrics"])
        monitor, stranger = node.caller(token="monitor"), node.caller(token="stranger")
        certified = node.caller(certificate=client("monitor"))
        assert await monitor.status("GET", "/metrics/probes") == 200
        node.api.faults.unreachable()
        assert await monitor.status("GET", "/metrics/probes") == 200
        assert await monitor.status("GET", "/stats/summary") == 500
        assert await stranger.status("GET", "/metrics/probes") == 401
        unsaid = await certified.ask("GET", "/pods")
        asked = "user=monitor, verb=get, resource=nodes, subresource=pods"
        assert (unsaid.status, unsaid.text) == (500, f"Authorization error ({asked})")
        assert await node.caller("health").status("GET", "/healthz") == 200
        node.api.faults.back()
        assert await stranger.status("GET", "/metrics/probes") == 200
        assert await certified.status("GET", "/pods") == 403


async def test_who_shows_nothing_is_anonymous_where_that_is_on_and_who_shows_a_bad_token_is_not(
    tmp_path: Path, running_clock: MockClock
) -> None:
    allowed = authentication(tmp_path, anonymous=AnonymousAuthentication(enabled=True))
    async with served(tmp_path, authentication=allowed) as node:
        assert node.api is not None
        node.api.reviews.grant("system:unauthenticated", "get", "nodes/healthz")
        nobody = node.caller()
        assert await nobody.status("GET", "/healthz") == 200
        answer = await nobody.ask("GET", "/pods")
        assert answer.status == 403
        assert answer.text.startswith("Forbidden (user=system:anonymous, verb=get, ")
        assert await node.caller(token="unknown").status("GET", "/healthz") == 401
        assert await node.caller(certificate=client(by=authority("others"))).status("GET", "/healthz") == 401


ALONE: Final[Mapping[str, Any]] = {"cluster": False, "authorization": Authorization(mode="AlwaysAllow")}


async def test_a_node_without_a_cluster_serves_who_has_a_certificate(tmp_path: Path, running_clock: MockClock) -> None:
    proof = authentication(tmp_path, webhook=WebhookAuthentication(enabled=False))
    async with served(tmp_path, authentication=proof, **ALONE) as node:
        assert await node.caller(certificate=client()).status("GET", "/pods") == 200
        assert await node.caller().status("GET", "/pods") == 401
        assert await node.caller(token="x").status("GET", "/pods") == 401
        assert await node.caller(certificate=client(by=authority("others"))).status("GET", "/pods") == 401


async def test_a_node_that_could_not_ask_anybody_serves_no_port_for_it(
    tmp_path: Path, running_clock: MockClock
) -> None:
    with capture_logs() as lines:
        async with served(tmp_path, cluster=False) as node:
            assert set(node.server.addresses) == {"read-only", "health"}
            assert await node.caller("socket").status("GET", "/pods") == 200
    (told,) = (line for line in lines if line["event"] == "the node's port is not served")
    assert told["why"].startswith("authentication.webhook.enabled: no client provided")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"authorization": Authorization(mode="Anything")}, "unknown authorization mode Anything"),
        ({"authentication": Authentication(x509=X509Authentication(client_ca_file="/none"))}, "clientCAFile"),
        ({"tls_cert_file": "/none", "tls_private_key_file": "/none"}, "the serving certificate cannot be used"),
    ],
)
@pytest.mark.parametrize("cluster", [True, False])
async def test_an_agent_that_would_let_in_others_than_the_configuration_says_does_not_start(
    cluster: bool, wrong: dict[str, Any], told: str, tmp_path: Path, running_clock: MockClock
) -> None:
    who = authentication(tmp_path, webhook=WebhookAuthentication(enabled=cluster))
    settings = {"cluster": cluster, "authentication": who, **({} if cluster else ALONE), **wrong}
    with pytest.RaisesGroup(pytest.RaisesExc(ServerError, match=told), flatten_subgroups=True):
        async with served(tmp_path, **settings):
            pass


# Certificates that change.


async def test_new_connections_get_the_new_certificate_and_old_ones_go_on(
    tmp_path: Path, running_clock: MockClock
) -> None:
    files = tmp_path / "node.crt", tmp_path / "node.key"

    def put(host: str) -> None:
        for file, pem in zip(files, self_signed(host, NOW), strict=True):
            file.write_bytes(pem)

    put("node")
    tls: dict[str, Any] = {"tls_cert_file": str(files[0]), "tls_private_key_file": str(files[1])}
    async with served(tmp_path, **tls) as node:
        before, after = node.caller(), node.caller()
        old = await before.shown()
        put("renamed")
        running_clock.jump(LOOK + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert await before.shown() == old
        assert await after.shown() != old
        files[1].write_text("no key any more")
        running_clock.jump(LOOK + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert await node.caller().shown() == await after.shown()
        assert before.connections == after.connections == 1


async def test_another_client_authority_counts_at_once_and_on_connections_that_are_there(
    tmp_path: Path, running_clock: MockClock
) -> None:
    async with served(tmp_path) as node:
        old = node.caller(certificate=client("ann", "system:masters"))
        new = node.caller(certificate=client("ann", "system:masters", by=authority("others")))
        assert [await old.status("GET", "/pods"), await new.status("GET", "/pods")] == [200, 401]
        node.client_ca.write_bytes(authority("others").pem)
        running_clock.jump(REREAD_SECONDS)
        with trio.fail_after(REREAD_SECONDS):
            while await new.status("GET", "/pods") != 200:
                await trio.sleep(0.01)
        assert await old.status("GET", "/pods") == 401
        assert old.connections == new.connections == 1
        node.client_ca.write_bytes(b"nothing that could be read")
        running_clock.jump(REREAD_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        assert [await old.status("GET", "/pods"), await new.status("GET", "/pods")] == [401, 200]


async def test_nobody_gets_in_while_there_is_no_certificate_to_show(tmp_path: Path, running_clock: MockClock) -> None:
    async with served(tmp_path, server_tls_bootstrap=True) as node:
        assert node.api is not None
        with pytest.raises(trio.BrokenResourceError):
            await node.caller().ask("GET", "/pods")
        assert await node.caller("health").status("GET", "/healthz") == 200
        assert await node.caller("read-only").status("GET", "/pods") == 200


async def test_a_runtime_without_checkpoints_is_told_of_in_the_words_that_clients_look_for(
    tmp_path: Path, running_clock: MockClock
) -> None:
    async with served(tmp_path) as node:
        answer = await node.caller("socket").ask("POST", f"/checkpoint/{HERE}/main")
        assert answer.status == 500
        assert answer.text == (
            f"checkpointing of {HERE}/main failed (rpc error: code = Unimplemented desc = "
            "unknown method CheckpointContainer for service runtime.v1.RuntimeService)\n"
        )
