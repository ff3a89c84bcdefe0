"""Which reservations, and which enforcement of them, a configuration may ask for. Pure.

Kubelet: parts of `ValidateKubeletConfiguration`, `parseResourceList`, `ParseQOSReserved` and
`validateReservedMemoryConfiguration`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from trikubelet.api.pod_resources import is_huge_page_resource
from trikubelet.api.quantity import Quantity, QuantityError
from trikubelet.config.decode import FieldProblem
from trikubelet.linux.machine import processors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.config.kubelet_configuration import KubeletConfiguration

_PODS: Final = "pods"
_NONE: Final = "none"
_COMPRESSIBLE: Final = "-compressible"
_RESERVED: Final = {
    "system-reserved": ("systemReservedCgroup", "system_reserved_cgroup"),
    "kube-reserved": ("kubeReservedCgroup", "kube_reserved_cgroup"),
}
_ENFORCEMENTS: Final = (_PODS, *(name + kind for name in _RESERVED for kind in ("", _COMPRESSIBLE)), _NONE)
_RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_PERCENT: Final = re.compile(r"\d{1,3}%")


def check_reservations(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    """Every rule that is broken."""
    yield from _check_amounts("systemReserved", config.system_reserved)
    yield from _check_amounts("kubeReserved", config.kube_reserved)
    yield from _check_enforcement(config)
    yield from _check_reserved_cpus(config)
    yield from _check_qos_reserved(config)
    yield from _check_reserved_memory(config)


def _check_amounts(field: str, amounts: dict[str, str]) -> Iterator[FieldProblem]:
    for name, text in amounts.items():
        if name not in _RESERVABLE:
            yield FieldProblem(f"{field}[{name}]", f"cannot be reserved, only {', '.join(_RESERVABLE)} can")
            continue
        try:
            amount = Quantity(text)
        except QuantityError as error:
            yield FieldProblem(f"{field}[{name}]", str(error))
            continue
        if amount < Quantity():
            yield FieldProblem(f"{field}[{name}]", f"must not be negative, got {text}")


def _check_enforcement(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    field = "enforceNodeAllocatable"
    wanted = Counter(config.enforce_node_allocatable)
    for name in _RESERVED:
        if name in wanted and name + _COMPRESSIBLE in wanted:
            yield FieldProblem(field, f'"{name}" and "{name}{_COMPRESSIBLE}" cannot be asked for together')
    for name, times in wanted.items():
        if name not in _ENFORCEMENTS:
            known = ", ".join(f'"{one}"' for one in _ENFORCEMENTS)
            yield FieldProblem(field, f'must be one of {known}, got "{name}"')
            continue
        if times > 1:
            yield FieldProblem(field, f'"{name}" is given {times} times')
        if name == _NONE:
            if len(wanted) > 1:
                yield FieldProblem(field, f'"{_NONE}" cannot be asked for together with others')
            continue
        if not config.cgroups_per_qos:
            yield FieldProblem(field, f'"{name}" needs cgroupsPerQOS: true; without it set enforceNodeAllocatable: []')
        path, attribute = _RESERVED.get(name.removesuffix(_COMPRESSIBLE), ("", ""))
        if path and not getattr(config, attribute):
            yield FieldProblem(path, f'must be given when "{name}" is in {field}')


def _check_reserved_cpus(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    field = "reservedSystemCPUs"
    if not config.reserved_system_cpus:
        return
    if config.system_reserved_cgroup or config.kube_reserved_cgroup:
        yield FieldProblem(field, "cannot be used with systemReservedCgroup or kubeReservedCgroup")
    try:
        processors_in(config.reserved_system_cpus)
    except ValueError as error:
        yield FieldProblem(field, str(error))


def _check_qos_reserved(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    for name, text in config.qos_reserved.items():
        if name != "memory":
            yield FieldProblem(f"qosReserved[{name}]", "cannot be reserved, only memory can")
        elif _PERCENT.fullmatch(text) is None or int(text[:-1]) > 100:
            yield FieldProblem("qosReserved[memory]", f'must be between "0%" and "100%", got "{text}"')


def _check_reserved_memory(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    seen: set[tuple[int, str]] = set()
    for index, reservation in enumerate(config.reserved_memory):
        for name, text in reservation.limits.items():
            path = f"reservedMemory[{index}].limits[{name}]"
            if name != "memory" and not is_huge_page_resource(name):
                yield FieldProblem(path, "cannot be reserved, only memory and hugepages-SIZE can")
            try:
                if not Quantity(text):
                    yield FieldProblem(path, "must not be zero")
            except QuantityError as error:
                yield FieldProblem(path, str(error))
            if (reservation.numa_node, name) in seen:
                yield FieldProblem(path, f"is given twice for NUMA node {reservation.numa_node}")
            seen.add((reservation.numa_node, name))
