"""Capability names and numbers, and the set a container has unless it asks otherwise."""

from __future__ import annotations

NAMES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()
BITS = {name: 1 << number for number, name in enumerate(NAMES)}
ALL = (1 << len(NAMES)) - 1

# What Docker, containerd and CRI-O agree on.
DEFAULT = sum(
    BITS[name]
    for name in (
        "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL "
        "AUDIT_WRITE"
    ).split()
)


class UnknownCapabilityError(Exception):
    """A capability name that this kernel generation does not have."""


def mask(names: list[str]) -> int:
    """The bits of capability names, with or without `CAP_`, in any case. `ALL` is every capability."""
    bits = 0
    for name in names:
        plain = name.upper().removeprefix("CAP_")
        if plain == "ALL":
            return ALL
        if plain not in BITS:
            raise UnknownCapabilityError(f'unknown capability "{name}"')
        bits |= BITS[plain]
    return bits


def bounding_set(add: list[str], drop: list[str], *, privileged: bool, devices_confined: bool) -> int:
    """What a container may ever hold.

    As in containerd, dropping ALL and adding some leaves those, and adding ALL and dropping some leaves the rest. Where
    no devices cgroup confines the container, MKNOD must be asked for: with it root could open the machine's disks.
    """
    if privileged:
        return ALL
    added, dropped = mask(add), mask(drop)
    base = DEFAULT if devices_confined else DEFAULT & ~BITS["MKNOD"]
    if added == ALL:
        return ALL & ~dropped
    if dropped == ALL:
        return added
    return (base | added) & ~dropped
