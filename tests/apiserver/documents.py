"""Objects as the server keeps them: JSON documents, which nobody changes once they are stored.

Documents, not the agent's own classes: what the agent's classes do not know must survive here, and a mistake in them
must not be the server's mistake too.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def clone(value: Any) -> Any:
    """A deep copy of JSON data."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def dig(document: Any, *path: str) -> Any:
    """The value at `path`; None when it, or anything on the way, is absent."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def items(document: Any, *path: str) -> list[Any]:
    """The list at `path`; empty when there is none."""
    found = dig(document, *path)
    return found if isinstance(found, list) else []


def prune(document: Any, path: str) -> None:
    """Remove the field at `path` (`status.conditions.observedGeneration`), in every element of lists on the way."""
    field, _, rest = path.partition(".")
    if isinstance(document, list):
        for entry in document:
            prune(entry, path)
    elif isinstance(document, dict) and field in document:
        if rest:
            prune(document[field], rest)
        else:
            del document[field]


def name_of(document: Document) -> str:
    return str(dig(document, "metadata", "name") or "")


def namespace_of(document: Document) -> str:
    return str(dig(document, "metadata", "namespace") or "")


def uid_of(document: Document) -> str:
    return str(dig(document, "metadata", "uid") or "")


def version_of(document: Document) -> int:
    """The resourceVersion as a number; 0 when there is none."""
    return int(dig(document, "metadata", "resourceVersion") or 0)


def without_bookkeeping(document: Document) -> Document:
    """The document without what changes with every write: two that are equal so are the same to the server."""
    metadata = {
        key: value
        for key, value in document.get("metadata", {}).items()
        if key not in ("resourceVersion", "managedFields")
    }
    return {**document, "metadata": metadata}
