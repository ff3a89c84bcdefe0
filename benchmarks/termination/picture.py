"""Draws what was measured: how the latencies are distributed, and the phases of one batch on a line of time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from benchmarks.picture import INK, check_matplotlib, save
from benchmarks.termination.phases import Measurements, Phase

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.termination.phases import Batch
    from benchmarks.termination.pods import Behaviour

PANELS: Final = 3
"""In a row."""
PANEL_INCHES: Final = 4.5
CONTESTANTS: Final = ("#8c8c8c", "#1b6ca8", "#d1495b", "#e0a030")
"""The floor is grey."""
PHASES: Final = {
    Phase.FIRST_SIGNAL: ("until the first signal", "#c9d6df"),
    Phase.PROCESS_DEAD: ("until the processes are dead", "#e0a030"),
    Phase.CONTAINERS_GONE: ("until the containers are gone", "#1b6ca8"),
    Phase.SANDBOX_GONE: ("until the sandbox is gone", "#6a9fb5"),
    Phase.WORKER_FINISHED: ("until the worker has finished", "#d1495b"),
}


def draw(measured: Measurements, title: str, path: Path) -> list[Path]:
    """Write the picture as PNG and as SVG beside each other; the files. Raises NoMatplotlibError and OSError."""
    check_matplotlib()
    from matplotlib.figure import Figure

    behaviours = measured.behaviours
    contestants = measured.contestants(behaviours[0])
    columns = min(len(behaviours), PANELS)
    rows = math.ceil(len(behaviours) / PANELS)
    width = PANEL_INCHES * max(columns, len(contestants), 2)
    figure = Figure(figsize=(width, PANEL_INCHES * (rows + 1)), layout="constrained")
    figure.suptitle(title, color=INK)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(rows, 1))[:, 0]
    panels = above.subplots(rows, columns, squeeze=False).flatten()
    for axes, behaviour in zip(panels, behaviours, strict=False):
        _draw_distributions(axes, measured, behaviour)
    for axes in panels[len(behaviours) :]:
        axes.set_visible(False)
    lines = below.subplots(1, len(contestants), squeeze=False, sharex=True)[0]
    for axes, contestant in zip(lines, contestants, strict=True):
        _draw_timeline(axes, measured.of(behaviours[0], contestant)[-1], f"{contestant}: one batch, {behaviours[0]}")
    handles, labels = lines[-1].get_legend_handles_labels()
    below.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return save(figure, path)


def _draw_distributions(axes: Any, measured: Measurements, behaviour: Behaviour) -> None:
    """For each contestant: which share of the pods had lost its sandbox after so many seconds."""
    for number, contestant in enumerate(measured.contestants(behaviour)):
        seconds = measured.seconds(behaviour, contestant, Phase.SANDBOX_GONE)
        if seconds:
            axes.ecdf([1000 * value for value in seconds], label=contestant, color=CONTESTANTS[number % 4], lw=2)
    axes.set_title(f"asked to sandbox gone: {behaviour}", fontsize="medium", color=INK)
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share of the pods")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_timeline(axes: Any, batch: Batch, title: str) -> None:
    """One row a pod, in the order of their ends; what had happened before the pod was asked is left out."""
    asked = min(pod.asked for pod in batch.pods)
    pods = sorted(batch.pods, key=lambda pod: pod.moments.get(Phase.SANDBOX_GONE, 0))
    ends = [pod.asked - asked for pod in pods]
    for phase, (label, color) in PHASES.items():
        starts, widths = list(ends), []
        for row, pod in enumerate(pods):
            end = max(pod.moments.get(phase, 0) - asked, ends[row])
            widths.append(1000 * (end - ends[row]))
            ends[row] = end
        left = [1000 * start for start in starts]
        axes.barh(range(len(pods)), widths, left=left, height=0.85, color=color, label=label)
    axes.set_title(title, fontsize="medium", color=INK)
    axes.set_xlabel("milliseconds after the batch was asked")
    axes.set_ylabel("pods")
    axes.set_yticks([0, len(pods) - 1] if len(pods) > 1 else [0])
    axes.set_yticklabels(["first", "last"] if len(pods) > 1 else [pods[0].pod], fontsize="small")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
