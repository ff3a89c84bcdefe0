"""Agents that live through enough for each of their metrics to have something to tell."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.sim_node import SimNode, sim_node, static_pod
from tests.probes.stage import LIVENESS, READINESS
from tests.scenarios.health import Health, probed
from tests.scenarios.stage import Stage, cluster_stage
from trikubelet.agent.metrics import agent_metrics
from trikubelet.agent.view import LocalView
from trikubelet.kube_client.certificates.rotation import AGE_BOUNDS, RotationStatistics
from trikubelet.metrics.health_checks import HealthChecks
from trikubelet.metrics.http_requests import RequestCounts
from trikubelet.node.podresources.metrics import V1, PodResourcesMetrics
from trikubelet.sim import Program
from trikubelet.supervision import contain
from trikubelet.telemetry.families import Family, Sample
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from trikubelet.agent.agent import Agent
    from trikubelet.kube_client.certificates.rotation import CertificateManager
    from trikubelet.metrics.exposition import AgentMetrics, Page

PAGES: Final[tuple[Page, ...]] = ("metrics", "probes", "slis")


def metrics_of(agent: Agent, **more: Any) -> AgentMetrics:
    """Without servers and certificates, unless `more` has them."""
    return agent_metrics(agent, HealthChecks(LocalView(agent).health), **more)


async def families(metrics: AgentMetrics, page: Page = "metrics") -> dict[str, Metric]:
    """By the name under which a page has them. In the families themselves the parser gives every counter `_total`."""
    return read((await metrics.expose(page)).body)


def read(text: bytes) -> dict[str, Metric]:
    found = list(text_string_to_metric_families(text.decode()))
    names = re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE)
    return dict(zip(names, found, strict=True))


async def value(metrics: AgentMetrics, name: str, page: Page = "metrics", /, **labels: str) -> float | None:
    """Of one sample; None when there is none."""
    for family, metric in (await families(metrics, page)).items():
        for sample in metric.samples:
            told = family if sample.name == f"{family}_total" else sample.name
            if told == name and sample.labels == labels:
                return sample.value
    return None


async def until_failed_start(node: SimNode, name: str, **spec: Any) -> None:
    """A pod whose container cannot be started is tried once."""
    pod = static_pod(name, **spec)
    failed = sum(node.agent.runtime.metrics.failed_containers.values())
    node.source.put(pod)
    await node.until(lambda: sum(node.agent.runtime.metrics.failed_containers.values()) > failed)
    node.source.remove(pod)
    await node.until_gone(pod)


async def fail() -> None:
    raise RuntimeError("nobody thought of that")


async def live_without_cluster(folder: Path) -> dict[str, Metric]:
    """Three pods with probes and volumes, one of which ends, and what goes wrong. All families of all pages."""
    async with sim_node(folder) as node:
        metrics = metrics_of(node.agent)
        node.sim.program(Health().program(), container="probed")
        container = probed("probed", LIVENESS, READINESS) | {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        volumes = [{"name": "v", "emptyDir": {}}]
        pods = [static_pod(f"pod-{number}", containers=[container], volumes=volumes) for number in range(3)]
        node.sim.faults.fail_next("RunPodSandbox")
        node.source.put(*pods)
        for pod in pods:
            await node.until_running(pod, within=120)
        node.source.remove(pods[0])
        await node.until_gone(pods[0])
        node.sim.program(Program.fails_to_start("no such file"), container="broken")
        await until_failed_start(node, "broken", containers=[{"name": "broken", "image": "test:1"}])
        await contain(fail)
        found: dict[str, Metric] = {}
        for page in PAGES:
            found |= await families(metrics, page)
        return found


@attrs.frozen
class Certificate:
    """In the place of a `CertificateManager`."""

    current: Any = None
    ages: Histogram = attrs.field(factory=lambda: Histogram(AGE_BOUNDS))
    failed: int = 0

    def statistics(self) -> RotationStatistics:
        return RotationStatistics(0, self.failed, "", None)


@attrs.frozen
class Leaf:
    """What is asked of a pair: the end of its certificate."""

    not_after: datetime

    @property
    def leaf(self) -> Leaf:
        return self


async def measured() -> list[Family]:
    await trio.lowlevel.checkpoint()
    labels = ("uid", "namespace", "pod", "container")
    samples = [Sample(("uid", "default", "web", "main"), 4096)]
    text = "What the logs of a container take on the disk."
    return [Family("kubelet_container_log_filesystem_used_bytes", "gauge", text, labels, samples)]


def asked() -> PodResourcesMetrics:
    """Everything once."""
    metrics = PodResourcesMetrics()
    for counts in attrs.astuple(metrics, recurse=False):
        counts[V1] += 1
    return metrics


async def live_in_cluster() -> dict[str, Metric]:
    """A pod of the API server, and all that a server of the node counts."""
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.create_pod("web")
        await stage.until_ready("web")
        await trio.sleep(5)
        return await families(metrics_in_cluster(stage))


def metrics_in_cluster(stage: Stage) -> AgentMetrics:
    requests = RequestCounts()
    with requests.request("GET", "/pods"):
        requests.websocket("exec")
    agent = stage.agent
    agent.preempting.ended[("cpu",)] += 1
    agent.runtime.metrics.images_removed[("age",)] += 1
    agent.statuses.metrics.rejected("OutOfcpu")
    end = agent.clock.now().astimezone(UTC) + timedelta(hours=1)
    certificate = cast("CertificateManager", Certificate(Leaf(end)))
    return metrics_of(
        agent,
        requests=requests,
        client_certificate=certificate,
        server_certificate=certificate,
        pod_resources=asked(),
        measured=measured,
    )


def labels_of(family: Metric) -> frozenset[str]:
    """The names of labels, but for those of buckets."""
    return frozenset(label for sample in family.samples for label in sample.labels if label != "le")


def bounds_of(family: Metric) -> tuple[float, ...]:
    """Of the buckets of any one histogram of the family."""
    first: Mapping[str, str] | None = None
    bounds = []
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            rest = {name: text for name, text in sample.labels.items() if name != "le"}
            first = rest if first is None else first
            if rest == first:
                bounds.append(float(sample.labels["le"]))
    return tuple(bounds)
