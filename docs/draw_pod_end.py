"""Draws `docs/pod-end.svg`: how soon a cluster sees that a pod has ended, under the Go kubelet and here.

    python docs/draw_pod_end.py

The figures are those of `docs/performance.md`, "Beside the Go kubelet". A test fails while the picture shows others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).with_name("performance.md")
PICTURE: Final = Path(__file__).with_name("pod-end.svg")
ENDS: Final = {
    "end of its process until it is seen failed": ("a container's process exits", "the cluster sees the pod failed"),
    "deletion of a running pod until it is gone": ("a running pod is deleted", "its object is gone"),
}
"""The rows that are drawn, with what happens at their beginning and at their end."""

WIDTH, LEFT, RIGHT, TOP, LANE, GROUP = 840, 110, 110, 66, 34, 112
STYLE: Final = """\
text { font: 13px system-ui, Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.small { font-size: 11px; fill: #6e7781 }
.figure { font-weight: 600 }
.grid { stroke: #d0d7de }
.kubelet { fill: #8c959f; stroke: #8c959f }
.trikubelet { fill: #1a7f5a; stroke: #1a7f5a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .grid { stroke: #3d444d }
  .trikubelet { fill: #3fb68b; stroke: #3fb68b }
}"""


def figures() -> dict[str, list[tuple[int, int]]]:
    """Milliseconds of the rows, median and slowest: of the kubelet, then of trikubelet."""
    table = PAGE.read_text(encoding="utf-8").partition("## Beside the Go kubelet")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d.*) \|$", table, re.MULTILINE))
    return {name: [(int(p50), int(most)) for p50, most in re.findall(r"(\d+) \((\d+)\)", rows[name])] for name in ENDS}


def drawn() -> str:
    """The picture."""
    found = figures()
    longest = max(most for pair in found.values() for _, most in pair)
    scale = (WIDTH - LEFT - RIGHT) / longest
    height = TOP + GROUP * len(found) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{STYLE}</style>",
        '<text x="12" y="24" class="title">How soon a cluster sees that a pod has ended</text>',
        '<text x="12" y="42" class="small">median, and the slowest of 30 rounds; the same node, '
        "containerd and API server</text>",
    ]
    for number in range(int(longest / 500) + 1):
        x = LEFT + number * 500 * scale
        lines.append(f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="{TOP}" y2="{height - 22}"/>')
        lines.append(f'<text class="small" x="{x:.0f}" y="{height - 8}" text-anchor="middle">{number / 2:.1f} s</text>')
    for number, (name, (begin, end)) in enumerate(ENDS.items()):
        top = TOP + GROUP * number
        lines.append(f'<text x="{LEFT}" y="{top + 16}">{begin} → {end}</text>')
        for lane, (who, (median, slowest)) in enumerate(zip(("kubelet", "trikubelet"), found[name], strict=True)):
            lines += _lane(top + 26 + LANE * lane, who, median, slowest, scale)
    return "\n".join([*lines, "</svg>", ""])


def _lane(top: int, who: str, median: int, slowest: int, scale: float) -> list[str]:
    end, most = LEFT + median * scale, LEFT + slowest * scale
    name = "Go kubelet" if who == "kubelet" else who
    return [
        f'<text x="{LEFT - 10}" y="{top + 17}" text-anchor="end">{name}</text>',
        f'<rect class="{who}" x="{LEFT}" y="{top + 3}" width="{end - LEFT:.1f}" height="18" rx="3"/>',
        f'<line class="{who}" x1="{end:.1f}" x2="{most:.1f}" y1="{top + 12}" y2="{top + 12}" stroke-width="2"/>',
        f'<text class="figure" x="{most + 8:.1f}" y="{top + 17}">{median} ms</text>',
    ]


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
