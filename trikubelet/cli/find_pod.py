"""Which pod a person means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trikubelet.cli.failures import CommandError
from trikubelet.cli.manifest_problems import MOST_PROBLEMS, broken_manifest_of, manifest_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod
    from trikubelet.cli.client import AgentClient


Item: TypeAlias = Mapping[str, Any]
"""A pod as JSON."""

MOST_NAMED: Final = 20
"""Pods that an error names."""


def find_pod(client: AgentClient, name: str, namespace: str | None) -> Pod:
    """The agent's pod of this name, as `find_item` understands it. Raises CommandError that lists the candidates."""
    return pod_among(client, client.get("/pods")["items"], name, namespace)


def pod_among(client: AgentClient, items: list[Item], name: str, namespace: str | None) -> Pod:
    """The pod of this name, as `find_item` understands it. Raises CommandError that lists the candidates."""
    from trikubelet.api import pod_from_dict

    found = find_item(items, name, namespace)
    if found is not None:
        return pod_from_dict(found)
    refuse_broken_manifest(client, name, namespace)
    name = name.rpartition("/")[2]
    known = {short_name(item): _place(item) for item in items}
    raise CommandError(f"the agent has no pod {name}" + did_you_mean(name, known))


def refuse_broken_manifest(client: AgentClient, name: str, namespace: str | None) -> None:
    """Raise CommandError if a manifest with problems is why there is no pod of this name."""
    manifest = broken_manifest_of(client, name, namespace)
    if manifest is not None:
        raise CommandError(f"the agent has no pod {name}: " + "\n".join(manifest_lines(manifest, MOST_PROBLEMS)))


def find_item(items: Iterable[Item], name: str, namespace: str | None) -> Item | None:
    """The pod called `name`, `namespace/name`, `name` without its `-NODE` ending when that is one pod only, or by UID.

    While a pod is replaced two have its name: the one that is not being ended is meant. The other one has its UID.
    Raises CommandError when it may be any of several pods.
    """
    if "/" in name and namespace is None:
        namespace, _, name = name.partition("/")
    among = [item for item in items if namespace in (None, item["metadata"]["namespace"])]
    found = (
        [item for item in among if item["metadata"]["name"] == name]
        or [item for item in among if short_name(item) == name]
        or [item for item in among if item["metadata"]["uid"] == name]
    )
    places = sorted({_place(item) for item in found})
    if len(places) > 1:
        raise CommandError(f"{name} may be any of {', '.join(places)}: say which")
    return min(found, key=lambda item: "deletionTimestamp" in item["metadata"], default=None)


def short_name(item: Item) -> str:
    """The name of a pod without the ending that is the node's name."""
    name: str = item["metadata"]["name"]
    return name.removesuffix(f"-{item['spec'].get('nodeName', '').lower()}")


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """The end of a sentence about an unknown name: what is like it, else all that there is. `known`: each by what
    people call it for short."""
    from difflib import get_close_matches

    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {known[close[0]]}?"
    places = sorted(known.values())
    if len(places) > MOST_NAMED:
        return f": it has {', '.join(places[:MOST_NAMED])} and {len(places) - MOST_NAMED} more"
    return f": it has {', '.join(places)}" if places else ": it has none"


def _place(item: Item) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"
