"""From a call that is allowed to an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.apiserver import discovery
from tests.apiserver.documents import Document, uid_of
from tests.apiserver.errors import ApiFailure, bad_request, no_such_path, not_allowed, unsupported_media
from tests.apiserver.patches import apply_patch
from tests.apiserver.requests import resource_version
from tests.apiserver.resources import OF_THE_NODE
from tests.apiserver.reviews import REVIEWS
from tests.apiserver.store import encode
from tests.apiserver.strategy_table import strategy_for
from tests.apiserver.subresources import Subresources, deletion_in
from trikubelet.http.messages import JSON, Response

if TYPE_CHECKING:
    from tests.apiserver.node_proxy import NodeProxy
    from tests.apiserver.reading import Reader
    from tests.apiserver.registry import Registry
    from tests.apiserver.requests import Call
    from tests.apiserver.resources import ResourceInfo
    from tests.apiserver.reviews import Reviews
    from tests.apiserver.users import User
    from tests.apiserver.watches import WatchHub
    from trikubelet.http.messages import AnyResponse, Handler, Request

_BODIES = ("application/json", "application/yaml")


class Handling:
    """Answers calls. Raises ApiFailure for those that cannot be fulfilled."""

    def __init__(
        self,
        registry: Registry,
        reader: Reader,
        hub: WatchHub,
        subresources: Subresources,
        reviews: Reviews,
        node_proxy: NodeProxy,
    ) -> None:
        self._registry = registry
        self._reader = reader
        self._hub = hub
        self._subresources = subresources
        self._reviews = reviews
        self._node_proxy = node_proxy
        self.aggregated: dict[str, Handler] = {}
        """Group and version (`metrics.k8s.io/v1beta1`) → who serves them in place of this server."""

    async def answer(self, request: Request, call: Call, user: User) -> AnyResponse:
        if call.info is None:
            behind = next((handler for name, handler in self.aggregated.items() if _is_below(call.path, name)), None)
            found = await behind(request) if behind is not None else discovery.answer(request, self.aggregated)
            if found is None:
                raise no_such_path()
            return found
        if call.subresource in OF_THE_NODE:
            return await self._node_proxy.answer(request, call)
        _check_accept(request)
        if call.info in REVIEWS and call.verb != "create":
            raise not_allowed()
        match call.verb:
            case "get":
                await self._reader.wait_fresh(resource_version(request))
                return _json(self._registry.find(call.info, call.namespace, call.name))
            case "list":
                return _json(await self._reader.list_page(request, call))
            case "watch":
                return await self._hub.open(request, call)
            case "create":
                return _json(self._create(request, call, call.info, user), 201)
            case "update":
                body = _document(request)
                namespace, name = call.namespace, call.name
                return _json(
                    self._registry.replace(call.info, namespace, name, body, user, subresource=call.subresource)
                )
            case "patch":
                return _json(self._patch(request, call, call.info, user))
            case "delete":
                return _json(self._delete(request, call, call.info, user))
            case "deletecollection":
                return _json(self._delete_all(request, call, call.info, user))
        raise ApiFailure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _create(self, request: Request, call: Call, info: ResourceInfo, user: User) -> Document:
        body = _document(request)
        if info in REVIEWS:
            return self._reviews.answer(info, body)
        if call.subresource:
            return self._subresources.create(info, call.namespace, call.name, call.subresource, body, user)
        return self._registry.create(info, call.namespace, body, user)

    def _patch(self, request: Request, call: Call, info: ResourceInfo, user: User) -> Document:
        content_type = request.headers.get("content-type", "")

        def change(document: Document) -> Document:
            return apply_patch(document, content_type, request.body, info.kind)

        return self._registry.modify(info, call.namespace, call.name, change, user, subresource=call.subresource)

    def _delete(self, request: Request, call: Call, info: ResourceInfo, user: User) -> Document:
        options = _delete_options(request)
        document, gone = self._registry.delete(info, call.namespace, call.name, deletion_in(options), user)
        if not gone or strategy_for(info).returns_deleted:
            return document
        details = {"name": call.name, "group": info.group, "kind": info.plural, "uid": uid_of(document)}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {key: value for key, value in details.items() if value},
        }

    def _delete_all(self, request: Request, call: Call, info: ResourceInfo, user: User) -> Document:
        deletion = deletion_in(_delete_options(request))
        found = self._registry.store.select(call.selector())
        for document in found:
            metadata = document["metadata"]
            self._registry.delete(info, metadata.get("namespace", ""), metadata["name"], deletion, user)
        version = str(self._registry.store.version)
        metadata = {"resourceVersion": version}
        return {"kind": f"{info.kind}List", "apiVersion": info.api_version, "metadata": metadata, "items": found}


def _is_below(path: str, group_version: str) -> bool:
    return f"{path}/".startswith(f"/apis/{group_version}/")


def _json(document: Document, status: int = 200) -> Response:
    return Response(encode(document) + b"\n", status, JSON)


def _check_accept(request: Request) -> None:
    accepted = request.headers.get("accept", "*/*")
    if not any(kind in accepted for kind in ("*/*", "application/*", "application/json")):
        message = "only the following media types are accepted: application/json"
        raise ApiFailure(406, "NotAcceptable", message)


def _document(request: Request) -> Document:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind not in _BODIES:
        raise unsupported_media(_BODIES)
    document = _load(request)
    if not isinstance(document, dict):
        raise bad_request(f"couldn't get version/kind; expected an object, got {type(document).__name__}")
    return document


def _load(request: Request) -> Any:
    try:
        return json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"the object provided is unrecognized (must be of type JSON): {error}") from error


def _delete_options(request: Request) -> Document:
    """In the body, or some of them in the query."""
    options = _load(request) if request.body else {}
    if not isinstance(options, dict):
        raise bad_request("expected DeleteOptions")
    grace = request.text("gracePeriodSeconds")
    if grace and "gracePeriodSeconds" not in options:
        options["gracePeriodSeconds"] = int(grace)
    return options
