"""Of an `int` a filter looks at what the kernel looks at: bits above it change nothing."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import own_machine
from tests.embedded.seccomp.interpreter import program_of, run
from trikubelet.embedded.keeper import linux
from trikubelet.embedded.seccomp.bpf import assemble
from trikubelet.embedded.seccomp.filters import _runtime_default_text
from trikubelet.embedded.seccomp.profile import ALLOW, ERRNO, Situation, parse_profile
from trikubelet.embedded.seccomp.syscalls import ABIS_OF_MACHINE, int_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

REFUSED, HIGH = ERRNO | errno.EPERM, 1 << 32
X86_64 = ABIS_OF_MACHINE["x86_64"][0]
AF_VSOCK, READ_IMPLIES_EXEC = 40, 0x0400000
INTS = frozenset({
    "int", "unsigned", "unsigned int", "u32", "__u32", "__s32", "pid_t", "uid_t", "gid_t", "qid_t", "umode_t",
    "clockid_t", "timer_t", "mqd_t", "key_t", "key_serial_t", "rwf_t", "enum landlock_rule_type",
})  # fmt: skip
"""Types of 32 bits, or fewer, in the kernel's prototypes."""


def compiled(rules: list[dict[str, Any]], default: str) -> bytes:
    document = json.dumps({"defaultAction": default, "syscalls": rules})
    profile = parse_profile(document, Situation("x86_64", (6, 18), frozenset()))
    assert profile is not None
    return assemble(profile)


@pytest.mark.parametrize(
    ("operator", "value", "value_two", "holds"),
    [
        ("EQ", 40, 0, {40}),
        ("EQ", HIGH | 40, 0, set()),
        ("EQ", 0xFFFFFFFF, 0, {0xFFFFFFFF}),
        ("EQ", 0xFFFFFFFF_FFFFFFFF, 0, {0xFFFFFFFF}),
        ("NE", 40, 0, {0, 39, 41, 0x80000000, 0xFFFFFFFF}),
        ("NE", HIGH | 40, 0, {0, 39, 40, 41, 0x80000000, 0xFFFFFFFF}),
        ("LT", 40, 0, {0, 39}),
        ("LE", 40, 0, {0, 39, 40}),
        ("LT", HIGH, 0, {0, 39, 40, 41, 0x80000000, 0xFFFFFFFF}),
        ("GT", 40, 0, {41, 0x80000000, 0xFFFFFFFF}),
        ("GE", 40, 0, {40, 41, 0x80000000, 0xFFFFFFFF}),
        ("GE", HIGH, 0, set()),
        ("GE", 0xFFFFFFFF_80000000, 0, {0x80000000, 0xFFFFFFFF}),
        ("MASKED_EQ", 1, 1, {39, 41, 0xFFFFFFFF}),
        ("MASKED_EQ", HIGH | 1, 1, {39, 41, 0xFFFFFFFF}),
        ("MASKED_EQ", HIGH | 1, HIGH | 1, set()),
        ("MASKED_EQ", HIGH, 0, {0, 39, 40, 41, 0x80000000, 0xFFFFFFFF}),
        ("MASKED_EQ", 0xFFFFFFFF_FFFFFFFF, 0xFFFFFFFF_FFFFFFFF, {0xFFFFFFFF}),
        ("MASKED_EQ", 0x7FFFFFFF_FFFFFFFF, 0x7FFFFFFF_FFFFFF00, set()),
        ("MASKED_EQ", 0x7FFFFFFF_FFFFFF00, 0x7FFFFFFF_FFFFFF00, {0xFFFFFFFF}),
        ("MASKED_EQ", 0x7FFFFFFF_FFFFFFFF, 0x7FFFFFFF_FFFFFFFF, {0xFFFFFFFF}),
        ("MASKED_EQ", 0xF_80000000, 0xF_80000000, {0x80000000, 0xFFFFFFFF}),
        ("MASKED_EQ", 0x7FFFFFFF_FFFFFFFF, 0x3FFFFFFF_FFFFFFFF, set()),
    ],
)
def test_each_comparison_is_one_of_what_the_kernel_sees(
    operator: str, value: int, value_two: int, holds: set[int]
) -> None:
    one = {"index": 0, "value": value, "valueTwo": value_two, "op": f"SCMP_CMP_{operator}"}
    program = program_of(compiled([{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [one]}], "SCMP_ACT_ERRNO"))
    for argument in (0, 39, 40, 41, 0x80000000, 0xFFFFFFFF):
        for above in (0, HIGH, 0xFFFFFFFF << 32):
            answer = run(program, X86_64.audit, X86_64.numbers["socket"], [argument | above])
            assert answer == (ALLOW if argument in holds else REFUSED), (argument, above)


