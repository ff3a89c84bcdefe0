"""The documentation builds as a site without a link that leads nowhere, and its generated pages are up to date."""

from __future__ import annotations

import os
import re
import runpy
import shutil
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


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


def test_the_site_builds_and_no_link_in_it_leads_nowhere(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = sorted(page.name for page in (tmp_path / "site").glob("*.html"))
    assert {"index.html", "tutorial.html", "cli.html"} <= set(pages)
    for page in (tmp_path / "site").glob("*.html"):
        # A list or a table that Markdown took for a sentence.
        assert not re.findall(r"<p>(?:[^<]|<(?!/p>))*\n(?:- |\|---)", page.read_text(encoding="utf-8")), page.name


def test_links_that_lead_nowhere_are_noticed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for outside in ("trikubelet", "CHANGELOG.md"):
        (tmp_path / outside).symlink_to(ROOT / outside)
    assert build(tmp_path, tmp_path / "site").returncode == 0
    nowhere = ("gone.md", "pods.md#nowhere", "../trikubelet/gone.py")
    with (tmp_path / "docs/edge.md").open("a") as page:
        page.writelines(f"\n[x]({link})\n" for link in nowhere)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert [link for link in nowhere if any(link in line for line in told)] == [*nowhere], done.stderr
    assert len(told) == len(nowhere), done.stderr


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
