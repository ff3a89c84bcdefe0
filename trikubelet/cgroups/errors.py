"""What can go wrong with a cgroup, as types that callers tell apart."""

from __future__ import annotations

import errno
from typing import Final

_NOT_ALLOWED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class CgroupError(Exception):
    """Something could not be done with a cgroup. `name` is its path in the hierarchies, `number` the kernel's errno, 0
    where the kernel did not refuse."""

    def __init__(self, name: str, problem: str, *, number: int = 0) -> None:
        super().__init__(f"cgroup {name}: {problem}")
        self.name = name
        self.problem = problem
        self.number = number

    @property
    def missing(self) -> bool:
        """Whether there is no such cgroup, or none with that file."""
        return self.number in (errno.ENOENT, errno.ENODEV)


class CgroupNotAllowedError(CgroupError):
    """This process may not write cgroups there: no right, or a hierarchy that is mounted read-only."""


class CgroupNameError(CgroupError, ValueError):
    """A name that cannot be a cgroup's: it would be the same as another one, or would lead elsewhere."""


class MemoryInUseError(CgroupError):
    """A memory limit below what is in use, and the kernel could not take enough of it back (cgroup v1: EBUSY)."""

    def __init__(self, name: str, *, limit: int, usage: int | None) -> None:
        used = "unknown" if usage is None else f"{usage} bytes"
        super().__init__(
            name, f"cannot limit memory to {limit} bytes, the usage is {used}: free some first", number=errno.EBUSY
        )
        self.limit = limit
        self.usage = usage


class CgroupBusyError(CgroupError):
    """Processes or sub-groups are left in a cgroup that was to go. `processes` are pids; 0 is one that this process
    cannot see, since it is of another pid namespace."""

    def __init__(self, name: str, problem: str, processes: tuple[int, ...] = ()) -> None:
        super().__init__(name, problem, number=errno.EBUSY)
        self.processes = processes


def kernel_error(name: str, action: str, error: OSError) -> CgroupError:
    """The kernel's refusal as a CgroupError; `action` says what was tried: `set limits`."""
    number = error.errno or 0
    kind = CgroupNotAllowedError if number in _NOT_ALLOWED else CgroupError
    where = f" ({error.filename})" if error.filename else ""
    return kind(name, f"could not {action}: {error.strerror or error}{where}", number=number)
