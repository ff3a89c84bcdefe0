"""kubectl, which knows real API servers best, with the test server."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.server import ApiServer, open_api_server
from trikubelet.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Kubectl = Callable[..., Awaitable[str]]

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]


@pytest.fixture
async def served() -> AsyncIterator[tuple[ApiServer, str]]:
    async with open_api_server(SystemClock()) as server, trio.open_nursery() as nursery:
        port = await nursery.start(server.serve_tcp)
        yield server, f"https://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


async def run(folder: Path, config: str, *arguments: str) -> str:
    (folder / "config").write_text(config)
    command = ["kubectl", "--kubeconfig", str(folder / "config"), "--cache-dir", str(folder / "cache"), *arguments]
    with trio.fail_after(60):
        done = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.STDOUT, check=False, env={"HOME": str(folder)}
        )
    output = done.stdout.decode()
    assert done.returncode == 0, output
    return output


async def test_kubectl_works_with_the_server(served: tuple[ApiServer, str], tmp_path: Path) -> None:
    server, url = served
    kubectl: Kubectl = partial(run, tmp_path, server.kubeconfig(server.admin_certificate(), url))
    server.admin.create(node_document("a"))
    assert "v1.36.2" in await kubectl("version")
    assert "a" in await kubectl("get", "nodes")
    (tmp_path / "pod.json").write_text(json.dumps(pod_document("web", node="a")))
    assert "pod/web created" in await kubectl("create", "--validate=false", "-f", str(tmp_path / "pod.json"))
    assert "labeled" in await kubectl("label", "pod", "web", "app=web")
    listed = json.loads(await kubectl("get", "pods", "-l", "app=web", "-o", "json"))
    assert [pod["metadata"]["name"] for pod in listed["items"]] == ["web"]
    about = {"kind": "Pod", "name": "web", "namespace": "default", "uid": listed["items"][0]["metadata"]["uid"]}
    event = {"involvedObject": about, "reason": "Tested", "message": "by a test", "type": "Normal"}
    server.admin.create({"kind": "Event", "metadata": {"name": "web.1"}, **event})
    described = await kubectl("describe", "pod", "web")
    assert "Node:" in described
    assert "Tested" in described
    assert "condition met" in await kubectl("wait", "--for=jsonpath={.status.phase}=Pending", "pod/web", "--timeout=5s")
    assert "deleted" in await kubectl("delete", "pod", "web", "--now", "--wait=false")
    assert server.admin.get("pods", "web")["metadata"]["deletionGracePeriodSeconds"] == 1
    assert "deleted" in await kubectl("delete", "pod", "web", "--force", "--grace-period=0")
    assert server.admin.find("pods", "web") is None
    assert "certificatesigningrequests" in await kubectl("api-resources")


async def test_kubectl_is_refused_what_a_node_may_not_see(served: tuple[ApiServer, str], tmp_path: Path) -> None:
    server, url = served
    with pytest.raises(AssertionError, match="can only list/watch pods with"):
        await run(tmp_path, server.kubeconfig(server.node_certificate("a"), url), "get", "pods", "-A")
