"""One node for each runtime, for all tests here, in the order of the runtimes, with one pod that they share."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests import workers
from tests.agent.conftest import node_on
from tests.agent.private_cgroups import private_cgroups
from tests.free_ports import free_port
from tests.kubectl.one_node import UNTIL_TERM, one_node
from tests.volumes.real.served_cluster import served_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kubectl.one_node import OneNode


RUNTIMES = (
    pytest.param("embedded", marks=[pytest.mark.root, pytest.mark.together("kubectl")]),
    pytest.param(
        "containerd", marks=[pytest.mark.containerd, pytest.mark.again, pytest.mark.together("kubectl on containerd")]
    ),
)
"""The tests on one runtime run together: they share a node, whose start and end take seconds."""


@pytest.fixture(scope="package", params=RUNTIMES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    folder = tmp_path_factory.mktemp(f"kubectl-{request.param}")
    # Of the pods on the embedded runtime: no API server gives this node addresses, and each worker has its own.
    pod_cidr = f"10.245.{77 + workers.number()}.0/24"
    node = node_on(request, folder)
    with private_cgroups() as cgroups, served_cluster() as cluster:
        node.configure(**cgroups.fields, podCIDR=pod_cidr)
        with one_node(node, cluster, cgroups) as joined:
            yield _with_web(joined)


def _with_web(joined: OneNode) -> OneNode:
    port = free_port()
    joined.web_port = port
    joined.start(
        "web",
        joined.container("main", f"for i in $(seq -w 100); do echo line $i; done; echo complaint >&2; {UNTIL_TERM}"),
        joined.container("reads", "while read line; do echo got $line; done; exec sleep 1000", stdin=True),
        joined.container("tty", "exec sh", stdin=True, tty=True),
        joined.container(
            "www",
            f"mkdir -p /tmp/www; exec busybox httpd -f -p {port} -h /tmp/www",
            readinessProbe={"tcpSocket": {"port": port}, "periodSeconds": 1},
        ),
    )
    return joined
