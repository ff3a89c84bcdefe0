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

from tests.docs.blocks import FENCE, PAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)|<img [^>]*src=\"([^\"]+)\"")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


@pytest.mark.night
def test_the_site_builds_and_no_link_in_it_leads_nowhere(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = sorted(page.name for page in (tmp_path / "site").glob("*.html"))
    assert {"index.html", "tutorial.html", "cli.html"} <= set(pages)
    for page in (tmp_path / "site").glob("*.html"):
        # A list or a table that Markdown took for a sentence.
        assert not re.findall(r"<p>(?:[^<]|<(?!/p>))*\n(?:- |\|---)", page.read_text(encoding="utf-8")), page.name


TINY = """
INHERIT: {root}/mkdocs.yml
hooks: [docs/site_hooks.py]
theme: {{name: mkdocs}}
plugins: []
nav: [README.md, pods.md]
"""
"""Of pages that say little, without what makes a site beautiful."""


def test_links_that_lead_nowhere_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "mkdocs.yml").write_text(TINY.format(root=ROOT))
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/site_hooks.py", tmp_path / "docs")
    (tmp_path / "trikubelet").symlink_to(ROOT / "trikubelet")
    nowhere = ("gone.md", "pods.md#nowhere", "../trikubelet/gone.py")
    somewhere = ("pods.md", "pods.md#some-where", "../trikubelet/clock.py")
    (tmp_path / "docs/README.md").write_text("\n\n".join(f"[x]({link})" for link in (*nowhere, *somewhere)))
    (tmp_path / "docs/pods.md").write_text("# Pods\n\n## Some where\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert [link for link in nowhere if any(link in line for line in told)] == [*nowhere], done.stderr
    assert len(told) == len(nowhere), done.stderr


def test_links_of_all_pages_lead_somewhere() -> None:
    """The site's own look for them is for nights."""
    wrong = []
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        text = INLINE.sub("", FENCE.sub("\n", page.read_text(encoding="utf-8")))
        for target, anchor, picture in LINK.findall(text):
            linked = page.parent / (picture or target) if picture or target else page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                wrong.append(f"{page.name}: {picture or target}#{anchor}")
    assert wrong == []


def test_every_page_is_in_the_sites_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = re.findall(r"[\w-]+\.md$", menu, re.MULTILINE)
    assert sorted(pages) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_pages_that_are_written_from_the_code_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs/write_reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_picture_of_ends_has_the_figures_of_the_page() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/draw_pod_end.py"))["drawn"]()
    assert (ROOT / "docs/pod-end.svg").read_text(encoding="utf-8") == drawn, "stale: run python docs/draw_pod_end.py"
