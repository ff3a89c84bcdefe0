"""`trikubelet images`: what the runtime can start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.output import print_table
from trikubelet.cli.root_dir import agent_root_dir_option


@click.group(short_help="List and import images.")
def images() -> None:
    """The images of the agent's runtime."""


@images.command("list")
@agent_root_dir_option
def list_images(root_dir: Path) -> None:
    """List the images of the agent's runtime."""
    answer = AgentClient(root_dir).get("/images")
    print_table(("IMAGE", "ID", "SIZE"), [_row(image) for image in answer])


@images.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@agent_root_dir_option
def import_images(file: Path, root_dir: Path) -> None:
    """Import an OCI or docker archive (plain or compressed) into the embedded runtime's images."""
    answer = AgentClient(root_dir).post("/images/import", {"path": str(file.resolve())})
    for reference in answer:
        click.echo(f"imported {reference}")


def _row(image: dict[str, Any]) -> tuple[str, str, str]:
    names = image.get("repo_tags") or image.get("repo_digests") or ["<none>"]
    identity = str(image.get("id", "")).removeprefix("sha256:")[:12]
    return ", ".join(names), identity, human_size(int(image.get("size") or 0))


def human_size(size: int) -> str:
    """Bytes as people read them: `512B`, `1.5MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f}{unit}" if unit == "B" else f"{amount:.1f}{unit}"
        amount /= 1024
    return f"{amount:.1f}TiB"
