"""What is exposed, beside what a kubelet has, and beside what the documentation says."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from prometheus_client.metrics_core import Metric

from tests.agent.sim_node import clock_without_threads
from tests.allocation.managed import container, make_pod, managers
from tests.metrics.kubelet_facts import BOUNDS, FACTS
from tests.metrics.lives import bounds_of, labels_of, live_in_cluster, live_without_cluster, read
from trikubelet.allocation.metrics import ResizeCounts, ResizeStatistics
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.allocation.topology.policy import SINGLE_NUMA_NODE
from trikubelet.clock import SystemClock
from trikubelet.metrics.cluster import collect_pod_certificates
from trikubelet.metrics.devices import collect_claims, collect_devices
from trikubelet.metrics.eviction import collect_eviction
from trikubelet.metrics.node import collect_gates, collect_shutdown
from trikubelet.metrics.plugins import collect_credential_plugins, collect_plugins
from trikubelet.metrics.resizes import collect_resizes
from trikubelet.metrics.resource_managers import collect_resource_managers
from trikubelet.metrics.runtime import collect_cgroups, collect_pull_records
from trikubelet.metrics.servers import collect_spans
from trikubelet.metrics.volumes import collect_csi, collect_measuring, collect_volumes
from trikubelet.node.devices.metrics import DeviceMetrics
from trikubelet.node.dra.metrics import ClaimMetrics
from trikubelet.node.eviction.manager import AGE_BOUNDS
from trikubelet.node.shutdown.record import ShutdownTimes
from trikubelet.plugins.registration import PluginStatus
from trikubelet.runtime.images.credentials.accounts import NoServiceAccounts
from trikubelet.runtime.images.credentials.plugins import Plugins
from trikubelet.runtime.images.pull_records.model import PodCredentials, VerificationPolicy
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore
from trikubelet.telemetry.families import Family
from trikubelet.telemetry.metrics import Histograms
from trikubelet.telemetry.text_format import write_text
from trikubelet.tracing.exporter import ExportCounts
from trikubelet.volumes.csi.drivers import Drivers
from trikubelet.volumes.model import VolumeUsage
from trikubelet.volumes.mount_labels import CONTAINERS, PODS, VOLUMES, MountLabels

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.allocation.manager import AllocationManager
    from trikubelet.allocation.managers import ResourceManagers
    from trikubelet.kube_client.pod_certificates import PodCertificates
    from trikubelet.node.dra.manager import ClaimManager
    from trikubelet.volumes.manager import VolumeManager

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
GO_ONLY = {"git_commit", "git_tree_state", "build_date", "go_version", "compiler"}
"""Labels of `kubernetes_build_info` that mean nothing here."""


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


class Claims:
    """Two of one driver."""

    def __init__(self) -> None:
        self.metrics = ClaimMetrics()
        self.metrics.operations.observe(("PrepareResources", "false"), 1)
        self.metrics.calls.observe(("gpu.example.com", "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node", "OK"), 1)

    def claims_in_use(self) -> dict[str, int]:
        return {"gpu.example.com": 2, "<any>": 2}


@attrs.frozen
class Volumes:
    """In the place of a `VolumeManager` with a claim."""

    durations: Histograms = attrs.field(factory=Histograms)
    reconstructed: int = 0
    not_understood: int = 0
    labels: MountLabels = attrs.field(factory=MountLabels)

    def __attrs_post_init__(self) -> None:
        self.labels.admitted["kubernetes.io/csi/disks", "RWOP"] += 1
        for counted in (self.labels.errors, self.labels.warnings):
            counted[CONTAINERS]["RWOP",] += 1
            counted[PODS]["RWOP",] += 1
            counted[VOLUMES]["kubernetes.io/csi/disks", "RWOP"] += 1

    def count_by_plugin(self) -> tuple[Counter[str], Counter[str]]:
        return Counter(), Counter()

    def usage_of_claims(self) -> dict[tuple[str, str], VolumeUsage]:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return {("default", "data"): VolumeUsage(at, 1, 10, 9, 100, 1, 99)}


@attrs.frozen
class Certificates:
    """In the place of `PodCertificates` with one that was issued."""

    def report(self) -> dict[tuple[str, str], int]:
        return {("example.com/signer", "fresh"): 1}


@attrs.frozen
class Resizes:
    """In the place of an `AllocationManager` that had something to do."""

    counts: ResizeCounts = attrs.field(factory=ResizeCounts)

    def __attrs_post_init__(self) -> None:
        self.counts.requested["cpu", "limits", "add"] += 1
        self.counts.deferred_accepted["pod_updated",] += 1
        self.counts.infeasible["swap_limitation",] += 1

    def statistics(self) -> ResizeStatistics:
        return ResizeStatistics(Counter({("deferred",): 2}), 1, 2)


async def exposed(folder: Path) -> dict[str, Metric]:
    """All families that there can be, by name."""
    drivers = drivers_of(Histograms(BOUNDS["storage"]))
    ages = Histograms(AGE_BOUNDS)
    ages.observe(("memory.available",), 1)
    others = [*collect_csi(drivers), *collect_gates({"AllAlpha": False})]
    others += collect_devices(device_measures())
    others += collect_claims(cast("ClaimManager", Claims()))
    others += collect_plugins([PluginStatus("/reg/a.sock", "CSIPlugin a", True, True, 0, "")])
    others += collect_credential_plugins(credential_plugins())
    others += collect_pull_records(await checked_records(folder))
    others += collect_pod_certificates(cast("PodCertificates", Certificates()))
    others += collect_shutdown(ShutdownTimes())
    others += collect_spans(ExportCounts())
    others += collect_eviction(Counter({("memory.available",): 1}), ages)
    durations = Histograms(BOUNDS["resize"])
    durations.observe(("true",), 1)
    others += collect_resizes(cast("AllocationManager", Resizes()), durations)
    given = managed_node()
    others += collect_resource_managers(given.counts, given.cpu_usage())
    others += [one for one in collect_cgroups(Histograms(), (3, 2)) if "memory_qos" in one.name]
    measuring = Histograms()
    measuring.observe(("statfs",), 1)
    others += collect_measuring([measuring])
    volumes = collect_volumes(cast("VolumeManager", Volumes()))
    others += [one for one in volumes if "stats" in one.name or "selinux" in one.name]
    return {**await live_without_cluster(folder), **await live_in_cluster(), **read(b"".join(write_text(others)))}


def differs(name: str, family: Metric) -> list[str]:
    """How a family differs from the kubelet's of the same name."""
    fact, found = FACTS[name], []
    if family.type != fact.kind:
        found.append(f"{fact.name} is a {family.type}, the kubelet's a {fact.kind}")
    if labels_of(family) != fact.labels - GO_ONLY:
        found.append(f"{fact.name} has labels {sorted(labels_of(family))}, the kubelet's {sorted(fact.labels)}")
    if fact.bounds and bounds_of(family) != (*BOUNDS[fact.bounds], math.inf):
        found.append(f"{fact.name} has buckets {bounds_of(family)}")
    return found


