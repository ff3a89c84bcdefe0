"""What is wrong with the agent's manifests, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trikubelet.cli.failures import CommandError
from trikubelet.cli.ui.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trikubelet.cli.client import AgentClient

MOST_FILES: Final = 10
MOST_PROBLEMS: Final = 5
"""Problems of each file that are shown beside other files."""
_ENDINGS: Final = (".yaml", ".yml", ".json")


def broken_manifests(client: AgentClient) -> list[dict[str, Any]]:
    """The agent's files of manifests that have problems; none of an agent that does not tell."""
    try:
        answer: list[dict[str, Any]] = client.get("/manifests", {"problems": True})
    except CommandError:
        return []
    return answer


def problem_lines(broken: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Files that have problems, as a block below something else."""
    for manifest in broken[:MOST_FILES]:
        yield from manifest_lines(manifest, MOST_PROBLEMS)
    if (more := len(broken) - MOST_FILES) > 0:
        yield f"and {more} more manifests with problems"


def manifest_lines(manifest: Mapping[str, Any], most: int | None = None) -> Iterator[str]:
    """A file with its problems, at most so many of them."""
    problems = manifest["problems"]
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    if not problems:
        yield f"manifest {plain(manifest['file'])} has no problems" + ("" if manifest["pods"] else ", and no pods")
        return
    yield f"manifest {plain(manifest['file'])} has {count}" + _what_runs(manifest)
    for problem in problems[:most]:
        line = "" if problem["line"] is None else f"line {problem['line']}"
        yield "  " + ": ".join(plain(part) for part in (line, problem["field"], problem["message"]) if part)
    if most is not None and len(problems) > most:
        yield f"  and {len(problems) - most} more: trikubelet why {plain(manifest['file'])}"


def _what_runs(manifest: Mapping[str, Any]) -> str:
    pods = ", ".join(map(plain, manifest["pods"]))
    return f"; of its last good version {pods} runs on" if manifest["broken"] and pods else ""


def is_file_name(text: str) -> bool:
    """True if a person means a file, and no pod."""
    return text.startswith(("/", "./", "../")) or text.endswith(_ENDINGS)


def manifest_named(manifests: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The file of this name: with its path, or the name alone, or that without its ending."""
    path = str(Path.cwd() / name)
    by_path = [manifest for manifest in manifests if manifest["file"] == path]
    by_name = [manifest for manifest in manifests if name in (Path(manifest["file"]).name, Path(manifest["file"]).stem)]
    return next(iter(by_path or by_name), None)


def broken_manifest_of(client: AgentClient, name: str, namespace: str | None) -> Mapping[str, Any] | None:
    """The file with problems that a pod of this name would come from, or that is called so."""
    broken = broken_manifests(client)
    where, _, short = name.rpartition("/")
    node = node_name(client) if broken else ""
    for manifest in broken:
        if any(is_called(place, namespace or where or None, short, node) for place in manifest["names"]):
            return manifest
    return manifest_named(broken, name)


def is_called(place: str, namespace: str | None, name: str, node: str) -> bool:
    """True if a person may call a pod so: by its name, or by that without the ending that is the node's name."""
    space, _, whole = place.partition("/")
    return namespace in (None, space) and whole in (name, f"{name}-{node}")


def node_name(client: AgentClient) -> str:
    """Return the name of the agent's node; empty if the agent does not tell."""
    try:
        answer: Mapping[str, str] = client.get("/version")
    except CommandError:
        return ""
    return answer.get("node", "")
