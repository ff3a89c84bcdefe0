"""What `/stats/summary` says, as rows of kubectl's tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UNKNOWN: Final = "<unknown>"
SortKey = Literal["cpu", "memory"]
_MILLI: Final = 1_000_000
_MEBI: Final = 2**20


@frozen
class Usage:
    """`cpu` in billionths of a core, `memory` in bytes (the working set); None when unknown."""

    cpu: int | None = None
    memory: int | None = None

    @classmethod
    def of(cls, stats: dict[str, Any]) -> Usage:
        """Of a node, a pod or a container."""
        return cls(stats.get("cpu", {}).get("usageNanoCores"), stats.get("memory", {}).get("workingSetBytes"))

    def cells(self) -> tuple[str, str]:
        return cores(self.cpu), mebibytes(self.memory)


@frozen
class Line:
    """What one pod or container uses; `container` is "" for the whole pod."""

    namespace: str
    pod: str
    container: str
    usage: Usage


def pod_lines(summary: dict[str, Any], *, containers: bool) -> Iterator[Line]:
    """A line for each pod, or for each container. As in kubectl a pod uses what its containers do."""
    for pod in summary["pods"]:
        name = pod["podRef"]["namespace"], pod["podRef"]["name"]
        usages = [(container["name"], Usage.of(container)) for container in pod.get("containers", [])]
        if containers:
            yield from (Line(*name, container, usage) for container, usage in usages)
        else:
            yield Line(*name, "", total(usage for _, usage in usages) if usages else Usage.of(pod))


def total(usages: Iterable[Usage]) -> Usage:
    """The sum of what is known."""
    every = list(usages)
    cpu = [usage.cpu for usage in every if usage.cpu is not None]
    memory = [usage.memory for usage in every if usage.memory is not None]
    return Usage(sum(cpu) if cpu else None, sum(memory) if memory else None)


def sorted_lines(lines: Iterable[Line], key: SortKey | None) -> list[Line]:
    """By name, or by usage with the highest first."""
    by_name = sorted(lines, key=lambda line: (line.namespace, line.pod, line.container))
    if key is None:
        return by_name
    return sorted(by_name, key=lambda line: -(getattr(line.usage, key) or 0))


def pods_table(
    summary: dict[str, Any], *, containers: bool, sort_by: SortKey | None, sum_up: bool, wanted: Sequence[str] | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows. `wanted`: namespace and name of the one pod to show."""
    lines = sorted_lines(pod_lines(summary, containers=containers), sort_by)
    if wanted is not None:
        lines = [line for line in lines if (line.namespace, line.pod) == tuple(wanted)]
    names = ("NAMESPACE", "POD", "NAME") if containers else ("NAMESPACE", "NAME")
    rows = [
        ((line.namespace, line.pod, line.container) if containers else (line.namespace, line.pod)) + line.usage.cells()
        for line in lines
    ]
    if sum_up and rows:
        rows.append(("",) * len(names) + ("________", "________"))
        rows.append(("",) * len(names) + total(line.usage for line in lines).cells())
    return (*names, "CPU(cores)", "MEMORY(bytes)"), rows


def node_table(summary: dict[str, Any], processors: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and the one row. `processors`: of the machine, whose memory the summary knows."""
    node = summary["node"]
    usage = Usage.of(node)
    available = node.get("memory", {}).get("availableBytes")
    memory = None if available is None or usage.memory is None else available + usage.memory
    cpu, bytes_ = usage.cells()
    cells = (node["nodeName"], cpu, percent(usage.cpu, processors * 10**9), bytes_, percent(usage.memory, memory))
    return ("NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"), [cells]


def rates_are_missing(summary: dict[str, Any]) -> bool:
    """Whether something that runs has no rate yet: they need two samples, and this may be the first."""
    measured = [summary["node"], *(container for pod in summary["pods"] for container in pod.get("containers", []))]
    return any("cpu" in stats and "usageNanoCores" not in stats["cpu"] for stats in measured)


def cores(nano: int | None) -> str:
    """Thousandths of a core, rounded up as kubectl does."""
    return UNKNOWN if nano is None else f"{-(-nano // _MILLI)}m"


def mebibytes(amount: int | None) -> str:
    return UNKNOWN if amount is None else f"{amount // _MEBI}Mi"


def percent(part: int | None, whole: int | None) -> str:
    return UNKNOWN if part is None or not whole else f"{100 * part // whole}%"
