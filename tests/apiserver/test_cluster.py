"""The script's view of a cluster, through the agent's own client and HTTP/2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.apiserver.access import ServerAccess
from tests.apiserver.builders import node_document
from tests.apiserver.cluster import TestCluster
from trikubelet.kube_client.client import open_client

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer


async def test_a_script_sees_what_it_does(autojump_clock: MockClock, server: ApiServer) -> None:
    server.admin.create(node_document("a"))
    async with open_client(ServerAccess.admin(server)) as client:
        cluster = TestCluster(client, server=server)
        assert cluster.injectable
        async with cluster.watching() as seen:
            await cluster.create_pod("web", restartPolicy="Never")
            await cluster.bind("web", "a")
            bound = await cluster.until_pod("web", lambda pod: pod.spec.node_name == "a")
            await cluster.delete_pod("web", grace=0)
            await cluster.until_gone("web", bound.metadata.uid)
            await trio.sleep(0.1)
        assert [(s.type, s.pod.spec.node_name) for s in seen] == [
            ("ADDED", ""),
            ("MODIFIED", "a"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
        ]


async def test_what_does_not_come_true_is_told_with_the_last_state(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    async with open_client(ServerAccess.admin(server)) as client:
        cluster = TestCluster(client, server=server, patience=5)
        await cluster.create_pod("web")
        with pytest.raises(AssertionError, match=r"pod web after 5 s: .*Pending"):
            await cluster.until_pod("web", lambda pod: pod.status.phase == "Running")
        with pytest.raises(AssertionError, match="node a after 5 s: not there"):
            await cluster.until_ready("a")
