from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_about_the_pod_worker_is_what_the_tables_give() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_pod_worker.py"))["draw"]()
    assert (DOCS / "pod-worker.md").read_text(encoding="utf-8") == drawn, "stale: run python docs/draw_pod_worker.py"
