"""Fifty ways in which a file in the manifest folder is no manifest."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "broken"},
    "spec": {"containers": [{"name": "main", "image": "localhost/host", "command": ["sh"]}]},
}
HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: broken}\n"
CONTAINER = "containers: [{name: main, image: a}]"


def _with(path: str, value: object) -> str:
    """The good manifest with one field replaced; a number in the path is an index."""
    pod = json.loads(json.dumps(GOOD))
    *parents, last = path.split("/")
    node = pod
    for part in parents:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    node[last] = value
    return json.dumps(pod)


def _container(**fields: object) -> str:
    return _with("spec/containers", [{"name": "main", "image": "a", **fields}])


TEXTS: dict[str, str | bytes] = {
    # Not YAML, or not what YAML is for
    "empty": "",
    "only-comment": "# nothing\n",
    "truncated.json": json.dumps(GOOD)[:60],
    "truncated.yaml": HEAD + "spec:\n  containers:\n  - name: main\n    image: 'a",
    "tabs": "apiVersion: v1\n\tkind: Pod\n",
    "binary": bytes(range(256)) * 8,
    "zeros": b"\0" * 4096,
    "latin-1": HEAD.encode() + b"# caf\xe9 \xff\n",
    "elf": b"\x7fELF\x02\x01\x01" + b"\0" * 200,
    "unclosed-list": HEAD + "spec: {containers: [\n",
    "alias-without-anchor": HEAD + "spec: *nowhere\n",
    "cycle": HEAD + "spec: &spec\n  containers: [{name: main, image: a}]\n  nodeSelector: *spec\n",
    "cycle-in-list": HEAD + "spec: {containers: &list [*list]}\n",
    "billion-laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "deep": "[" * 5000,
    "python-object": "!!python/object/apply:os.system ['true']\n",
    "merge-key-of-text": HEAD + "<<: text\nspec: {}\n",
    "key-twice": HEAD + f"spec: {{{CONTAINER}}}\nspec: {{{CONTAINER}}}\n",
    "second-document-broken": json.dumps(GOOD) + "\n---\n{",
    # Not a pod
    "text": "just text\n",
    "number": "42\n",
    "list": "[1, 2]\n",
    "null": "null\n",
    "no-kind": "apiVersion: v1\n",
    "deployment": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n",
    "api-version": json.dumps({**GOOD, "apiVersion": "v2"}),
    "list-of-text": "apiVersion: v1\nkind: PodList\nitems: [text]\n",
    "items-is-text": "apiVersion: v1\nkind: PodList\nitems: text\n",
    "same-name-twice": json.dumps(GOOD) + "\n---\n" + json.dumps(GOOD),
    # A pod with something wrong
    "no-name": _with("metadata/name", ""),
    "name-with-capitals": _with("metadata/name", "Broken"),
    "long-name": _with("metadata/name", "a" * 300),
    "metadata-is-list": _with("metadata", []),
    "spec-is-text": _with("spec", "text"),
    "no-containers": _with("spec/containers", []),
    "containers-is-mapping": _with("spec/containers", {"name": "main"}),
    "container-is-null": _with("spec/containers", [None]),
    "same-container-twice": _with("spec/containers", [{"name": "a", "image": "a"}, {"name": "a", "image": "a"}]),
    "no-image": _container(image=""),
    "image-is-number": _container(image=1),
    "command-is-text": _container(command="sh -c true"),
    "env-without-name": _container(env=[{"value": "a"}]),
    "port-too-high": _container(ports=[{"containerPort": 70000}]),
    "port-is-text": _container(ports=[{"containerPort": "http"}]),
    "bad-quantity": _container(resources={"limits": {"memory": "lots"}}),
    "mount-of-nothing": _container(volumeMounts=[{"name": "nothing", "mountPath": "/a"}]),
    "pull-policy": _container(imagePullPolicy="Sometimes"),
    "restart-policy": _with("spec/restartPolicy", "Perhaps"),
    "negative-grace": _with("spec/terminationGracePeriodSeconds", "soon"),
    "needs-config-map": _with("spec/volumes", [{"name": "v", "configMap": {"name": "c"}}]),
    "needs-service-account": _with("spec/serviceAccountName", "builder"),
}


def write_broken_manifests(folder: Path) -> set[str]:
    """Put them all there; returns the names of the files."""
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with (folder / "huge").open("wb") as huge:
        huge.truncate(100 << 20)
    (folder / "directory").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "device").symlink_to("/dev/zero")
    os.mkfifo(folder / "fifo")
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
    os.close(descriptor)
    return {*TEXTS, "huge", "directory", "dangling", "loop", "device", "fifo", "socket"}
