"""What clients ask before they ask for objects: version, health, and which resources there are. kubectl needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.apiserver.resources import OF_THE_NODE, RESOURCES, ResourceInfo
from trikubelet.http.messages import Response, json_response

if TYPE_CHECKING:
    from collections.abc import Collection

    from trikubelet.http.messages import Request

VERSION: Final = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-06-01T00:00:00Z",
    "goVersion": "go1.26.0",
    "compiler": "gc",
    "platform": "linux/amd64",
}
HEALTH_PATHS: Final = ("/healthz", "/livez", "/readyz")
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def is_public(path: str) -> bool:
    """Paths that even nobody may read."""
    return path in ("/version", *HEALTH_PATHS)


def answer(request: Request, aggregated: Collection[str] = ()) -> Response | None:
    """None when there is nothing at the path. `aggregated`: groups and versions that others serve."""
    path = request.path.rstrip("/")
    if path in HEALTH_PATHS:
        return Response(b"ok")
    if path == "/version":
        return json_response(VERSION)
    if path == "/api":
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}]
        return json_response({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses})
    if path == "/apis":
        others = [_group(*name.split("/")) for name in aggregated]
        groups = [_group(name) for name in _groups()] + others
        return json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    return _resources(path)


def _groups() -> list[str]:
    return sorted({info.group for info in RESOURCES if info.group})


def _group(name: str, served: str = "v1") -> dict[str, Any]:
    version = {"groupVersion": f"{name}/{served}", "version": served}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(path: str) -> Response | None:
    if path == "/api/v1":
        group, group_version = "", "v1"
    else:
        parts = path.split("/")
        if len(parts) == 3 and parts[1] == "apis" and parts[2] in _groups():
            return json_response({"kind": "APIGroup", "apiVersion": "v1", **_group(parts[2])})
        if len(parts) != 4 or parts[1] != "apis" or parts[2] not in _groups() or parts[3] != "v1":
            return None
        group, group_version = parts[2], f"{parts[2]}/v1"
    found = [entry for info in RESOURCES if info.group == group for entry in _entries(info)]
    body = {"kind": "APIResourceList", "groupVersion": group_version, "resources": found}
    return json_response(body if not group else {"apiVersion": "v1", **body})


def _entries(info: ResourceInfo) -> list[dict[str, Any]]:
    whole: dict[str, Any] = {
        "name": info.plural,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": _VERBS,
    }
    if info.short_names:
        whole["shortNames"] = list(info.short_names)
    entries = [whole]
    for name in (*(("status",) if info.status else ()), *info.subresources):
        verbs = ["create"] if name in ("binding", "eviction", "token") else ["get", "patch", "update"]
        verbs = ["get"] if name == "log" else ["create", "get"] if name in OF_THE_NODE else verbs
        part = {"name": f"{info.plural}/{name}", "singularName": "", "namespaced": info.namespaced}
        entries.append({**part, "kind": info.kind, "verbs": verbs})
    return entries
