"""Runs a seccomp filter as the kernel does, and refuses what the kernel refuses."""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LOAD, AND, JUMP, EQUAL, GREATER, GREATER_EQUAL, BITS_SET, RETURN = 0x20, 0x54, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06

_TESTS: Final = {EQUAL: operator.eq, GREATER: operator.gt, GREATER_EQUAL: operator.ge, BITS_SET: operator.and_}

Program = list[tuple[int, int, int, int]]


def program_of(content: bytes) -> Program:
    """The instructions (code, jump if true, jump if false, value) of `struct sock_filter`s."""
    program = list(struct.iter_unpack("=HBBI", content))
    assert 0 < len(program) <= 4096
    for place, (code, yes, no, value) in enumerate(program):
        # Every jump stays within the program, and no path runs off its end.
        farthest = value if code == JUMP else max(yes, no) if code & 7 == 5 else 0
        assert code == RETURN or place + 1 + farthest < len(program)
        assert code != LOAD or (value < 64 and value % 4 == 0)
    return program


def run(program: Program, audit: int, number: int, arguments: Sequence[int] = ()) -> int:
    """The answer to one call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    words = struct.unpack("=16I", struct.pack("=IIQ6Q", number & 0xFFFFFFFF, audit, 0, *padded))
    place = accumulator = 0
    memory: dict[int, int] = {}
    while True:
        code, yes, no, value = program[place]
        place += 1
        if code in _TESTS:
            place += yes if _TESTS[code](accumulator, value) else no
        elif code == RETURN:
            return value
        elif code == LOAD:
            accumulator = words[value // 4]
        elif code == AND:
            accumulator &= value
        elif code == JUMP:
            place += value
        elif code == 0x02:
            memory[value] = accumulator
        else:
            assert code == 0x60
            accumulator = memory[value]
