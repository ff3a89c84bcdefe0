"""The node's own pages through the API server, and `kubectl top`, which lives on them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.agent.real_node import NODE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl


def _pods(text: str) -> bool:
    return [pod["metadata"]["name"] for pod in json.loads(text)["items"]].count("web") == 1


def _summary(text: str) -> bool:
    summary = json.loads(text)
    names = {one["name"] for pod in summary["pods"] for one in pod["containers"] if pod["podRef"]["name"] == "web"}
    return summary["node"]["nodeName"] == NODE_NAME and names >= {"main", "reads", "tty", "www"}


PAGES: dict[str, Callable[[str], object]] = {
    "healthz": lambda text: text.strip() == "ok",
    "healthz/syncloop": lambda text: text.strip() == "ok",
    "configz": lambda text: json.loads(text)["kubeletconfig"]["kind"] == "KubeletConfiguration",
    "metrics": lambda text: "\nkubelet_running_pods " in text,
    "metrics/resource": lambda text: re.search(r"\nscrape_error 0|\nresource_scrape_error 0", text),
    "metrics/cadvisor": lambda text: "\ncontainer_cpu_usage_seconds_total{" in text,
    "metrics/probes": lambda text: True,
    "stats/summary": _summary,
    "pods": _pods,
    "runningpods/": _pods,
    "logs/": lambda text: "<pre>" in text,
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_node(node: OneNode, page: str) -> None:
    text = node.kubectl("get", "--raw", f"/api/v1/nodes/{NODE_NAME}/proxy/{page}").decode()
    assert PAGES[page](text), text[:2000]


def test_a_command_through_the_proxy(node: OneNode) -> None:
    path = f"/api/v1/nodes/{NODE_NAME}/proxy/run/default/web/main?cmd=echo+hello"
    assert node.kubectl("create", "--raw", path, "-f", "-", stdin=b"") == b"hello\n"


def test_what_pods_and_the_node_use(node: OneNode) -> None:
    node.kubectl("exec", "web", "-c", "main", "--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    containers = node.kubectl("top", "pod", "web", "--containers", "--no-headers").decode()
    rows = {line.split()[1]: line.split()[2:] for line in containers.splitlines()}
    assert set(rows) >= {"main", "reads", "tty", "www"}
    assert all(re.fullmatch(r"\d+m", cpu) and re.fullmatch(r"\d+Mi", memory) for cpu, memory in rows.values())
    name, cpu, share, memory, used = node.kubectl("top", "node", "--no-headers").decode().split()
    assert name == NODE_NAME
    assert int(cpu.removesuffix("m")) > 0
    assert int(memory.removesuffix("Mi")) > 50
    # It may be less than a hundredth, where a cgroup stands for the machine.
    assert 0 <= int(used.removesuffix("%")) < 100
    assert share.endswith("%")
