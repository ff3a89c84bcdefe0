"""System call numbers of the ABIs that a filter can meet on a machine, how the kernel tells them apart, and which
arguments have 32 bits."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

_TABLE: Final = Path(__file__).with_name("syscalls.csv")
_INT_ARGUMENTS: Final = Path(__file__).with_name("int_arguments.csv")


@frozen
class Abi:
    """One way to call the kernel, as OCI names it."""

    name: str
    column: str
    audit: int
    """The kernel's AUDIT_ARCH_ number. x32 shares that of x86-64."""
    base: int = 0
    """Added to every number."""
    wide: bool = True
    """Whether arguments have 64 bits."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """System calls that this ABI has, by name."""
        return _numbers(self.column, self.base)


X86_64: Final = Abi("SCMP_ARCH_X86_64", "x86_64", 0xC000003E)
X32: Final = Abi("SCMP_ARCH_X32", "x32", 0xC000003E, base=1 << 30, wide=False)
X86: Final = Abi("SCMP_ARCH_X86", "x86", 0x40000003, wide=False)
AARCH64: Final = Abi("SCMP_ARCH_AARCH64", "aarch64", 0xC00000B7)
ARM: Final = Abi("SCMP_ARCH_ARM", "arm", 0x40000028, wide=False)

ABIS_OF_MACHINE: Final[Mapping[str, tuple[Abi, ...]]] = {
    "x86_64": (X86_64, X86, X32),
    "i686": (X86,),
    "aarch64": (AARCH64, ARM),
    "armv7l": (ARM,),
    "armv8l": (ARM,),
}
"""What a kernel of this machine (`uname -m`) runs, its own first."""

# Calls that the i386 kernel also, or only, takes as the first argument of another one.
_SOCKET_CALLS: Final = (
    "socket", "bind", "connect", "listen", "accept", "getsockname", "getpeername", "socketpair", "send", "recv",
    "sendto", "recvfrom", "shutdown", "setsockopt", "getsockopt", "sendmsg", "recvmsg", "accept4", "recvmmsg",
    "sendmmsg",
)  # fmt: skip
MULTIPLEXED: Final[Mapping[str, tuple[str, int]]] = {
    **{name: ("socketcall", number) for number, name in enumerate(_SOCKET_CALLS, 1)},
    **{name: ("ipc", number) for number, name in enumerate(("semop", "semget", "semctl", "semtimedop"), 1)},
    **{name: ("ipc", number) for number, name in enumerate(("msgsnd", "msgrcv", "msgget", "msgctl"), 11)},
    **{name: ("ipc", number) for number, name in enumerate(("shmat", "shmdt", "shmget", "shmctl"), 21)},
}
"""On i386: the call that carries it, and its number there."""


@functools.cache
def _numbers(column: str, base: int) -> Mapping[str, int]:
    with _TABLE.open(encoding="ascii", newline="") as file:
        return {row["name"]: int(row[column]) + base for row in csv.DictReader(file) if row[column]}


@functools.cache
def int_arguments() -> Mapping[str, frozenset[int]]:
    """Indexes of the arguments that have 32 bits on every machine, by system call: the kernel drops the others."""
    with _INT_ARGUMENTS.open(encoding="ascii", newline="") as file:
        return {row["name"]: frozenset(map(int, row["arguments"].split())) for row in csv.DictReader(file)}
