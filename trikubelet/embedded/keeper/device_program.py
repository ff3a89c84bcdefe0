"""Which devices a container may use, on cgroup v2: a program that the kernel asks before it opens or makes one.

Rules are those of v1's files: "c 1:3 rwm", with * for any number. What none of them allows is denied (EPERM). The
program is attached to the container's group, and counts for all groups below; those above may deny more.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from trikubelet.embedded.keeper.linux import bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE = 15
_ATTACH_CGROUP_DEVICE = 6
_ALLOW_MULTI = 2
"""Groups below may have programs of their own, as systemd's and other runtimes' do."""
_KINDS = {"b": 1, "c": 2}
_ACCESS = {"m": 1, "r": 2, "w": 4}
_ALL = 7
# Registers: what the kernel hands over, what is answered, and what is read of the former.
_ANSWER, _CONTEXT, _KIND, _WANTED, _MAJOR, _MINOR, _SCRATCH = range(7)
_LOAD, _COPY, _SET, _AND, _SHIFT, _JUMP_UNLESS, _EXIT = 0x61, 0xBC, 0xB7, 0x54, 0x74, 0x55, 0x95


def program(rules: Iterable[str]) -> bytes:
    """The instructions. What is handed over are three words: access << 16 | kind, major, minor."""
    allowed: dict[tuple[str, str, str], int] = {}
    for rule in rules:
        kind, numbers, access = rule.split()
        major, _, minor = numbers.partition(":")
        bits = sum(_ACCESS[letter] for letter in access)
        allowed[kind, major, minor] = allowed.get((kind, major, minor), 0) | bits
    code = [
        _instruction(_LOAD, _KIND, _CONTEXT, offset=0),
        _instruction(_LOAD, _MAJOR, _CONTEXT, offset=4),
        _instruction(_LOAD, _MINOR, _CONTEXT, offset=8),
        _instruction(_COPY, _WANTED, _KIND),
        _instruction(_SHIFT, _WANTED, value=16),
        _instruction(_AND, _KIND, value=0xFFFF),
    ]
    for (kind, major, minor), bits in allowed.items():
        code += _rule(_KINDS[kind], major, minor, bits)
    return b"".join([*code, _instruction(_SET, _ANSWER, value=0), _instruction(_EXIT)])


def _rule(kind: int, major: str, minor: str, allowed: int) -> list[bytes]:
    """Allow it, or go on with the next one."""
    answer = [_instruction(_SET, _ANSWER, value=1), _instruction(_EXIT)]
    tests: list[tuple[list[bytes], int, int]] = [([], _KIND, kind)]
    if allowed != _ALL:
        forbidden = [
            _instruction(_COPY, _SCRATCH, _WANTED),
            _instruction(_AND, _SCRATCH, value=_ALL & ~allowed),
        ]
        tests.append((forbidden, _SCRATCH, 0))
    tests += [([], register, int(text)) for register, text in ((_MAJOR, major), (_MINOR, minor)) if text != "*"]
    code = answer
    for before, register, value in reversed(tests):
        code = [*before, _instruction(_JUMP_UNLESS, register, offset=len(code), value=value), *code]
    return code


def _instruction(operation: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    registers = target | source << 4 if sys.byteorder == "little" else target << 4 | source
    return struct.pack("=BBhi", operation, registers, offset, value)


class DevicePrograms:
    """The programs of one keeper's containers: one for those that have the usual devices alone."""

    def __init__(self, always: Iterable[str], folder: str) -> None:
        """`always`: rules for what every container has. In a group at `folder`, which is made for that and goes again,
        it is found out whether the kernel takes programs from this process. Raises OSError if it does not."""
        self._always = tuple(always)
        self._usual = _load(self._always)
        try:
            os.makedirs(folder, exist_ok=True)
            _attach(folder, self._usual)
            os.rmdir(folder)
        except OSError:
            os.close(self._usual)
            raise

    def confine(self, folder: str, devices: list[str]) -> None:
        """The processes of a group to these devices, besides what every container has. Raises OSError."""
        if not devices:
            _attach(folder, self._usual)
            return
        loaded = _load((*self._always, *devices))
        try:
            _attach(folder, loaded)
        finally:
            os.close(loaded)


def _load(rules: Iterable[str]) -> int:
    """A descriptor of a program. Takes CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN. Raises OSError."""
    code = program(rules)
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    request = struct.pack(
        "=IIQQ24x", _TYPE_CGROUP_DEVICE, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence)
    )
    return bpf(_PROG_LOAD, request, "load a program for devices")


def _attach(folder: str, loaded: int) -> None:
    """To a group, which keeps it as long as it is there. Raises OSError."""
    group = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        request = struct.pack("=IIII", group, loaded, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI)
        bpf(_PROG_ATTACH, request, "attach a program for devices")
    finally:
        os.close(group)
