"""Pods of the three classes, as short as a test needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trikubelet.api import pod_from_dict

if TYPE_CHECKING:
    from trikubelet.api import Pod

MI = 1024 * 1024


def amounts(cpu: str = "", memory: str = "", **more: str) -> dict[str, str]:
    return {name: amount for name, amount in (("cpu", cpu), ("memory", memory), *more.items()) if amount}


def container(
    requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, *, sidecar: bool = False
) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}}
    return made | {"restartPolicy": "Always"} if sidecar else made


def pod(*containers: dict[str, Any], uid: str = "12-34", init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    """Names are numbered, the rest of the spec is as given."""
    numbered = [made | {"name": f"c{number}", "image": "i"} for number, made in enumerate(containers)]
    initial = [made | {"name": f"i{number}", "image": "i"} for number, made in enumerate(init)]
    return pod_from_dict(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": uid},
            "spec": {"containers": numbered, "initContainers": initial, **spec},
        }
    )


def guaranteed(uid: str = "g-1", *, cpu: str = "1", memory: str = "128Mi") -> Pod:
    return pod(container(amounts(cpu, memory), amounts(cpu, memory)), uid=uid)


def burstable(uid: str = "b-1", *, cpu: str = "1", memory: str = "128Mi", limits: dict[str, str] | None = None) -> Pod:
    return pod(container(amounts(cpu, memory), limits), uid=uid)


def best_effort(uid: str = "e-1") -> Pod:
    return pod(container(), uid=uid)
