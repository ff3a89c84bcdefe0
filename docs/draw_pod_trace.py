"""Draws `docs/pod-trace.svg`: the trace of one pod's life, from what a collector of traces was sent.

    python docs/draw_pod_trace.py

The agent is the real one, on a simulated runtime whose calls take about as long as those of a real one,
and on a clock that jumps: so the same picture comes out each time, and a test fails while the committed one is another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

import trio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.agent.sim_node import static_pod
from tests.tracing.collector import Collected, Collector, walk
from trikubelet.agent.tracing import Tracing
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import run_deterministically, simulated_node

if TYPE_CHECKING:
    from collections.abc import Sequence

PICTURE: Final = Path(__file__).with_name("pod-trace.svg")
UID: Final = "6f0c1d52-7c1e-4f5e-9a53-0d4b7c2e8a11"
READINESS: Final = {"exec": {"command": ["/ready"]}, "periodSeconds": 1}
SPEC: Final = {
    "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
    "containers": [
        {
            "name": "web",
            "image": "web:1",
            "imagePullPolicy": "Always",
            "readinessProbe": READINESS,
            "lifecycle": {"preStop": {"exec": {"command": ["/drain"]}}},
        }
    ],
}
DELAYS: Final = {
    "RunPodSandbox": 0.13,
    "CreateContainer": 0.03,
    "StartContainer": 0.06,
    "PullImage": 0.25,
    "ExecSync": 0.05,
    "StopContainer": 0.15,
    "StopPodSandbox": 0.06,
}

WIDTH, LABELS, ROW, TOP, GAP, RIGHT = 1180, 270, 20, 64, 50, 60
COLOURS: Final = {
    "trikubelet/pods": "#33658a",
    "k8s.io/kubernetes/pkg/kubelet": "#2a9d8f",
    "trikubelet/grpc": "#e09f3e",
    "trikubelet/volumes": "#9c89b8",
}
MEANINGS: Final = ("a pod's life", "the kubelet's spans", "calls of the runtime", "volumes")


async def live() -> Collector:
    """A pod is seen, gets ready, is deleted, and is gone."""
    collector, sim = Collector(), SimulatedRuntime(seed=4)
    sim.delays.update(DELAYS)
    async with collector.served() as channel:
        tracing = Tracing.make(channel, node="node1", per_million=1_000_000, clock=sim.clock)
        async with tracing.exporter.running(), simulated_node(sim, tracing=tracing) as node:
            node.source().put(pod := static_pod("web", uid=UID, **SPEC))
            await trio.sleep(20)
            node.source().remove(pod)
            await trio.sleep(10)
    return collector


def draw(collector: Collector) -> str:
    """The trace as an SVG: a row for each span, and two stretches of time, with what lies between left out."""
    start, end = collector.only("podStart"), collector.only("podEnd")
    rows = [one for one in walk(collector, start) if one[1].trace == start.trace]
    first, second = start.ended - start.began, end.ended - end.began
    scale = (WIDTH - LABELS - GAP - RIGHT) / (first + second)
    break_at = LABELS + first * scale

    def x(span: Collected, at: float) -> float:
        if span.began >= end.began:
            return break_at + GAP + (at - end.began) * scale
        return LABELS + (at - start.began) * scale

    height = TOP + ROW * len(rows) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold">The trace of a pod: {start.trace}</text>',
        *_legend(),
    ]
    lines += _seconds(LABELS, first, scale, height, "since the pod was first seen")
    lines += _seconds(break_at + GAP, second, scale, height, "since its end was asked for")
    middle = break_at + GAP / 2
    lines.append(f'<text x="{middle:.1f}" y="58" text-anchor="middle" fill="#888888">⋯</text>')
    for number, (depth, span) in enumerate(rows):
        lines += _row(TOP + ROW * number, depth, span, x(span, span.began), x(span, span.ended))
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> Sequence[str]:
    lines, left = [], 560
    for colour, meaning in zip(COLOURS.values(), MEANINGS, strict=True):
        lines.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{left + 17}" y="22">{meaning}</text>')
        left += 155
    return lines


def _seconds(left: float, seconds: float, scale: float, height: int, text: str) -> Sequence[str]:
    """A stretch of time with a line for each tenth of a second, or half, whichever has room."""
    step = 0.1 if 0.1 * scale >= 50 else 0.5
    lines = [f'<text x="{left:.1f}" y="42" fill="#555555">{text}</text>']
    for number in range(int(seconds / step) + 1):
        at = left + number * step * scale
        lines.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 4}" y2="{height - 12}" stroke="#dddddd"/>')
        lines.append(f'<text x="{at + 2:.1f}" y="{TOP - 6}" fill="#888888" font-size="10">{number * step:.1f} s</text>')
    return lines


def _row(top: int, depth: int, span: Collected, left: float, right: float) -> Sequence[str]:
    name = span.name.removeprefix("runtime.v1.")
    took = (span.ended - span.began) * 1000
    width = max(right - left, 1.5)
    duration = f"{took:.0f} ms"
    beside = right + 4 if right + 60 < WIDTH else left - 4
    anchor = "start" if beside > right else "end"
    return [
        f'<text x="{12 + 14 * depth}" y="{top + 13}">{escape(name)}</text>',
        f'<rect x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{ROW - 7}" rx="2" '
        f'fill="{COLOURS[span.scope]}"/>',
        f'<text x="{beside:.1f}" y="{top + 13}" font-size="10" fill="#555555" text-anchor="{anchor}">{duration}</text>',
    ]


def drawn() -> str:
    return draw(run_deterministically(live, seed=4))


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
