"""Families about the node and the agent's process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from trikubelet import __version__
from trikubelet.config.feature_gates import gate_values
from trikubelet.supervision import faults
from trikubelet.telemetry.families import COUNTER, TOTAL, counter, gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.registry import Collector

    from trikubelet.api import NodeSystemInfo
    from trikubelet.node.shutdown.record import ShutdownTimes
    from trikubelet.node.startup import NodeStartup
    from trikubelet.telemetry.families import AnyFamily, Collect


def process_collectors() -> tuple[Collect, ...]:
    """The library's own: CPU, memory, descriptors and start of this process, and which Python it is."""
    return _ours(ProcessCollector(registry=None)), _ours(PlatformCollector(registry=None))


def process_start() -> Iterator[AnyFamily]:
    """The one of them that the kubelet has on each of its pages."""
    families = _ours(ProcessCollector(registry=None))()
    return (family for family in families if family.name == "process_start_time_seconds")


def collect_node(name: str, info: NodeSystemInfo, *, cgroup_v2: bool) -> Iterator[AnyFamily]:
    """`info`: what the node reports of itself."""
    yield gauge("kubelet_node_name", "The name of this node.", {(name,): 1}, ("node",))
    yield gauge("kubelet_cgroup_version", "The version of cgroups that this machine has.", 2 if cgroup_v2 else 1)
    yield gauge("kubelet_metrics_provider", "Who tells what containers use.", {("cri",): 1}, ("provider",))
    version = info.kubelet_version
    major, minor = [*version.removeprefix("v").split("."), "", ""][:2]
    labels = ("git_version", "major", "minor", "platform")
    build = {(version, major, minor, f"{info.operating_system}/{info.architecture}"): 1}
    text = "The version of Kubernetes whose kubelet this agent behaves like."
    yield gauge("kubernetes_build_info", text, build, labels)
    yield gauge("trikubelet_build_info", "The agent's own version.", {(__version__,): 1}, ("version",))
    tasks = trio.lowlevel.current_statistics().tasks_living
    yield gauge("trikubelet_tasks", "Tasks of the agent's event loop.", tasks)
    text = "Tasks of this process that failed unexpectedly, by their function."
    yield counter("trikubelet_task_faults_total", text, faults, ("task",))


def collect_gates(gates: Mapping[str, bool]) -> Iterator[AnyFamily]:
    """Every gate that a kubelet knows. `gates`: those that the configuration sets."""
    values = {(gate.name, gate.stage.value): int(enabled) for gate, enabled in gate_values(gates).items()}
    yield gauge("kubernetes_feature_enabled", "Whether a feature gate is on.", values, ("name", "stage"))


def collect_shutdown(times: ShutdownTimes) -> Iterator[AnyFamily]:
    """Of the last shutdown, also one before the machine was started anew."""
    began, ended = (0 if time is None else int(time.timestamp()) for time in (times.began, times.ended))
    text = "When the last graceful shutdown of the node began, in seconds since 1970; 0 where there was none."
    yield gauge("kubelet_graceful_shutdown_start_time_seconds", text, began)
    text = "When the last graceful shutdown of the node ended, in seconds since 1970; 0 while it goes on."
    yield gauge("kubelet_graceful_shutdown_end_time_seconds", text, ended)


def collect_startup(startup: NodeStartup, boot: Callable[[], BootTimes | None]) -> Iterator[AnyFamily]:
    """How a new node came to be; nothing of one that was there before."""
    times = boot()
    if startup.attempted_at is None or startup.created_at is None or times is None:
        return
    attempted, created = startup.attempted_at.timestamp(), startup.created_at.timestamp()
    text = "From the machine's start to the agent's, on a new node."
    yield gauge("kubelet_node_startup_pre_kubelet_duration_seconds", text, times.agent - times.machine)
    text = "From the agent's start to its first attempt to register a new node."
    yield gauge("kubelet_node_startup_pre_registration_duration_seconds", text, attempted - times.agent)
    text = "From the first attempt to register a new node to success."
    yield gauge("kubelet_node_startup_registration_duration_seconds", text, created - attempted)
    if startup.ready_at is None:
        return
    ready = startup.ready_at.timestamp()
    text = "From when a new node was registered to when it was ready."
    yield gauge("kubelet_node_startup_post_registration_duration_seconds", text, ready - created)
    text = "From the machine's start to when a new node was ready."
    yield gauge("kubelet_node_startup_duration_seconds", text, ready - times.machine)


def _ours(collector: Collector) -> Collect:
    """A collector of the library that has counters and gauges."""

    def collect() -> Iterator[AnyFamily]:
        for metric in collector.collect():
            names = tuple(metric.samples[0].labels) if metric.samples else ()
            values = {tuple(sample.labels.values()): sample.value for sample in metric.samples}
            if metric.type == COUNTER:
                yield counter(f"{metric.name}{TOTAL}", metric.documentation, values, names)
            else:
                yield gauge(metric.name, metric.documentation, values, names)

    return collect


class BootTimes:
    """When the machine and this process began, in seconds since 1970."""

    def __init__(self, machine: float, agent: float) -> None:
        self.machine, self.agent = machine, agent


def boot_times(proc: Path = Path("/proc")) -> BootTimes | None:
    """None where the kernel does not tell."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        machine = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
        # The name of the program, in brackets, may hold anything.
        ticks = int((proc / "self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return BootTimes(machine, machine + ticks / os.sysconf("SC_CLK_TCK"))
