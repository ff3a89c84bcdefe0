"""A pod's own fields as text: what `fieldRef` and `resourceFieldRef` stand for, in variables and in files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Quantity
from trikubelet.runtime.errors import ContainerConfigError
from trikubelet.runtime.hashing import go_json_string

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod, ResourceFieldSelector

_SUBSCRIPT: Final = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]", re.DOTALL)
_ZERO: Final = Quantity()
_LIMITED_BY_NODE: Final = ("cpu", "memory", "ephemeral-storage")


@attrs.frozen
class Addresses:
    """The addresses that a pod can ask for."""

    pod_ips: Sequence[str] = ()
    host_ips: Sequence[str] = ()


def field_value(pod: Pod, path: str, addresses: Addresses) -> str:
    """The text of a field (kubelet: `podFieldSelectorRuntimeValue`). Raises ContainerConfigError for unknown paths."""
    if path in ("metadata.annotations", "metadata.labels"):
        values = pod.metadata.annotations if path == "metadata.annotations" else pod.metadata.labels
        return "\n".join(f"{key}={go_json_string(value)}" for key, value in sorted(values.items()))
    if (subscript := _SUBSCRIPT.fullmatch(path)) is not None:
        values = pod.metadata.annotations if subscript[1] == "annotations" else pod.metadata.labels
        return values.get(subscript[2], "")
    if path in ("status.hostIP", "status.hostIPs") and not addresses.host_ips:
        raise ContainerConfigError(f"cannot resolve {path}: the node has no address yet")
    simple = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.host": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": next(iter(addresses.host_ips), ""),
        "status.hostIPs": ",".join(addresses.host_ips),
        "status.podIP": next(iter(addresses.pod_ips), ""),
        "status.podIPs": ",".join(addresses.pod_ips),
    }
    if path not in simple:
        raise ContainerConfigError(f"unsupported fieldPath: {path}")
    return simple[path]


def resource_value(
    selector: ResourceFieldSelector, pod: Pod, container: Container, allocatable: Mapping[str, Quantity]
) -> str:
    """The text of an amount, divided and rounded up. A limit that is not set is what the node can give.

    Raises ContainerConfigError.
    """
    if selector.container_name:
        named = (*pod.spec.containers, *pod.spec.init_containers)
        found = next((candidate for candidate in named if candidate.name == selector.container_name), None)
        if found is None:
            raise ContainerConfigError(f"container {selector.container_name} not found")
        container = found
    kind, _, name = selector.resource.partition(".")
    if kind not in ("limits", "requests") or not (name in _LIMITED_BY_NODE or name.startswith("hugepages-")):
        raise ContainerConfigError(f"unsupported container resource : {selector.resource}")
    if kind == "requests":
        amount = container.resources.requests.get(name, _ZERO)
    else:
        amount = container.resources.limits.get(name, _ZERO) or allocatable.get(name, _ZERO)
    divisor = selector.divisor or Quantity(1)
    if name == "cpu":
        return str(-(-amount.milli_value() // divisor.milli_value()))
    return str(-(-amount.value() // divisor.value()))
