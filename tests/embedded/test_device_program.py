"""The program that says which devices a container may use, run here as the kernel runs it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.keeper import device_program

KINDS = {"b": 1, "c": 2}
ACCESS = {"m": 1, "r": 2, "w": 4}
NUMBERS = st.sampled_from(["*", "0", "1", "7", "4095"])
RULES = st.builds(
    lambda kind, major, minor, access: f"{kind} {major}:{minor} {''.join(sorted(access))}",
    st.sampled_from("bc"),
    NUMBERS,
    NUMBERS,
    st.sets(st.sampled_from("rwm"), min_size=1),
)


def answer(program: bytes, kind: int, access: int, major: int, minor: int) -> int:
    """What the program returns; a small part of the kernel's interpreter."""
    context = struct.pack("=III", access << 16 | kind, major, minor)
    code = [
        (operation, registers & 15, registers >> 4, offset, value)
        for operation, registers, offset, value in struct.iter_unpack("<BBhi", program)
    ]
    registers, place = [0] * 11, 0
    while True:
        operation, target, source, offset, value = code[place]
        place += 1
        if operation == 0x61:
            (registers[target],) = struct.unpack_from("=I", context, offset)
        elif operation == 0xBC:
            registers[target] = registers[source]
        elif operation == 0xB7:
            registers[target] = value
        elif operation == 0x54:
            registers[target] &= value
        elif operation == 0x74:
            registers[target] >>= value
        elif operation == 0x55:
            assert offset >= 0, "a loop"
            place += offset if registers[target] != value else 0
        else:
            assert operation == 0x95
            return registers[0]


def is_allowed(rules: list[str], kind: str, access: set[str], numbers: tuple[int, int]) -> bool:
    """By the words of the rules: those for the same devices count together."""
    together: dict[str, set[str]] = {}
    for rule in rules:
        device, _, letters = rule.rpartition(" ")
        together.setdefault(device, set()).update(letters)
    for device, allowed in together.items():
        wanted_kind, _, wanted = device.partition(" ")
        matching = zip(wanted.split(":"), numbers, strict=True)
        if wanted_kind == kind and access <= allowed and all(each in ("*", str(number)) for each, number in matching):
            return True
    return False


@given(
    st.lists(RULES, max_size=6),
    st.sampled_from("bc"),
    st.sets(st.sampled_from("rwm"), min_size=1),
    st.tuples(st.sampled_from([0, 1, 7, 4095, 5]), st.sampled_from([0, 1, 7, 4095, 1048575])),
)
def test_it_allows_what_the_rules_say(rules: list[str], kind: str, access: set[str], numbers: tuple[int, int]) -> None:
    found = answer(device_program.program(rules), KINDS[kind], sum(ACCESS[each] for each in access), *numbers)
    assert found == is_allowed(rules, kind, access, numbers)


@pytest.mark.parametrize("count", [0, 1, 500])
def test_many_devices_are_one_program(count: int) -> None:
    rules = [f"b 8:{number} rw" for number in range(count)]
    program = device_program.program(rules)
    assert len(program) % 8 == 0
    assert [answer(program, 1, 2, 8, number) for number in (0, 499)] == [count > 0, count > 499]
