"""The documentation's picture of a trace is what a collector gets."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_is_up_to_date() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_pod_trace.py"))["drawn"]()
    assert (DOCS / "pod-trace.svg").read_text(encoding="utf-8") == drawn, "stale: run python docs/draw_pod_trace.py"
