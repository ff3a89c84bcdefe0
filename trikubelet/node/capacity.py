"""What the machine has, and what of it pods may have (kubelet: `MachineInfo`, `GetNodeAllocatableReservation`).

Allocatable is capacity less what is reserved: for the system, for the agent, and as the room that hard eviction keeps
free. Memory that is set aside as huge pages is not ordinary memory any more, so it is subtracted too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Quantity
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.linux.machine import Machine

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
STORAGE: Final = "ephemeral-storage"
HUGE_PAGES: Final = "hugepages-"
DEFAULT_EVICTION: Final = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
}
"""Hard eviction thresholds where nobody sets `evictionHard`."""
_RESERVED_BY_EVICTION: Final = {"memory.available": MEMORY, "nodefs.available": STORAGE}
_ZERO: Final = Quantity.from_nanos(0)


@frozen(kw_only=True)
class Reservations:
    """What pods may not have."""

    kube: Mapping[str, Quantity] = attrs.field(factory=dict)
    system: Mapping[str, Quantity] = attrs.field(factory=dict)
    eviction: Mapping[str, str] = attrs.field(factory=lambda: dict(DEFAULT_EVICTION))
    """Hard thresholds by signal: amounts, or percentages of the capacity."""

    @classmethod
    def of(
        cls,
        *,
        kube: Mapping[str, str],
        system: Mapping[str, str],
        reserved_cpus: int = 0,
        eviction_hard: Mapping[str, str] | None = None,
    ) -> Reservations:
        """From a configuration. `reserved_cpus`: processors that are the system's alone; they replace what is reserved
        of `cpu` otherwise. `eviction_hard` None: the configuration does not name it, which means the defaults."""
        kube_amounts = {name: Quantity(text) for name, text in kube.items()}
        system_amounts = {name: Quantity(text) for name, text in system.items()}
        if reserved_cpus:
            kube_amounts.pop(CPU, None)
            system_amounts[CPU] = Quantity(reserved_cpus)
        eviction = DEFAULT_EVICTION if eviction_hard is None else eviction_hard
        return cls(kube=kube_amounts, system=system_amounts, eviction=dict(eviction))


def capacity(
    machine: Machine | None, *, max_pods: int, pods_per_core: int = 0, local_storage: bool = True
) -> dict[str, Quantity]:
    """What a machine has. Of one that cannot be read nothing is known but how many pods it is to take at most."""
    if machine is None:
        return {CPU: Quantity.from_milli(0), MEMORY: Quantity.from_bytes_count(0), PODS: Quantity(max_pods)}
    pods = min(machine.cpus * pods_per_core, max_pods) if pods_per_core > 0 else max_pods
    found = {
        CPU: Quantity.from_milli(machine.cpus * 1000),
        MEMORY: Quantity.from_bytes_count(machine.memory),
        PODS: Quantity(pods),
    }
    for size, count in machine.huge_pages.items():
        found[HUGE_PAGES + str(Quantity.from_bytes_count(size))] = Quantity.from_bytes_count(size * count)
    if local_storage and machine.storage is not None:
        found[STORAGE] = Quantity.from_bytes_count(machine.storage)
    return found


def reserved(capacity: Mapping[str, Quantity], reservations: Reservations) -> dict[str, Quantity]:
    """How much of each resource pods may not have; resources of which all is theirs are left out."""
    kept_free = {
        resource: _threshold(reservations.eviction[signal], capacity.get(resource, _ZERO))
        for signal, resource in _RESERVED_BY_EVICTION.items()
        if signal in reservations.eviction
    }
    sums = {
        name: reservations.system.get(name, _ZERO) + reservations.kube.get(name, _ZERO) + kept_free.get(name, _ZERO)
        for name in capacity
        if name != PODS
    }
    return {name: amount for name, amount in sums.items() if amount}


def allocatable(
    capacity: Mapping[str, Quantity], reserved: Mapping[str, Quantity], before: Mapping[str, Quantity] | None = None
) -> dict[str, Quantity]:
    """What pods may have. `before` is what the node object says: what it says of resources that this agent knows
    nothing of stays, unless it is an extended resource that the node no longer has."""
    result = {
        name: amount for name, amount in (before or {}).items() if name in capacity or not is_extended_resource(name)
    }
    for name, amount in capacity.items():
        result[name] = _not_negative(amount - reserved[name] if name in reserved else amount)
    for name, amount in capacity.items():
        if name.startswith(HUGE_PAGES) and MEMORY in result:
            result[MEMORY] = _not_negative(result[MEMORY] - amount)
    return result


def reservation_problem(capacity: Mapping[str, Quantity], reservations: Reservations) -> str | None:
    """Why an agent with these reservations cannot start: they are more than there is."""
    problems = [
        f'Resource "{name}" has a reservation of {amount} but capacity of {capacity[name]}. '
        "Expected capacity >= reservation."
        for name, amount in sorted(reserved(capacity, reservations).items())
        if amount > capacity[name]
    ]
    return f"invalid Node Allocatable configuration. {' '.join(problems)}" if problems else None


def is_extended_resource(name: str) -> bool:
    """Whether a resource is neither Kubernetes' own nor a quota's: `example.com/gpu`."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def _threshold(text: str, capacity: Quantity) -> Quantity:
    """An eviction threshold as an amount."""
    if not text.endswith("%"):
        return Quantity(text)
    # The kubelet keeps percentages in single precision. A byte more or less is a change of the node object.
    fraction = _single(_single(float(text.rstrip("%"))) / 100)
    return Quantity.from_bytes_count(int(capacity.value() * fraction))


def _single(number: float) -> float:
    """Rounded to single precision."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _not_negative(amount: Quantity) -> Quantity:
    return amount if amount >= _ZERO else Quantity.from_nanos(0, amount.format)
