"""What a request asks for, read from its method, path and query: the words that authorization and faults speak in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import attrs

from tests.apiserver.errors import ApiFailure, bad_request, no_such_path, not_allowed
from tests.apiserver.resources import OF_THE_NODE, RESOURCES, ResourceInfo, find_resource
from tests.apiserver.selectors import Selector, parse_fields, parse_selector
from trikubelet.http.messages import HTTPError

if TYPE_CHECKING:
    from trikubelet.http.messages import Request

_GROUPS: Final = frozenset(info.group for info in RESOURCES)
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@attrs.frozen
class Call:
    """One request: a verb on a resource, or on a path that is none."""

    verb: str
    """get, list, watch, create, update, patch, delete, deletecollection; of other paths the method in lower case."""
    path: str
    info: ResourceInfo | None = None
    namespace: str = ""
    name: str = ""
    """Of a list or watch that selects one name: that."""
    subresource: str = ""
    fields: str = ""
    """The field selector, as sent."""
    labels: str = ""
    user: str = ""
    user_agent: str = ""
    body: bytes = attrs.field(default=b"", repr=False)

    @property
    def resource(self) -> str:
        """The plural, `pods`; empty for other paths."""
        return self.info.plural if self.info else ""

    @property
    def writes(self) -> bool:
        return self.verb not in ("get", "list", "watch", "head", "options")

    def selector(self) -> Selector:
        """Raises ApiFailure 400."""
        assert self.info is not None
        return parse_selector(self.info, self.namespace, self.fields, self.labels)

    def __str__(self) -> str:
        what = "/".join(part for part in (self.resource, self.subresource) if part) or self.path
        which = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {what} {which}".rstrip()


def read_call(request: Request, user: str) -> Call:
    """Raises ApiFailure for a path or method that the server does not know."""
    agent = request.headers.get("user-agent", "")
    segments = [unquote(segment) for segment in request.path.strip("/").split("/")]
    root, rest = _root(segments)
    if root is None:
        return Call(request.method.lower(), request.path, user=user, user_agent=agent, body=request.body)
    group, version = root
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    info = find_resource(group, version, rest[0])
    if info is None and group not in _GROUPS:
        # None of ours. Somebody behind this server may have it.
        return Call(request.method.lower(), request.path, user=user, user_agent=agent, body=request.body)
    name, subresource, *_ = [*rest[1:], "", ""]
    if info is None or (len(rest) > 3 and subresource != "proxy") or (namespace and not info.namespaced):
        raise no_such_path()
    if (name and info.namespaced and not namespace) or (subresource and not _has(info, subresource)):
        raise no_such_path()
    fields = request.text("fieldSelector") or ""
    verb = _verb(request, name, subresource)
    if verb in ("list", "watch", "deletecollection"):
        name = next((t.value for t in parse_fields(fields) if t.label == "metadata.name" and t.operator == "="), "")
    if verb == "create" and info.namespaced and not namespace:
        raise not_allowed()
    return Call(
        verb,
        request.path,
        info,
        namespace,
        name,
        subresource,
        fields,
        request.text("labelSelector") or "",
        user,
        agent,
        request.body,
    )


def _root(segments: list[str]) -> tuple[tuple[str, str] | None, list[str]]:
    """Group and version, and the rest of the path; None when the path is not one of a resource."""
    if segments[0] == "api" and len(segments) > 2:
        return ("", segments[1]), segments[2:]
    if segments[0] == "apis" and len(segments) > 3:
        return (segments[1], segments[2]), segments[3:]
    return None, segments


def _has(info: ResourceInfo, subresource: str) -> bool:
    return subresource in info.subresources or (subresource == "status" and info.status)


def _verb(request: Request, name: str, subresource: str) -> str:
    method = request.method
    if subresource in OF_THE_NODE:
        return {**_VERBS, "DELETE": "delete"}.get(method, "get")
    if method in ("GET", "HEAD"):
        if name:
            return "get"
        return "watch" if flag(request, "watch") else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    verb = _VERBS.get(method)
    if verb is None or (verb == "create") != (not name or subresource in ("binding", "eviction", "token")):
        raise not_allowed()
    return verb


def flag(request: Request, name: str) -> bool:
    try:
        return request.flag(name)
    except HTTPError as error:
        raise bad_request(error.message) from error


def number(request: Request, name: str) -> int | None:
    try:
        return request.number(name)
    except HTTPError as error:
        raise bad_request(error.message) from error


def resource_version(request: Request) -> int | None:
    """The parameter resourceVersion; None when it is absent or empty."""
    text = request.text("resourceVersion")
    if not text:
        return None
    if not text.isdecimal():
        why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise ApiFailure(400, "BadRequest", why)
    return int(text)
