"""`trikubelet apply`: put manifests into the agent's folder, as `kubectl apply` gives them to an API server."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from collections.abc import Iterator

URL_TIMEOUT: Final = 30.0
MOST_BYTES: Final = 2**20
"""Of one manifest, as much as the agent takes."""


@click.command(short_help="Run the pods in manifests.")
@click.option(
    "-f",
    "--filename",
    "inputs",
    multiple=True,
    required=True,
    metavar="FILE|FOLDER|URL|-",
    help="The manifests to apply.",
)
@click.option("--dry-run", is_flag=True, help="Check them, show what would change, and write nothing.")
@agent_root_dir_option
def apply(inputs: tuple[str, ...], dry_run: bool, root_dir: Path) -> int:
    """Copy manifests into the agent's folder ROOT/applied, so that it runs their pods.

    Each manifest is checked first, as `validate` does, and changes to an existing one are shown as a diff. A manifest
    replaces the one that `apply` or `run` wrote for its pods. Pods in a manifest of yours are refused. Exits 1 if a
    manifest has a problem, and leaves that one alone.
    """
    client = AgentClient(root_dir)
    failed = False
    for name, raw in read_inputs(inputs):
        failed = not apply_one(client, name, raw, dry_run=dry_run) or failed
    return 1 if failed else 0


def apply_one(client: AgentClient, name: str, raw: bytes, *, dry_run: bool, must_be_new: bool = False) -> bool:
    """Have one manifest written, and tell what came of it. Whether it could be."""
    answer: dict[str, Any] = client.put(f"/manifests/{name}", raw, {"dryRun": dry_run, "mustBeNew": must_be_new})
    if "problems" in answer:
        for problem in answer["problems"]:
            echo(problem, err=True)
        return False
    for warning in answer["warnings"]:
        echo(f"{warning} (warning)", err=True)
    before, after = answer["before"], raw.decode(errors="replace")
    word = "created" if before is None else "unchanged" if before == after else "configured"
    if word == "configured":
        for line in diff(before, after, answer["file"]):
            echo(line, fg={"+": "green", "-": "red"}.get(line[:1]))
    for pod in answer["pods"]:
        echo(f"pod/{pod} {word}" + (" (dry run)" if dry_run else ""))
    return True


def diff(before: str, after: str, file: str) -> Iterator[str]:
    """What changes in a manifest, as lines of a unified diff."""
    yield from difflib.unified_diff(before.splitlines(), after.splitlines(), file, f"{file} (new)", lineterm="")


def read_inputs(inputs: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Each manifest, with what to call its file. Raises CommandError."""
    for given in inputs:
        if given == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
            yield file_name(_first_name(raw) or "stdin"), _sized(raw, "standard input")
        elif given.startswith(("http://", "https://")):
            yield file_name(given.partition("?")[0].rstrip("/").rpartition("/")[2]), _sized(_fetch(given), given)
        else:
            for path in _files(Path(given)):
                try:
                    raw = path.read_bytes()
                except OSError as error:
                    raise CommandError(f"{path} cannot be read: {error.strerror or error}") from None
                yield file_name(path.name), _sized(raw, str(path))


def file_name(text: str) -> str:
    """A name that the agent takes for a file, as near to the text as can be."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:190] or "pod"
    return name if name.endswith((".yaml", ".yml", ".json")) else f"{name}.yaml"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_file())


def _first_name(raw: bytes) -> str:
    """The first pod's name, as far as it can be had without reading YAML: only the file is called so."""
    found = re.search(
        rb"^\s*metadata:\s*(?:\{\s*|\n(?:\s+(?!name:)\S.*\n)*\s+)name:\s*['\"]?([A-Za-z0-9.-]+)", raw, re.M
    )
    return "" if found is None else found.group(1).decode()


def _sized(raw: bytes, what: str) -> bytes:
    if len(raw) > MOST_BYTES:
        raise CommandError(f"{what} is larger than {MOST_BYTES >> 20} MiB: too large for a manifest")
    return raw


def _fetch(url: str) -> bytes:
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=URL_TIMEOUT) as response:
            content: bytes = response.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CommandError(f"{url} cannot be read: {getattr(error, 'reason', error)}") from None
    return content
