"""Whether a filter can be loaded before a process has become the container.

In a PID namespace with others a process must never have more rights than its container: a neighbour with SYS_PTRACE
could take it over. Loading a filter takes CAP_SYS_ADMIN (or no_new_privs), so it is loaded outside of that namespace,
and then lets through what is left to be done until the exec: these calls, of `keeper/child.py`, `keeper/reaper.py`, the
reaper's program and the interpreter. Where a clock cannot be read without the kernel, as on some virtual machines, the
interpreter's look at it is one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.embedded.seccomp.bpf import calls_of
from trikubelet.embedded.seccomp.profile import ALLOW, LOG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.embedded.seccomp.profile import Condition, Profile

_CLONE_PARENT_AND_SETTID, _SIGCHLD = 0x108000, 17
_TIOCSCTTY = 0x540E
_PLAIN: Final = (
    "brk", "capset", "clock_gettime", "clock_gettime64", "close", "close_range", "dup2", "dup3", "execve",
    "execveat", "exit_group", "futex", "getpid", "getppid", "madvise", "mmap", "mmap2", "mremap", "munmap",
    "openat", "prlimit64", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "setsid", "wait4", "write",
)  # fmt: skip
_WITH_ARGUMENTS: Final[Sequence[tuple[str, Mapping[int, int]]]] = (
    ("clone", {0: _CLONE_PARENT_AND_SETTID}),
    ("clone", {0: _SIGCHLD}),
    ("ioctl", {1: _TIOCSCTTY}),
    *(("prctl", {0: option}) for option in (1, 4, 36, 38, 47)),
)
EARLY_CALLS: Final = (*((name, {}) for name in _PLAIN), *_WITH_ARGUMENTS)
"""Names, and what is known of the arguments. Those that an ABI does not have are not made there."""


def can_be_loaded_early(profile: Profile) -> bool:
    """Whether the filter lets all of them through, whatever their other arguments are."""
    rules, numbers = calls_of(profile, profile.abis[0]), profile.abis[0].numbers
    default = profile.default in (ALLOW, LOG)
    return all(
        _lets_through(rules.get(numbers[name], []), known, default=default)
        for name, known in EARLY_CALLS
        if name in numbers
    )


def _lets_through(
    rules: Sequence[tuple[tuple[Condition, ...], int]], known: Mapping[int, int], *, default: bool
) -> bool:
    for conditions, action in rules:
        decided = [condition for condition in conditions if condition.index in known]
        if not all(_holds(condition, known[condition.index]) for condition in decided):
            continue
        if action not in (ALLOW, LOG):
            return False
        if len(decided) == len(conditions):
            return True
    return default


def _holds(condition: Condition, argument: int) -> bool:
    value = condition.value
    return {
        "EQ": argument == value,
        "NE": argument != value,
        "LT": argument < value,
        "LE": argument <= value,
        "GT": argument > value,
        "GE": argument >= value,
        "MASKED_EQ": argument & value == value & condition.value_two,
    }[condition.operator]
