"""One joined node for each runtime, for all tests here, in the order of the runtimes. Each test ends its pods, and then
nothing may be left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.conftest import RUNTIMES, node_on
from tests.volumes.real.joined_node import joined_node
from tests.volumes.real.served_cluster import served_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.volumes.real.joined_node import JoinedNode


@pytest.fixture(scope="package", params=RUNTIMES)
def shared_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedNode]:
    folder = tmp_path_factory.mktemp(f"volumes-{request.param}")
    with served_cluster() as cluster, joined_node(node_on(request, folder), cluster) as joined:
        yield joined


@pytest.fixture
def node(shared_node: JoinedNode) -> Iterator[JoinedNode]:
    """Afterwards mounts, folders, descriptors and loop devices are as they were."""
    before = shared_node.state()
    try:
        yield shared_node
    finally:
        pods = shared_node.cluster.do(lambda server: server.admin.list("pods"))
        shared_node.end(*(pod["metadata"]["name"] for pod in pods))
    shared_node.until_as(before)
