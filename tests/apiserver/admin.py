"""What a test does to the cluster itself: without a connection, as the administrator, at once, and past all faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.apiserver.documents import Document, clone
from tests.apiserver.patches import MERGE_PATCH, apply_patch
from tests.apiserver.registry import Deletion, Registry
from tests.apiserver.resources import NAMESPACES, SERVICE_ACCOUNTS, resource_named
from tests.apiserver.selectors import parse_selector
from tests.apiserver.users import ADMIN

if TYPE_CHECKING:
    from tests.apiserver.subresources import Subresources


class Admin:
    """Resources go by plural or kind. Documents that come out are the test's to change. Raises ApiFailure."""

    def __init__(self, registry: Registry, subresources: Subresources) -> None:
        self._registry = registry
        self._subresources = subresources

    def create(self, document: Document, *, namespace: str = "") -> Document:
        """Create what the document's `kind` says, in a namespace that is made if need be."""
        info = resource_named(document["kind"])
        namespace = namespace or document.get("metadata", {}).get("namespace") or "default"
        if info.namespaced:
            self.ensure_namespace(namespace)
        return _copy(self._registry.create(info, namespace if info.namespaced else "", document, ADMIN))

    def get(self, resource: str, name: str, namespace: str = "default") -> Document:
        info = resource_named(resource)
        return _copy(self._registry.find(info, namespace if info.namespaced else "", name))

    def find(self, resource: str, name: str, namespace: str = "default") -> Document | None:
        """None when there is no such object."""
        info = resource_named(resource)
        document = self._registry.store.get(info, namespace if info.namespaced else "", name)
        return None if document is None else _copy(document)

    def list(self, resource: str, namespace: str = "", *, fields: str = "", labels: str = "") -> list[Document]:
        selector = parse_selector(resource_named(resource), namespace, fields, labels)
        return [_copy(document) for document in self._registry.store.select(selector)]

    def patch(
        self,
        resource: str,
        name: str,
        namespace: str = "default",
        *,
        body: Any,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> Document:
        info = resource_named(resource)

        def change(document: Document) -> Document:
            return apply_patch(document, content_type, body, info.kind)

        where = namespace if info.namespaced else ""
        return _copy(self._registry.modify(info, where, name, change, ADMIN, subresource=subresource))

    def replace(self, document: Document, *, subresource: str = "") -> Document:
        info = resource_named(document["kind"])
        metadata = document["metadata"]
        where = metadata.get("namespace", "")
        return _copy(self._registry.replace(info, where, metadata["name"], document, ADMIN, subresource=subresource))

    def delete(
        self, resource: str, name: str, namespace: str = "default", *, grace: int | None = None, uid: str | None = None
    ) -> Document:
        info = resource_named(resource)
        where = namespace if info.namespaced else ""
        return _copy(self._registry.delete(info, where, name, Deletion(grace, uid), ADMIN)[0])

    def bind(self, name: str, node: str, namespace: str = "default") -> Document:
        """Schedule a pod."""
        return _copy(self._subresources.bind(namespace, name, node, ADMIN))

    def ensure_namespace(self, name: str) -> None:
        """A namespace with its default service account."""
        if self._registry.store.get(NAMESPACES, "", name) is None:
            self._registry.create(NAMESPACES, "", {"metadata": {"name": name}}, ADMIN)
            self._registry.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}}, ADMIN)


def _copy(document: Document) -> Document:
    copied: Document = clone(document)
    return copied
