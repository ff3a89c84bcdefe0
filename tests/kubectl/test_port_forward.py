"""`kubectl port-forward` to a web server in the pod."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl

DATA = os.urandom(5 * 2**20)


@pytest.mark.parametrize("way", ["websocket", "spdy"])
def test_two_at_once_fetch_much(node: OneNode, way: str) -> None:
    node.pass_websockets(way == "websocket")
    before = node.websocket_requests().get("portforward", 0)
    # The shell outlives cat: containerd ends stdin as soon as nobody has stdout open any more.
    script = "cat > /tmp/www/data; echo kept"
    assert node.kubectl("exec", "-i", "web", "-c", "www", "--", "sh", "-c", script, stdin=DATA) == b"kept\n"
    words = ["port-forward", "web", f":{node.web_port}"]
    with node.going(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as forwarding:
        assert forwarding.stdout is not None
        line = forwarding.stdout.readline().decode()
        found = re.fullmatch(rf"Forwarding from 127\.0\.0\.1:(\d+) -> {node.web_port}\n", line)
        assert found, line
        url = f"http://127.0.0.1:{found[1]}/data"
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(fetched, [url] * 4)) == [DATA] * 4
    after = node.websocket_requests().get("portforward", 0)
    node.pass_websockets(True)
    assert (after > before) == (way == "websocket")


def fetched(url: str) -> bytes:
    with build_opener(ProxyHandler({})).open(url, timeout=PATIENCE) as answer:
        data: bytes = answer.read()
        return data
