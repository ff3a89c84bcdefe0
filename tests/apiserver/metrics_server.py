"""metrics-server, as far as `kubectl top` needs it: `metrics.k8s.io/v1beta1` from what nodes tell.

As the real one it reads `/metrics/resource` of each node twice, some time apart, and CPU usage is what was used between
the two. What it cannot compute of a pod's every container, it does not tell of the pod at all. Unlike the real one it
looks when it is asked, so that a test waits no longer than it has to.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.apiserver.documents import name_of
from tests.apiserver.resources import NODES
from trikubelet.http.messages import Response, json_response

if TYPE_CHECKING:
    from tests.apiserver.server import ApiServer
    from trikubelet.http.messages import Request

GROUP_VERSION: Final = "metrics.k8s.io/v1beta1"
_CPU: Final = ("node_cpu_usage_seconds_total", "container_cpu_usage_seconds_total")
_MEMORY: Final = ("node_memory_working_set_bytes", "container_memory_working_set_bytes")
_PATIENCE: Final = 20.0
_LOOK_EVERY: Final = 0.25
_RESOURCES: Final = (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True))

Who = tuple[str, str, str]
"""Namespace, pod and container; a node is only its name, as the last."""


@attrs.frozen
class Point:
    """What was read of a node or container."""

    at: float
    """Seconds since 1970, as the node says."""
    cpu: float
    """Seconds."""
    memory: int
    """Bytes."""


@attrs.frozen
class Usage:
    at: float
    cores: float
    memory: int

    @property
    def quantities(self) -> dict[str, str]:
        return {"cpu": f"{math.ceil(self.cores * 1e9)}n", "memory": f"{self.memory // 1024}Ki"}


class MetricsServer:
    """`handle` what is asked of the group. Registers itself."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._before: dict[str, dict[Who, Point]] = {}
        server.handling.aggregated[GROUP_VERSION] = self.handle

    async def handle(self, request: Request) -> Response:
        parts = request.path.strip("/").split("/")[3:]
        namespace = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if not parts:
            entries = [
                {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]}
                for name, kind, namespaced in _RESOURCES
            ]
            return json_response({"kind": "APIResourceList", "groupVersion": GROUP_VERSION, "resources": entries})
        items = await (self._nodes() if parts[0] == "nodes" else self._pods(namespace))
        if len(parts) == 1:
            kind = "NodeMetricsList" if parts[0] == "nodes" else "PodMetricsList"
            return json_response({"kind": kind, "apiVersion": GROUP_VERSION, "metadata": {}, "items": items})
        found = next((item for item in items if name_of(item) == parts[1]), None)
        return (
            json_response({"kind": "Status", "status": "Failure", "code": 404}, 404)
            if not found
            else json_response(found)
        )

    async def _nodes(self) -> list[dict[str, Any]]:
        usages = await self._usages()
        return [
            _metrics("NodeMetrics", name, used, {"usage": used.quantities}) for (_, _, name), used in _of_nodes(usages)
        ]

    async def _pods(self, namespace: str) -> list[dict[str, Any]]:
        pods: dict[tuple[str, str], list[tuple[str, Usage]]] = {}
        for (in_namespace, pod, container), used in (await self._usages()).items():
            if pod and namespace in ("", in_namespace):
                pods.setdefault((in_namespace, pod), []).append((container, used))
        found = []
        for (in_namespace, pod), containers in pods.items():
            entries = [{"name": name, "usage": used.quantities} for name, used in containers]
            item = _metrics("PodMetrics", pod, containers[0][1], {"containers": entries})
            item["metadata"]["namespace"] = in_namespace
            found.append(item)
        return found

    async def _usages(self) -> dict[Who, Usage]:
        """Of everything that was there both times."""
        found: dict[Who, Usage] = {}
        for node in self._server.store.values(NODES):
            found |= await self._usage_of(name_of(node))
        return found

    async def _usage_of(self, node: str) -> dict[Who, Usage]:
        before = self._before.get(node) or await self._read(node)
        with trio.move_on_after(_PATIENCE):
            while True:
                now = await self._read(node)
                if all(point.at > before[who].at for who, point in now.items() if who in before):
                    break
                await trio.sleep(_LOOK_EVERY)
        self._before[node] = now
        return {
            who: Usage(point.at, (point.cpu - before[who].cpu) / (point.at - before[who].at), point.memory)
            for who, point in now.items()
            if who in before and point.at > before[who].at
        }

    async def _read(self, node: str) -> dict[Who, Point]:
        text = (await self._server.node_proxy.get(node, "/metrics/resource")).decode()
        cpu: dict[Who, tuple[float, float]] = {}
        memory: dict[Who, int] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                who = (labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", node))
                if sample.name in _CPU and sample.timestamp is not None:
                    cpu[who] = float(sample.timestamp), sample.value
                elif sample.name in _MEMORY:
                    memory[who] = int(sample.value)
        return {who: Point(at, used, memory[who]) for who, (at, used) in cpu.items() if who in memory}


def _of_nodes(usages: dict[Who, Usage]) -> list[tuple[Who, Usage]]:
    return [(who, used) for who, used in usages.items() if not who[1]]


def _metrics(kind: str, name: str, used: Usage, fields: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(used.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": name, "creationTimestamp": at}
    return {"kind": kind, "apiVersion": GROUP_VERSION, "metadata": metadata, "timestamp": at, "window": "1s", **fields}
