"""`trikubelet version`."""

from __future__ import annotations

import platform
from typing import Final

import click

from trikubelet import __version__
from trikubelet.cli.output import echo, print_json, print_yaml

KUBERNETES: Final = "1.36"


@click.command(short_help="Print the version.")
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), help="For programs.")
def version(output: str | None) -> None:
    """Print the version of this program and of what it runs on."""
    facts = {
        "version": __version__,
        "kubernetes": KUBERNETES,
        "cri": "v1",
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    if output is not None:
        (print_json if output == "json" else print_yaml)(facts)
        return
    echo(f"trikubelet {__version__}")
    echo(f"Python {facts['python']} on {facts['platform']}")
    echo(f"Kubernetes {KUBERNETES} (CRI v1)")
