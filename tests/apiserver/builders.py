"""Documents for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.apiserver.documents import Document


def pod_document(name: str, *, node: str = "", namespace: str = "default", **spec: Any) -> Document:
    """A pod with one container."""
    body = {"containers": [{"name": "main", "image": "test/web:1"}], **spec}
    if node:
        body["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": body}


def node_document(name: str, **metadata: Any) -> Document:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}, "spec": {}, "status": {}}


def mirror_document(name: str, node: Document, *, namespace: str = "default", **spec: Any) -> Document:
    """The mirror of a static pod, as its node's agent makes it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    pod = pod_document(name, node=node["metadata"]["name"], namespace=namespace, **spec)
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.source": "file"}
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return pod
