"""Pods of the kubelet's tables: names of containers and how much they request and may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trikubelet.api.pods import pod_from_dict

if TYPE_CHECKING:
    from trikubelet.api import Pod


def cpu_pod(row: dict[str, Any]) -> Pod:
    """`{"uid", "init": [...], "containers": [[name, request, limit, restart policy]], "resources": [request, limit]}`.

    All have 1G of memory; a container without CPUs has none.
    """
    spec: dict[str, Any] = {
        "initContainers": [_container(*one) for one in row.get("init", ())],
        "containers": [_container(*one) for one in row["containers"]],
    }
    if "resources" in row:
        spec["resources"] = _resources(*row["resources"])
    return pod_from_dict({"metadata": {"name": "pod", "uid": row["uid"]}, "spec": spec})


def _container(name: str, request: str = "", limit: str = "", restart_policy: str | None = None) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name}
    if request:
        container["resources"] = _resources(request, limit)
    if restart_policy is not None:
        container["restartPolicy"] = restart_policy
    return container


def _resources(request: str, limit: str) -> dict[str, Any]:
    return {"requests": {"cpu": request, "memory": "1G"}, "limits": {"cpu": limit, "memory": "1G"}}


def pod_with(row: dict[str, Any]) -> Pod:
    """`{"uid", "init": [...], "containers": [[name, requests, limits, restart policy]], "resources": [requests,
    limits]}`."""
    spec: dict[str, Any] = {
        "initContainers": [_with(*one) for one in row.get("init", ())],
        "containers": [_with(*one) for one in row["containers"]],
    }
    if "resources" in row:
        requests, limits = row["resources"]
        spec["resources"] = {"requests": requests, "limits": limits}
    return pod_from_dict({"metadata": {"name": "pod", "uid": row["uid"]}, "spec": spec})


def _with(
    name: str, requests: dict[str, str], limits: dict[str, str], restart_policy: str | None = None
) -> dict[str, Any]:
    container = {"name": name, "resources": {"requests": requests, "limits": limits}}
    return container if restart_policy is None else {**container, "restartPolicy": restart_policy}
