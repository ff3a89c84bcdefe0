"""What systemd gets for a slice: the properties of its unit, as `opencontainers/cgroups/systemd` has them. Pure.

systemd writes the kernel's files itself, and writes them again when it likes. So it gets every limit that it has a
property for; a limit that only the file had would be gone one day. CPU quotas are whole percents of a processor there,
rounded up, and the files have to say the same.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import attrs

from trikubelet.cgroups.errors import CgroupNameError
from trikubelet.cgroups.settings import DEFAULT_PERIOD, CgroupSettings, cpu_weight

Property: TypeAlias = tuple[str, tuple[str, Any]]
"""Name, D-Bus signature and value."""

INFINITY: Final = 2**64 - 1
_MICROSECONDS: Final = 1_000_000
"""In a second."""
_PERCENT: Final = 10_000
"""Microseconds in a second that are one percent of it."""
_KNOWS_QUOTA_PERIODS: Final = 242
_KNOWS_CPUS: Final = 244
"""Versions of systemd."""
_UNIFIED: Final = {
    "memory.high": "MemoryHigh",
    "memory.low": "MemoryLow",
    "memory.max": "MemoryMax",
    "memory.min": "MemoryMin",
    "memory.swap.max": "MemorySwapMax",
}


def slice_properties(unit: str, parent: str, version: Literal[1, 2]) -> list[Property]:
    """Of every slice; `parent` is the unit of the one above."""
    io = "IOAccounting" if version == 2 else "BlockIOAccounting"
    accounting = ("MemoryAccounting", "CPUAccounting", io, "TasksAccounting")
    return [
        ("Description", ("s", f"libcontainer container {unit}")),
        ("Wants", ("as", [parent])),
        *((name, ("b", True)) for name in accounting),
        ("DefaultDependencies", ("b", False)),
    ]


def limit_properties(
    settings: CgroupSettings, version: Literal[1, 2], systemd: int
) -> tuple[list[Property], CgroupSettings]:
    """Of what is set; and the settings as they are to be in the files then. `systemd`: its version.

    Raises CgroupNameError for processors that cannot be read.
    """
    properties: list[Property] = []
    if settings.memory:
        properties.append(("MemoryMax" if version == 2 else "MemoryLimit", ("t", _amount(settings.memory))))
    if settings.cpu_shares:
        weight = cpu_weight(settings.cpu_shares)
        properties.append(("CPUWeight", ("t", weight)) if version == 2 else ("CPUShares", ("t", settings.cpu_shares)))
    quota, period = settings.cpu_quota or 0, settings.cpu_period or 0
    if period and systemd >= _KNOWS_QUOTA_PERIODS:
        properties.append(("CPUQuotaPeriodUSec", ("t", period)))
    if quota or period:
        each_second = INFINITY
        if quota > 0:
            each_second = quota * _MICROSECONDS // (period or DEFAULT_PERIOD)
            if each_second % _PERCENT:
                each_second = (each_second // _PERCENT + 1) * _PERCENT
                settings = attrs.evolve(settings, cpu_quota=each_second * (period or DEFAULT_PERIOD) // _MICROSECONDS)
        properties.append(("CPUQuotaPerSecUSec", ("t", each_second)))
    if settings.pids:
        properties.append(("TasksMax", ("t", _amount(settings.pids))))
    if settings.cpus and systemd >= _KNOWS_CPUS:
        properties.append(("AllowedCPUs", ("ay", processor_bits(settings.cpus))))
    for file, text in settings.unified.items() if version == 2 else ():
        if file in _UNIFIED:
            properties.append((_UNIFIED[file], ("t", INFINITY if text == "max" else int(text))))
    return properties, settings


def systemd_version(text: str) -> int:
    """`252` of `252.39-1~deb12u1`, `v245.4-1.fc32` and their like; 0 of what is no version."""
    found = re.match(r'["v]*(\d+)', text)
    return int(found[1]) if found else 0


def processor_bits(cpus: str) -> bytes:
    """`0-3,8` as a mask, the lowest processors first. Raises CgroupNameError."""
    mask = 0
    for part in cpus.replace(" ", "").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
            raise CgroupNameError(cpus, f"expected processors as 0-3,7, got {part!r}")
        for number in range(int(first), int(last) + 1):
            mask |= 1 << number
    if not mask:
        raise CgroupNameError(cpus, "expected processors as 0-3,7, got none")
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _amount(value: int) -> int:
    return INFINITY if value < 0 else value
