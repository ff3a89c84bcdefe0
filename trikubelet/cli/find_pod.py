"""Which pod a person means."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod
    from trikubelet.cli.client import AgentClient


MOST_NAMED: Final = 20
"""Pods that an error names."""


def find_pod(client: AgentClient, name: str, namespace: str | None) -> Pod:
    """The pod called `name`, `namespace/name`, `name` without its `-NODE` ending when that is one pod only, or by UID.

    While a pod is replaced two have its name: the one that is not being ended is meant. The other one has its UID.
    Raises CommandError that lists the candidates.
    """
    from trikubelet.api import pod_from_dict

    if "/" in name and namespace is None:
        namespace, _, name = name.partition("/")
    every = [pod_from_dict(item) for item in client.get("/pods")["items"]]
    pods = [pod for pod in every if namespace in (None, pod.metadata.namespace)]
    found = (
        [pod for pod in pods if pod.metadata.name == name]
        or [pod for pod in pods if _short_name(pod) == name]
        or [pod for pod in pods if pod.metadata.uid == name]
    )
    if len({_place(pod) for pod in found}) == 1:
        return min(found, key=lambda pod: pod.metadata.deletion_timestamp is not None)
    if found:
        where = ", ".join(sorted({_place(pod) for pod in found}))
        raise CommandError(f"{name} may be any of {where}: say which")
    raise CommandError(
        f"the agent has no pod {name}" + did_you_mean(name, {_short_name(pod): _place(pod) for pod in every})
    )


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """The end of a sentence about an unknown name: what is like it, else all that there is. `known`: each by what
    people call it for short."""
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {known[close[0]]}?"
    places = sorted(known.values())
    if len(places) > MOST_NAMED:
        return f": it has {', '.join(places[:MOST_NAMED])} and {len(places) - MOST_NAMED} more"
    return f": it has {', '.join(places)}" if places else ": it has none"


def _place(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _short_name(pod: Pod) -> str:
    return pod.metadata.name.removesuffix(f"-{pod.spec.node_name.lower()}")
