"""`trikubelet version`."""

from __future__ import annotations

import platform

import click

from trikubelet import __version__


@click.command(short_help="Print the version.")
def version() -> None:
    """Print the version of this program and of what it runs on."""
    click.echo(f"trikubelet {__version__}")
    click.echo(f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}")
    click.echo("Kubernetes 1.36 (CRI v1)")
