"""The whole guard over the agent's own client and an API server: who asks for what, and what comes back."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.apiserver.access import ServerAccess
from tests.apiserver.server import ApiServer, open_api_server
from tests.apiserver.users import User as ServerUser
from tests.node_api.auth.people import NOW, authority, client, request
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import Authentication, KubeletConfiguration, X509Authentication
from trikubelet.http.messages import AnyResponse, Request, Response
from trikubelet.kube_client.client import open_client
from trikubelet.node_api.auth.build import build_auth
from trikubelet.node_api.auth.guard import Guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

AUTHENTICATED = "system:authenticated"


@attrs.frozen
class Stage:
    server: ApiServer
    guarded: Guarded

    async def status(self, asked: Request) -> int:
        response = await self.guarded(asked)
        assert isinstance(response, Response)
        return response.status

    def asked(self) -> list[str]:
        return [str(answered.call.resource) for answered in self.server.calls]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    clock = TrioClock(NOW)
    (folder / "ca.pem").write_bytes(authority().pem)
    x509 = X509Authentication(client_ca_file=str(folder / "ca.pem"))
    configuration = attrs.evolve(KubeletConfiguration(), authentication=Authentication(x509=x509))

    async def handler(_: Request) -> AnyResponse:
        return Response(b"served")

    async with open_api_server(clock) as server:
        server.identities.add_token("monitor", ServerUser("monitor", ("monitoring", AUTHENTICATED), "u-1"))
        server.identities.add_token("stranger", ServerUser("stranger", (AUTHENTICATED,)))
        server.reviews.grant("monitoring", "get", "nodes/metrics")
        server.reviews.grant("monitor", "get", "nodes/pods")
        async with (
            open_client(ServerAccess.node(server, "node-a")) as api,
            trio.open_nursery() as nursery,
        ):
            auth = build_auth(configuration, api, "node-a", clock=clock)
            await nursery.start(auth.run)
            yield Stage(server, auth.guard(handler))
            nursery.cancel_scope.cancel()


EXPIRED = client("ann", "system:masters", begin=NOW - 2 * (NOW - NOW.replace(year=2025)), end=NOW.replace(year=2025))
OF_OTHERS = client("ann", "system:masters", by=authority("others"))


@pytest.mark.parametrize(
    ("asked", "metrics", "pods", "stats", "exec_"),
    [
        (request(), 401, 401, 401, 401),
        (request(token="unknown"), 401, 401, 401, 401),
        (request(certificates=[EXPIRED]), 401, 401, 401, 401),
        (request(certificates=[OF_OTHERS]), 401, 401, 401, 401),
        (request(certificates=[OF_OTHERS], token="monitor"), 200, 200, 403, 403),
        (request(token="stranger"), 403, 403, 403, 403),
        (request(certificates=[client("stranger")]), 403, 403, 403, 403),
        (request(token="monitor"), 200, 200, 403, 403),
        (request(certificates=[client("x", "monitoring")]), 200, 403, 403, 403),
        (request(certificates=[client("ann", "system:masters")]), 200, 200, 200, 200),
    ],
)
async def test_who_may_do_what(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    asked: Request,
    metrics: int,
    pods: int,
    stats: int,
    exec_: int,
) -> None:
    paths = {"/metrics": metrics, "/pods": pods, "/stats/summary": stats, "/exec/a/b/c": exec_}
    async with staged(tmp_path) as stage:
        found = {path: await stage.status(attrs.evolve(asked, path=path)) for path in paths}
        assert found == paths


async def test_without_the_api_server_only_what_is_remembered_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with staged(tmp_path) as stage:
        known = request(path="/metrics", token="monitor")
        assert await stage.status(known) == 200
        stage.server.faults.unreachable()
        assert await stage.status(known) == 200
        assert await stage.status(request(token="stranger")) == 401
        certificate = [client("ann", "system:masters")]
        assert await stage.status(request(certificates=certificate)) == 500
        stage.server.faults.back()
        assert await stage.status(request(certificates=certificate)) == 200


async def test_a_right_that_was_withdrawn_and_a_token_that_ended_are_gone_after_their_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with staged(tmp_path) as stage:
        known = request(path="/metrics", token="monitor")
        assert await stage.status(known) == 200
        stage.server.reviews.revoke("monitoring", "get", "nodes/metrics")
        await trio.sleep(299)
        assert await stage.status(known) == 200
        await trio.sleep(2)
        assert await stage.status(known) == 403
        stage.server.identities.remove_token("monitor")
        await trio.sleep(110)
        assert await stage.status(known) == 403
        await trio.sleep(11)
        assert await stage.status(known) == 401


async def test_a_hundred_requests_are_two_questions(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with staged(tmp_path) as stage:
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append(await stage.status(request(path="/metrics", token="monitor")))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert statuses == [200] * 100
        assert sorted(stage.asked()) == ["subjectaccessreviews", "tokenreviews"]
