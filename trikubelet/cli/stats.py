"""`trikubelet stats`: the kubelet's summary, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.output import column_widths, echo, format_row, print_json, print_table
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.cli.top import summary_with_rates
from trikubelet.cli.usage_rows import UNKNOWN, Usage, cores, percent
from trikubelet.embedded.registry.progress import human_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POD_HEADER = ("NAMESPACE", "NAME", "CPU", "MEMORY", "SWAP", "DISK", "RECEIVED", "SENT", "PROCESSES")
_VOLUME_HEADER = ("NAMESPACE", "POD", "VOLUME", "USED", "CAPACITY", "INODES")


@click.command(short_help="Show the statistics of node and pods.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="The summary as the kubelet's JSON.")
@agent_root_dir_option
def stats(output: str | None, root_dir: Path) -> None:
    """Show all that is measured of the node, its pods and volumes (`/stats/summary`)."""
    summary = summary_with_rates(AgentClient(root_dir), only_cpu_and_memory=False)
    if output == "json":
        print_json(summary)
        return
    facts = list(node_facts(summary["node"]))
    widths = column_widths(facts[0], facts)
    for fact in facts:
        echo(format_row(fact, widths))
    pods = sorted(summary["pods"], key=_name)
    if pods:
        echo()
        print_table(_POD_HEADER, [pod_row(pod) for pod in pods])
    volumes = [row for pod in pods for row in volume_rows(pod)]
    if volumes:
        echo()
        print_table(_VOLUME_HEADER, volumes)


def node_facts(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is known of a node, line by line."""
    usage, memory = Usage.of(node), node.get("memory", {})
    yield "Node:", node["nodeName"]
    if node.get("startTime"):
        yield "Booted:", node["startTime"]
    yield "CPU:", cores(usage.cpu)
    yield "Memory:", _of(usage.memory, memory.get("availableBytes"))
    swap = node.get("swap", {})
    if swap.get("swapUsageBytes") or swap.get("swapAvailableBytes"):
        yield "Swap:", _of(swap.get("swapUsageBytes"), swap.get("swapAvailableBytes"))
    runtime = node.get("runtime", {})
    for title, place in (
        ("Disk:", node.get("fs")),
        ("Images:", runtime.get("imageFs")),
        ("Containers:", runtime.get("containerFs")),
    ):
        if place:
            yield title, _disk(place)
    if network := node.get("network"):
        name = f" ({network['name']})" if network.get("name") else ""
        yield "Network:", f"{_size(network.get('rxBytes'))} received, {_size(network.get('txBytes'))} sent{name}"
    if rlimit := node.get("rlimit"):
        yield "Tasks:", f"{rlimit.get('curproc', UNKNOWN)} of {rlimit.get('maxpid', UNKNOWN)}"
    pressures = [f"{kind} {pressure}" for kind in ("cpu", "memory", "io") if (pressure := _pressure(node.get(kind)))]
    if pressures:
        yield "Pressure:", ", ".join(pressures) + " (some, last 10 s)"
    for group in node.get("systemContainers", []):
        cpu, bytes_ = Usage.of(group).cpu, Usage.of(group).memory
        yield f"Group {group['name']}:", f"{cores(cpu)}, {_size(bytes_)}"


def pod_row(pod: dict[str, Any]) -> tuple[str, ...]:
    usage, network = Usage.of(pod), pod.get("network", {})
    return (
        *_name(pod),
        cores(usage.cpu),
        _size(usage.memory),
        _size(pod.get("swap", {}).get("swapUsageBytes")),
        _size(pod.get("ephemeral-storage", {}).get("usedBytes")),
        _size(network.get("rxBytes")),
        _size(network.get("txBytes")),
        str(pod.get("process_stats", {}).get("process_count", UNKNOWN)),
    )


def volume_rows(pod: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for volume in pod.get("volume", []):
        inodes = volume.get("inodesUsed", UNKNOWN)
        yield (
            *_name(pod),
            volume["name"],
            _size(volume.get("usedBytes")),
            _size(volume.get("capacityBytes")),
            str(inodes),
        )


def _name(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["podRef"]["namespace"], pod["podRef"]["name"]


def _size(amount: int | None) -> str:
    return UNKNOWN if amount is None else human_size(amount)


def _of(used: int | None, available: int | None) -> str:
    if used is None or available is None:
        return _size(used)
    return f"{_size(used)} of {_size(used + available)} ({percent(used, used + available)})"


def _disk(place: dict[str, Any]) -> str:
    available, capacity = place.get("availableBytes"), place.get("capacityBytes")
    return f"{_size(place.get('usedBytes'))} used, {_size(available)} of {_size(capacity)} free"


def _pressure(measured: dict[str, Any] | None) -> str:
    psi = (measured or {}).get("psi")
    return f"{psi['some']['avg10']:.1f}%" if psi else ""
