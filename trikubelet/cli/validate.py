"""`trikubelet validate`: would the agent run these manifests?"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trikubelet.cli.output import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.sources.manifests import Manifest


STDIN: Final = Path("-")


@click.command(short_help="Check manifests.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--node-name", help="The node that the manifests are for.  [default: the host's name]")
def validate(files: tuple[Path, ...], node_name: str | None) -> int:
    """Check manifest files, or folders of them, as the agent would read them; - is stdin.

    Prints every problem as FILE:LINE: FIELD: MESSAGE, and exits 1 when there is one.
    """
    from trikubelet.cli.run import check_node_name
    from trikubelet.sources.manifests import display_path, read_manifest

    node = check_node_name(node_name)
    owners: dict[str, Path] = {}
    failed = False
    for file in _manifest_files(files):
        manifest = _from_stdin(node) if file == STDIN else read_manifest(file, node)
        problems = [str(problem) for problem in manifest.problems] + _taken(manifest, file, owners)
        for warning in [*map(str, manifest.warnings), *_unmapped(manifest, file)]:
            echo(f"{warning} (warning)", err=True)
        for problem in problems:
            echo(problem)
        if not problems:
            names = ", ".join(f"{entry.pod.metadata.namespace}/{entry.pod.metadata.name}" for entry in manifest.pods)
            echo(f"{display_path(file)}: ok: {names}")
        failed = failed or bool(problems)
    return 1 if failed else 0


def _unmapped(manifest: Manifest, file: Path) -> Iterator[str]:
    """Host ports that would lead nowhere on this machine. Its network is looked at only when a pod has some."""
    from trikubelet.container.host_ports import explain, mapped_ports
    from trikubelet.sources.manifests import display_path

    found = [(entry, path, port) for entry in manifest.pods for path, port in mapped_ports(entry.pod)]
    if found and _is_on_machines_network():
        for entry, path, port in found:
            yield f"{display_path(file)}:{entry.line}: {path}: {explain(port)}"


@functools.cache
def _is_on_machines_network() -> bool:
    """Whether pods of the embedded runtime share the machine's network here."""
    from trikubelet.cli.machine_checks import Machine
    from trikubelet.cli.network_checks import chosen_network
    from trikubelet.cli.root_dir import default_root_dir
    from trikubelet.embedded.network.choice import HOST

    return chosen_network(default_root_dir(), Machine()).way == HOST


def _from_stdin(node: str) -> Manifest:
    from trikubelet.sources.manifests import parse_manifest

    return parse_manifest(sys.stdin.buffer.read(), Path("stdin"), node)


def _manifest_files(files: tuple[Path, ...]) -> list[Path]:
    """Folders stand for their files, in the agent's order and without hidden ones."""
    listed: list[Path] = []
    for file in files:
        if file == STDIN:
            listed.append(file)
            continue
        try:
            entries = sorted(file.iterdir())
        except OSError:
            # A file, or something that reading it will give the reason for.
            listed.append(file)
        else:
            listed.extend(entry for entry in entries if not entry.name.startswith("."))
    return listed


def _taken(manifest: Manifest, file: Path, owners: dict[str, Path]) -> list[str]:
    """Pods whose name an earlier file has."""
    from trikubelet.sources.manifests import display_path

    problems = []
    for entry in manifest.pods:
        name = entry.pod.full_name
        owner = owners.setdefault(name, file)
        if owner != file:
            problems.append(
                f"{display_path(file)}:{entry.line}: metadata: the pod {name} is taken by {display_path(owner)}"
            )
    return problems
