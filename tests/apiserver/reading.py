"""GET of one object and of lists, in pages, at the version that the client can do with.

Facts from `apiserver/pkg/storage` (continue tokens, versions that are too old or too new).
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.apiserver.documents import Document, name_of, namespace_of
from tests.apiserver.errors import CONTINUE_EXPIRED, bad_request, expired, too_large
from tests.apiserver.requests import Call, number, resource_version

if TYPE_CHECKING:
    from tests.apiserver.resources import ResourceInfo
    from tests.apiserver.selectors import Selector
    from tests.apiserver.store import Store
    from trikubelet.http.messages import Request

FRESHNESS_WAIT: Final = 3.0
"""Seconds that a request for a version to come waits for it."""
_KEPT_LISTS: Final = 50


class Reader:
    """Answers get and list. Lists in pages show one version: each is kept while its pages may be asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: dict[int, dict[ResourceInfo, list[Document]]] = {}

    async def wait_fresh(self, version: int | None) -> None:
        """Raises ApiFailure 504 when the store does not reach `version` soon."""
        if version is None or version <= self._store.version:
            return
        with trio.move_on_after(FRESHNESS_WAIT):
            while version > self._store.version:
                await trio.sleep(0.1)
            return
        raise too_large(version, self._store.version)

    async def list_page(self, request: Request, call: Call) -> Document:
        """The list. Raises ApiFailure."""
        selector = call.selector()
        limit = number(request, "limit") or 0
        token = request.text("continue") or ""
        if token:
            version, start = _decode_token(token)
            documents = self._snapshot(selector, version)
            documents = [document for document in documents if _key(document) > start]
        else:
            await self.wait_fresh(resource_version(request))
            version = self._store.version
            documents = self._store.select(selector)
        page, rest = (documents[:limit], documents[limit:]) if limit > 0 else (documents, [])
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            self._keep(selector.info, version)
            metadata["continue"] = _encode_token(version, _key(page[-1]))
            if not selector.selects:
                metadata["remainingItemCount"] = len(rest)
        info = selector.info
        found = [_untyped(document) for document in page]
        return {"kind": f"{info.kind}List", "apiVersion": info.api_version, "metadata": metadata, "items": found}

    def _keep(self, info: ResourceInfo, version: int) -> None:
        if version == self._store.version:
            self._snapshots.setdefault(version, {})[info] = list(self._store.values(info))
        while len(self._snapshots) > _KEPT_LISTS:
            del self._snapshots[min(self._snapshots)]

    def _snapshot(self, selector: Selector, version: int) -> list[Document]:
        kept = self._snapshots.get(version, {}).get(selector.info)
        if kept is None or version < self._store.compacted:
            raise expired(CONTINUE_EXPIRED)
        return [document for document in kept if selector.matches(document)]


def _untyped(document: Document) -> Document:
    """The items of a list do not say their kind again."""
    return {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}


def _key(document: Document) -> list[str]:
    return [namespace_of(document), name_of(document)]


def _encode_token(version: int, start: list[str]) -> str:
    return base64.urlsafe_b64encode(json.dumps({"rv": version, "start": start}).encode()).decode()


def _decode_token(token: str) -> tuple[int, list[str]]:
    try:
        data = json.loads(base64.urlsafe_b64decode(token))
        return int(data["rv"]), list(data["start"])
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