def test_arguments_of_64_bits_are_compared_as_a_whole() -> None:
    one = {"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}
    names = ["clone", "unshare", "ptrace", "mmap"]
    program = program_of(compiled([{"names": names, "action": "SCMP_ACT_ERRNO", "args": [one]}], "SCMP_ACT_ALLOW"))
    for name in names:
        assert run(program, X86_64.audit, X86_64.numbers[name], [40]) == REFUSED
        assert run(program, X86_64.audit, X86_64.numbers[name], [HIGH | 40]) == ALLOW


def errors_of(program: bytes, calls: Sequence[tuple[int, ...]]) -> list[int]:
    """Of system calls in a process with that filter; 0 where one works."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.filter_system_calls(program, 0)
        for number, *arguments in calls:
            failed = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments)) < 0
            os.write(writer, bytes([ctypes.get_errno() if failed else 0]))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        found = list(file.read())
    os.waitpid(pid, 0)
    return found


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_the_kernel_refuses_with_any_bits_above_what_it_refuses_without() -> None:
    profile = parse_profile(_runtime_default_text(), Situation("x86_64", (6, 18), frozenset()))
    assert profile is not None
    socket, personality = X86_64.numbers["socket"], X86_64.numbers["personality"]
    calls: list[tuple[int, ...]] = [(socket, above | AF_VSOCK, 1, 0) for above in (0, HIGH, 0xFFFFFFFF << 32)]
    calls += [(personality, above | READ_IMPLIES_EXEC) for above in (0, HIGH)]
    assert errors_of(assemble(profile), calls) == [errno.EPERM] * 5
    calls = [(socket, above | 1, 1, 0) for above in (0, HIGH)]
    calls += [(personality, above | 0xFFFFFFFF) for above in (0, HIGH, 0xFFFFFFFF << 32)]
    assert errors_of(assemble(profile), calls) == [0] * 5


def no_int_is_larger_in_this_kernel(_: Path) -> None:
    own_machine.run("mount", "-t", "tracefs", "none", "/mnt")
    events = Path("/mnt/events/syscalls")
    if not events.exists():
        return  # the kernel traces no system calls
    names = {"newstat": "stat", "newfstat": "fstat", "newlstat": "lstat", "newuname": "uname", "umount": "umount2"}
    checked = 0
    for event in events.glob("sys_enter_*"):
        name = event.name.removeprefix("sys_enter_")
        fields = re.findall(r"field:(.*) \w+;\toffset:(\d+);", (event / "format").read_text())
        types = [
            kind.removeprefix("const ") for kind, offset in fields if int(offset) >= 16 and "__data_loc" not in kind
        ]
        expected = {index for index, kind in enumerate(types) if kind in INTS}
        assert int_arguments().get(names.get(name, name), frozenset()) <= expected, (name, types)
        checked += len(expected)
    assert checked > 400


@pytest.mark.root
async def test_the_table_says_int_of_nothing_that_is_larger_in_this_kernel(tmp_path: Path) -> None:
    await own_machine.run_there(no_int_is_larger_in_this_kernel, tmp_path)
