"""`trikubelet run IMAGE`: a pod of one container, by a manifest that the agent writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trikubelet.cli.apply import apply_one
from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run_pod(root_dir: Path, image: str, command: Sequence[str], wanted: Mapping[str, Any]) -> int:
    """Have the agent run the image; the exit code. `wanted`: the options for pods by name. Raises CommandError."""
    import yaml

    manifest = pod_manifest(image, command, wanted)
    raw = yaml.safe_dump(manifest, sort_keys=False).encode()
    name = manifest["metadata"]["name"]
    flags = {"dry_run": wanted["dry_run"], "must_be_new": not wanted["replace"]}
    return 0 if apply_one(AgentClient(root_dir), f"{name}.yaml", raw, **flags) else 1


def pod_manifest(image: str, command: Sequence[str], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as a manifest. Raises CommandError."""
    container: dict[str, Any] = {"name": "main", "image": image}
    if command:
        container["command"] = list(command)
    if variables := [_variable(text) for text in wanted["env"]]:
        container["env"] = variables
    metadata = {"name": wanted["name"] or pod_name(image)}
    if wanted["namespace"]:
        metadata["namespace"] = wanted["namespace"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "restartPolicy": wanted["restart"]},
    }


def pod_name(image: str) -> str:
    """A pod's name from the last part of an image's: `docker.io/library/nginx:1.27` is `nginx`. Raises CommandError."""
    last = image.partition("@")[0].rpartition("/")[2].partition(":")[0].lower()
    name = re.sub(r"[^a-z0-9-]+", "-", last).strip("-")[:200]
    if not name:
        raise CommandError(f"the image {image!r} gives no name for its pod: give one with --name")
    return name


def _variable(text: str) -> dict[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise CommandError(f"expected NAME=VALUE after --env, got {text!r}")
    return {"name": name, "value": value}
