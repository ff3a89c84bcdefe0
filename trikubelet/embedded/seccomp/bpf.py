"""A profile as a classic BPF program.

    the ABI's audit number ──no section──▶ kill the thread, as libseccomp does
      └─ its section: binary search over ranges of system call numbers
           ├─ a range: one answer
           └─ a call with conditions: compared one after the other, 32 bits at a time

Of an argument that the kernel takes as an `int` only the low 32 bits are compared, as the kernel drops the others: else
`socket(1 << 32 | 40)` would pass where `socket(40)` is refused. libseccomp compares all 64.

What rules say of one call is read as libseccomp does: one without conditions replaces all others of that call, and
rules whose answer is the default are left out. Of several with conditions the first that holds counts.

As in runc, numbers beyond the largest that the profile knows are answered with ENOSYS unless it allows by default:
programs try new system calls and fall back to older ones, which EPERM would keep them from.

The program is put together from its end, so every jump knows how far it goes. A conditional jump reaches 255
instructions; beyond that it goes by way of an unconditional one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from trikubelet.embedded.seccomp.profile import ALLOW, ERRNO, KILL_THREAD, LOG, TRACE, Condition, Profile, ProfileError
from trikubelet.embedded.seccomp.syscalls import MULTIPLEXED, X32, X86, X86_64, Abi, int_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

LOAD: Final = 0x20
AND: Final = 0x54
JUMP: Final = 0x05
JUMP_EQUAL: Final = 0x15
JUMP_GREATER: Final = 0x25
JUMP_GREATER_EQUAL: Final = 0x35
JUMP_BITS_SET: Final = 0x45
RETURN: Final = 0x06

ENOSYS: Final = 38
MOST_INSTRUCTIONS: Final = 4096
"""The kernel's limit, BPF_MAXINSNS."""
_NUMBER_OFFSET: Final = 0
_AUDIT_OFFSET: Final = 4
_ARGUMENTS_OFFSET: Final = 16
_ALL_BITS: Final = (1 << 64) - 1
_LOW: Final = (1 << 32) - 1
_FARTHEST: Final = 255
_INSTRUCTION: Final = struct.Struct("=HBBI")

_Rules: TypeAlias = list[tuple[tuple[Condition, ...], int]]
"""What is said of one call: conditions and answer. One without conditions is alone."""


class _Program:
    """Instructions from the last to the first; a label is an instruction's place, counted from the end."""

    def __init__(self) -> None:
        self._reversed: list[tuple[int, int, int, int]] = []
        self._answers: dict[int, int] = {}

    def to_bytes(self) -> bytes:
        if len(self._reversed) > MOST_INSTRUCTIONS:
            raise ProfileError(
                f"its filter has {len(self._reversed)} instructions, and the kernel takes {MOST_INSTRUCTIONS}"
            )
        return b"".join(_INSTRUCTION.pack(*instruction) for instruction in reversed(self._reversed))

    def answer(self, action: int) -> int:
        label = self._answers.get(action)
        if label is None or self._distance(label) > _FARTHEST:
            label = self._answers[action] = self._add(RETURN, action)
        return label

    def load(self, offset: int, then: int) -> int:
        return self._before(then, LOAD, offset)

    def mask(self, bits: int, then: int) -> int:
        return self._before(then, AND, bits)

    def jump(self, test: int, value: int, yes: int, no: int) -> int:
        yes = self._near(yes, 1)
        no = self._near(no, 0)
        return self._add(test, value, self._distance(yes), self._distance(no))

    def _near(self, label: int, reserve: int) -> int:
        """The label, or that of a jump to it, within reach of an instruction that comes after `reserve` more."""
        if self._distance(label) + reserve <= _FARTHEST:
            return label
        return self._add(JUMP, self._distance(label))

    def _before(self, then: int, code: int, value: int) -> int:
        if self._distance(then):
            self._add(JUMP, self._distance(then))
        return self._add(code, value)

    def _distance(self, label: int) -> int:
        """From the next instruction to be added."""
        return len(self._reversed) - 1 - label

    def _add(self, code: int, value: int, yes: int = 0, no: int = 0) -> int:
        self._reversed.append((code, yes, no, value))
        return len(self._reversed) - 1


def assemble(profile: Profile) -> bytes:
    """The program, as the kernel's `struct sock_filter` array. Raises ProfileError for one that is too long."""
    program = _Program()
    sections: dict[int, int] = {}
    other = program.answer(KILL_THREAD)
    for abi in profile.abis:
        if abi is X32:
            continue
        label = _search(program, _ranges(profile, abi), profile.default, wide=abi.wide)
        if abi is X86_64:
            own = program.answer(KILL_THREAD)
            if X32 in profile.abis:
                own = _search(program, _ranges(profile, X32), profile.default, wide=X32.wide)
            label = program.jump(JUMP_BITS_SET, X32.base, own, label)
        sections[abi.audit] = program.load(_NUMBER_OFFSET, label)
    for audit, label in sections.items():
        other = program.jump(JUMP_EQUAL, audit, label, other)
    program.load(_AUDIT_OFFSET, other)
    return program.to_bytes()


