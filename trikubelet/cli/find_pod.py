"""Which pod a person means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.cli.client import AgentClient


def find_pod(client: AgentClient, name: str, namespace: str | None) -> Pod:
    """The pod called `name`, `namespace/name`, or (when that is one pod only) `name` without its `-NODE` ending.

    Raises CommandError that lists the candidates.
    """
    from trikubelet.api import pod_from_dict

    if "/" in name and namespace is None:
        namespace, _, name = name.partition("/")
    every = [pod_from_dict(item) for item in client.get("/pods")["items"]]
    pods = [pod for pod in every if namespace in (None, pod.metadata.namespace)]
    found = [pod for pod in pods if pod.metadata.name == name] or [pod for pod in pods if _short_name(pod) == name]
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found))
        raise CommandError(f"{name} may be any of {where}: say which")
    known = ", ".join(sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in every))
    raise CommandError(f"the agent has no pod {name}: " + (f"it has {known}" if known else "it has none"))


def _short_name(pod: Pod) -> str:
    return pod.metadata.name.removesuffix(f"-{pod.spec.node_name.lower()}")
