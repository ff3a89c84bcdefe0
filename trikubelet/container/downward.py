"""A pod's own fields as text: what `fieldRef` and `resourceFieldRef` stand for, in variables and in files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trikubelet.api import Quantity
from trikubelet.container.errors import ContainerConfigError
from trikubelet.formats.go_quote import go_quote
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod, ResourceFieldSelector

_SUBSCRIPT: Final = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]", re.DOTALL)
_ZERO: Final = Quantity()
_LIMITED_BY_NODE: Final = ("cpu", "memory", "ephemeral-storage")
_LIMITED_BY_POD: Final = ("cpu", "memory")


@frozen
class Addresses:
    """The addresses that a pod can ask for."""

    pod_ips: Sequence[str] = ()
    """As the runtime gave them: any number, in any order."""
    host_ips: Sequence[str] = ()
    """The primary one first."""
    ipv6_first: bool = False
    """Whether the pod's address of that family is its primary one."""


def sort_pod_ips(ips: Sequence[str], *, ipv6_first: bool) -> list[str]:
    """The pod's first address of the primary family, then its first of the other (kubelet: `sortPodIPs`).

    In their usual form; without what a runtime gives that is no address.
    """
    primary = 6 if ipv6_first else 4
    chosen = []
    for family in (primary, 10 - primary):
        chosen += [ip for ip in map(_canonical, ips) if ip and _family(ip) == family][:1]
    return chosen


def field_value(pod: Pod, path: str, addresses: Addresses) -> str:
    """The text of a field (kubelet: `podFieldSelectorRuntimeValue`). Raises ContainerConfigError for unknown paths."""
    if path in ("metadata.annotations", "metadata.labels"):
        values = pod.metadata.annotations if path == "metadata.annotations" else pod.metadata.labels
        return "\n".join(f"{key}={go_quote(value)}" for key, value in sorted(values.items()))
    if (subscript := _SUBSCRIPT.fullmatch(path)) is not None:
        values = pod.metadata.annotations if subscript[1] == "annotations" else pod.metadata.labels
        return values.get(subscript[2], "")
    if path in ("status.hostIP", "status.hostIPs") and not addresses.host_ips:
        raise ContainerConfigError(f"cannot resolve {path}: the node has no address yet")
    pod_ips = sort_pod_ips(addresses.pod_ips, ipv6_first=addresses.ipv6_first)
    simple = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.host": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": next(iter(addresses.host_ips), ""),
        "status.hostIPs": ",".join(addresses.host_ips),
        "status.podIP": next(iter(pod_ips), ""),
        "status.podIPs": ",".join(pod_ips),
    }
    if path not in simple:
        raise ContainerConfigError(f"unsupported fieldPath: {path}")
    return simple[path]


def resource_value(
    selector: ResourceFieldSelector, pod: Pod, container: Container, allocatable: Mapping[str, Quantity]
) -> str:
    """The text of an amount, divided and rounded up (kubelet: `containerResourceRuntimeValue`).

    A limit that is not set is the pod's, or else what the node can give; not so for an init container that is asked for
    by name, nor for huge pages. Raises ContainerConfigError.
    """
    limited = True
    if selector.container_name:
        named = (*pod.spec.containers, *pod.spec.init_containers)
        found = next((candidate for candidate in named if candidate.name == selector.container_name), None)
        if found is None:
            raise ContainerConfigError(f"container {selector.container_name} not found")
        container, limited = found, found in pod.spec.containers
    defaults = _default_limits(pod, allocatable) if limited else {}
    return amount_text(selector, container, defaults)


def amount_text(selector: ResourceFieldSelector, container: Container, default_limits: Mapping[str, Quantity]) -> str:
    """An amount of a container, divided and rounded up (kubelet: `ExtractContainerResourceValue`).

    `default_limits`: what holds where the container has no limit; huge pages have none. Raises ContainerConfigError.
    """
    kind, _, name = selector.resource.partition(".")
    if kind not in ("limits", "requests") or not (name in _LIMITED_BY_NODE or name.startswith("hugepages-")):
        raise ContainerConfigError(f"unsupported container resource : {selector.resource}")
    if kind == "requests":
        amount = container.resources.requests.get(name, _ZERO)
    else:
        amount = container.resources.limits.get(name, _ZERO)
        if not amount and name in _LIMITED_BY_NODE:
            amount = default_limits.get(name, _ZERO)
    divisor = selector.divisor or Quantity(1)
    if name == "cpu":
        return str(-(-amount.milli_value() // divisor.milli_value()))
    return str(-(-amount.value() // divisor.value()))


def _default_limits(pod: Pod, allocatable: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
    of_pod = {} if pod.spec.resources is None else pod.spec.resources.limits
    return {**allocatable, **{name: of_pod[name] for name in _LIMITED_BY_POD if of_pod.get(name)}}


def _canonical(ip: str) -> str:
    """The address in its usual form; empty for what is none."""
    try:
        return str(ipaddress.ip_address(ip))
    except ValueError:
        return ""


def _family(ip: str) -> int:
    """4 or 6."""
    return 6 if ":" in ip else 4