def _ranges(profile: Profile, abi: Abi) -> list[tuple[int, _Rules]]:
    """Where each range of call numbers starts, and what is said of it (nothing: the default). They cover all."""
    calls = calls_of(profile, abi)
    starts: dict[int, _Rules] = {0: []}
    for number in sorted(calls):
        starts[number] = calls[number]
        starts.setdefault(number + 1, [])
    largest = max((_largest(rule.names, abi) for rule in profile.rules), default=0)
    if largest and profile.default not in (ALLOW, LOG) and profile.default & 0xFFFF0000 != TRACE:
        starts = {start: rules for start, rules in starts.items() if start <= largest}
        starts[largest + 1] = [((), ERRNO | ENOSYS)]
    ranges: list[tuple[int, _Rules]] = []
    for start, rules in sorted(starts.items()):
        if not ranges or ranges[-1][1] != rules:
            ranges.append((start, rules))
    return ranges


def calls_of(profile: Profile, abi: Abi) -> dict[int, _Rules]:
    """Rules by call number. Names that this ABI does not have are passed over, as everywhere."""
    calls: dict[int, _Rules] = {}
    numbers = abi.numbers
    for rule in profile.rules:
        if rule.action == profile.default:
            continue
        conditions = tuple(condition for condition in rule.conditions if _says_anything(condition, abi))
        for name in rule.names:
            if abi is X86 and name in MULTIPLEXED:
                carrier, number = MULTIPLEXED[name]
                others = tuple(condition for condition in conditions if condition.index)
                _add_rule(calls, numbers[carrier], (Condition(0, "EQ", number), *others), rule.action)
            if name in numbers:
                narrowed = _narrowed(name, conditions) if abi.wide else conditions
                if narrowed is not None:
                    _add_rule(calls, numbers[name], narrowed, rule.action)
    return calls


def _narrowed(name: str, conditions: tuple[Condition, ...]) -> tuple[Condition, ...] | None:
    """Conditions on what the kernel sees of a call's arguments; None if one of them can never hold."""
    narrow = int_arguments().get(name, frozenset())
    left: list[Condition] = []
    for condition in conditions:
        if condition.index not in narrow:
            left.append(condition)
            continue
        seen = condition.of_int()
        if seen is False:
            return None
        if seen is not True:
            left.append(seen)
    return tuple(left)


def _add_rule(calls: dict[int, _Rules], number: int, conditions: tuple[Condition, ...], action: int) -> None:
    rules = calls.setdefault(number, [])
    if rules and not rules[0][0]:
        return
    if not conditions:
        rules.clear()
    if (conditions, action) not in rules:
        rules.append((conditions, action))


def _largest(names: Sequence[str], abi: Abi) -> int:
    """The largest number among calls of these names; those that i386 multiplexes have none, as libseccomp counts."""
    known = (name for name in names if not (abi is X86 and name in MULTIPLEXED))
    return max((abi.numbers.get(name, 0) for name in known), default=0)


def _says_anything(condition: Condition, abi: Abi) -> bool:
    """Whether it can fail: an empty mask leaves nothing to compare."""
    bits = condition.value if abi.wide else condition.value & _LOW
    return condition.operator != "MASKED_EQ" or bool(bits)


def _search(program: _Program, ranges: Sequence[tuple[int, _Rules]], default: int, *, wide: bool) -> int:
    if len(ranges) == 1:
        return _decide(program, ranges[0][1], default, wide=wide)
    middle = len(ranges) // 2
    above = _search(program, ranges[middle:], default, wide=wide)
    below = _search(program, ranges[:middle], default, wide=wide)
    return program.jump(JUMP_GREATER_EQUAL, ranges[middle][0], above, below)


def _decide(program: _Program, rules: _Rules, default: int, *, wide: bool) -> int:
    if rules and not rules[0][0]:
        return program.answer(rules[0][1])
    label = program.answer(default)
    for conditions, action in reversed(rules):
        holds = program.answer(action)
        for condition in reversed(conditions):
            holds = _compare(program, condition, holds, label, wide=wide)
        label = holds
    return label


def _compare(program: _Program, condition: Condition, yes: int, no: int, *, wide: bool) -> int:
    """Jump to `yes` if it holds, else to `no`. Where arguments have 32 bits, only those are looked at."""
    wide = wide and not condition.is_int
    operator, value, bits = condition.operator, condition.value, _ALL_BITS
    if operator in ("NE", "LT", "LE"):
        operator = {"NE": "EQ", "LT": "GE", "LE": "GT"}[operator]
        yes, no = no, yes
    if operator == "MASKED_EQ":
        operator, bits, value = "EQ", condition.value, condition.value & condition.value_two
    low = _ARGUMENTS_OFFSET + 8 * condition.index
    test = {"EQ": JUMP_EQUAL, "GT": JUMP_GREATER, "GE": JUMP_GREATER_EQUAL}[operator]
    label = _compare_half(program, low, test, value & _LOW, bits & _LOW, yes, no)
    if not wide:
        return label
    if operator == "EQ":
        return _compare_half(program, low + 4, JUMP_EQUAL, value >> 32, bits >> 32, label, no)
    label = program.jump(JUMP_EQUAL, value >> 32, label, no)
    label = program.jump(JUMP_GREATER, value >> 32, yes, label)
    return program.load(low + 4, label)


def _compare_half(program: _Program, offset: int, test: int, value: int, bits: int, yes: int, no: int) -> int:
    if not bits:
        return yes
    label = program.jump(test, value, yes, no)
    if bits != _LOW:
        label = program.mask(bits, label)
    return program.load(offset, label)
