"""A kubeconfig on the disk, the client on it, and a server that knows who asks."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
import yaml

from tests.apiserver.server import ApiServer
from tests.apiserver.users import AUTHENTICATED, MASTERS, User
from trikubelet.clock import TrioClock
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.dialing import open_access
from trikubelet.kube_client.errors import ApiStatusError
from trikubelet.kube_client.types import NODES

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.kube_client.dialing import ClusterConnector

ADMIN = User("kubernetes-admin", (MASTERS, AUTHENTICATED))


@pytest.fixture
async def server(nursery: trio.Nursery) -> ApiServer:
    api = ApiServer(TrioClock())
    await nursery.start(api.run)
    return api


def access_of(server: ApiServer, folder: Path, user: dict[str, Any]) -> ClusterConnector:
    cluster = {"server": server.url, "certificate-authority-data": b64encode(server.ca_pem).decode()}
    data = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(data))
    return open_access(folder / "kubeconfig", environment={}, dial=server.connect)


async def test_a_rotated_certificate_is_the_identity_of_the_next_calls(
    server: ApiServer, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    def rotate(cert_pem: bytes, key_pem: bytes) -> None:
        (tmp_path / "new").write_bytes(cert_pem + key_pem)
        (tmp_path / "new").rename(tmp_path / "node.pem")

    first = server.node_certificate("first")
    rotate(first.cert_pem, first.key_pem)
    access = access_of(server, tmp_path, {"client-certificate": "node.pem", "client-key": "node.pem"})
    async with open_client(access) as client:
        with pytest.raises(ApiStatusError, match='"first" not found'):
            await client.get(NODES, "first")
        with pytest.raises(ApiStatusError) as refused:
            await client.get(NODES, "second")
        assert refused.value.forbidden
        second = server.node_certificate("second")
        rotate(second.cert_pem, second.key_pem)
        await trio.sleep(61)
        with pytest.raises(ApiStatusError, match='"second" not found'):
            await client.get(NODES, "second")


async def test_a_token_that_is_replaced_after_a_refusal_is_used_at_once(
    server: ApiServer, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server.identities.add_token("old", ADMIN)
    (tmp_path / "token").write_text("old\n")
    async with open_client(access_of(server, tmp_path, {"tokenFile": "token"})) as client:
        assert (await client.list(NODES)).items == ()
        server.identities.remove_token("old")
        server.identities.add_token("new", ADMIN)
        (tmp_path / "token").write_text("new\n")
        began = trio.current_time()
        with suppress(ApiStatusError):  # of the old token
            await client.list(NODES)
        assert (await client.list(NODES)).items == ()
        assert trio.current_time() - began < 5