async def test_every_family_is_as_the_kubelets_and_as_documented(mock_clock: MockClock, tmp_path: Path) -> None:
    families = await exposed(tmp_path)
    ours = {name for name in families if name.startswith("trikubelet_")} | {"python_info"}
    assert families.keys() - ours <= FACTS.keys(), "a name of ours says so"
    assert not [problem for name in families.keys() - ours for problem in differs(name, families[name])]
    assert all(family.documentation for family in families.values())
    tables = documented()
    assert tables.keys() - families.keys() == set(), "documented, and not exposed"
    assert families.keys() - tables.keys() == set(), "exposed, and not documented"
    for name, family in families.items():
        assert tables[name] == (family.type, labels_of(family)), name


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """By name: the kind that the page gives, and the labels."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def left_out() -> set[str]:
    """The names in the last part of the page; `a_*` stands for all that begin so."""
    part = PAGE.read_text().partition("## Left out")[2]
    patterns = [re.escape(name).replace(r"\*", r"\w*") for name in re.findall(r"`([a-z_*]+)`", part)]
    return {name for name in FACTS if any(re.fullmatch(pattern, name) for pattern in patterns)}


def test_each_metric_of_the_kubelet_is_documented_or_left_out() -> None:
    told = documented().keys()
    assert FACTS.keys() - told - left_out() == set()
    assert told & left_out() == set()


def test_names_that_differ_from_the_kubelets_would_be_found() -> None:
    (right,) = read(b"".join(write_text(collect_csi(drivers_of(Histograms((1, 2))))))).values()
    wrong = Metric(right.name, right.documentation, "gauge")
    for sample in right.samples:
        wrong.add_sample(sample.name, {**sample.labels, "pod": "web"}, sample.value)
    assert len(differs(wrong.name, wrong)) == 3


def drivers_of(durations: Histograms) -> Drivers:
    drivers = Drivers()
    drivers.durations = durations
    durations.observe(("driver", "call", "OK", "false"), 1)
    return drivers


def credential_plugins() -> Plugins:
    plugins = Plugins((), NoServiceAccounts(), config_hash="sha256:00")
    plugins.metrics.errors["ecr",] += 1
    plugins.metrics.durations.observe(("ecr",), 1)
    return plugins


async def checked_records(folder: Path) -> PullRecords:
    """Of a node on which a pod has used an image that was there."""
    records = PullRecords(RecordStore(folder), VerificationPolicy(), SystemClock())

    async def none() -> PodCredentials:
        return PodCredentials()

    assert not await records.must_pull("test:1", "sha256:1", none)
    return records


def managed_node() -> ResourceManagers:
    """Of a node with all policies, where something was given and something refused."""
    given = managers(topology=SINGLE_NUMA_NODE, pod_level=True)
    given.admit(make_pod(container("main", "2", "1Gi")), NothingToGive())
    given.counts.allocation_errors["cpu", "node"] += 1
    return given


def device_measures() -> DeviceMetrics:
    metrics = DeviceMetrics()
    metrics.registrations["toy.example.com/brick",] += 1
    metrics.allocations.observe(("toy.example.com/brick",), 1)
    return metrics


def test_a_family_without_help_would_be_found() -> None:
    assert b"# HELP some_name \n" in b"".join(write_text([Family("some_name", "gauge", "")]))
