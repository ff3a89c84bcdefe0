"""The documentation builds as a site without a link that leads nowhere, and its generated pages are up to date."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)|<img [^>]*src=\"([^\"]+)\"")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_site_builds_and_no_link_in_it_leads_nowhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = sorted(page.name for page in (tmp_path / "site").glob("*.html"))
    assert {"index.html", "tutorial.html", "cli.html"} <= set(pages)
    for page in (tmp_path / "site").glob("*.html"):
        # A list or a table that Markdown took for a sentence.
        assert not re.findall(r"<p>(?:[^<]|<(?!/p>))*\n(?:- |\|---)", page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_links_of_pages_outside_of_the_site_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target, anchor, picture in LINK.findall(page.read_text(encoding="utf-8")):
        linked = ROOT / (picture or target) if picture or target else page
        assert linked.exists(), f"{name}: {target or picture}"
        assert not anchor or anchor in anchors(linked), f"{name}: {target}#{anchor}"


def test_pages_that_are_written_from_the_code_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs/write_reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_picture_of_ends_has_the_figures_of_the_page() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/draw_pod_end.py"))["drawn"]()
    assert (ROOT / "docs/pod-end.svg").read_text(encoding="utf-8") == drawn, "stale: run python docs/draw_pod_end.py"
