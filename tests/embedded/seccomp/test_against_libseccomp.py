"""The same profiles compiled here and by libseccomp: both answer every call, and every value near a limit, alike.

But for arguments that the kernel takes as an `int`: libseccomp compares bits of them that the kernel drops, so it is
asked about what the kernel sees.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.embedded.seccomp import libseccomp
from tests.embedded.seccomp.interpreter import program_of, run
from tests.examples import IS_NIGHT, examples
from trikubelet.embedded.keeper import capabilities
from trikubelet.embedded.seccomp.bpf import ENOSYS, assemble
from trikubelet.embedded.seccomp.filters import _runtime_default_text
from trikubelet.embedded.seccomp.profile import ALLOW, ERRNO, LOG, TRACE, Condition, Profile, Situation, parse_profile
from trikubelet.embedded.seccomp.syscalls import ABIS_OF_MACHINE, MULTIPLEXED, X32, X86, Abi, int_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

X86_ABIS = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
EDGES = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, 1 << 63, (1 << 64) - 1)
BEYOND = 600


def comparable(profile: Profile) -> Profile:
    """The profile with those names only that the installed libseccomp, which is older than our table, knows as well."""
    rules = [attrs.evolve(rule, names=tuple(filter(is_known_to_both, rule.names))) for rule in profile.rules]
    return attrs.evolve(profile, rules=tuple(rule for rule in rules if rule.names))


def is_known_to_both(name: str) -> bool:
    # The number of the last is not in all of its tables.
    return libseccomp.knows(name) and name != "map_shadow_stack"


def test_both_know_the_same_numbers() -> None:
    for abi in {abi for family in ABIS_OF_MACHINE.values() for abi in family}:
        for name, number in abi.numbers.items():
            if is_known_to_both(name) and not (abi is X86 and name in MULTIPLEXED):
                assert libseccomp.number(abi, name) == number, (abi.name, name)


def assert_same(profile: Profile) -> None:
    """The numbers of every ABI, with every argument that the profile looks at below, at and above each limit."""
    ours, theirs = program_of(assemble(profile)), program_of(libseccomp.compiled(with_ints(profile)))
    for abi in profile.abis:
        largest = max((libseccomp.number(abi, name) for rule in profile.rules for name in rule.names), default=0)
        stubbed = largest > 0 and profile.default & 0xFFFF0000 not in (ALLOW, LOG, TRACE)
        limits = limits_by_number(profile, abi)
        names = {number: name for name, number in abi.numbers.items()}
        named = {abi.numbers[name] for rule in profile.rules for name in rule.names if name in abi.numbers}
        for number in numbers_to_try(abi, named | limits.keys()):
            for arguments in combinations(limits.get(number, {})):
                expected = run(theirs, abi.audit, number, seen(names.get(number, ""), arguments))
                if stubbed and number > largest:
                    expected = ERRNO | ENOSYS
                found = run(ours, abi.audit, number, arguments)
                assert found == expected, f"{abi.name} {number} {arguments}: {found:#x}, expected {expected:#x}"
    for audit in (0, 0xC0000015, 0x40000003, 0xC000003E, 0x40000028, 0xC00000B7):
        if audit not in {abi.audit for abi in profile.abis}:
            assert run(ours, audit, 1) == run(theirs, audit, 1)


def seen(name: str, arguments: tuple[int, ...]) -> list[int]:
    """What the kernel looks at."""
    ints = int_arguments().get(name, frozenset())
    return [value & 0xFFFFFFFF if index in ints else value for index, value in enumerate(arguments)]


def with_ints(profile: Profile) -> Profile:
    """The profile with negative values of 32 bits where the argument has no more."""
    return attrs.evolve(
        profile,
        rules=tuple(
            attrs.evolve(rule, names=(name,), conditions=tuple(with_int(name, one) for one in rule.conditions))
            for rule in profile.rules
            for name in rule.names
        ),
    )


def with_int(name: str, condition: Condition) -> Condition:
    if condition.index not in int_arguments().get(name, frozenset()):
        return condition
    values = condition.value, condition.value_two
    value, value_two = (value & 0xFFFFFFFF if value >= (1 << 64) - (1 << 31) else value for value in values)
    if condition.operator == "MASKED_EQ" and condition.value >> 32 == 0xFFFFFFFF:
        value = condition.value & 0xFFFFFFFF if value_two != condition.value_two else condition.value
    return attrs.evolve(condition, value=value, value_two=value_two)


def numbers_to_try(abi: Abi, named: AbstractSet[int]) -> Iterator[int]:
    """By day every fourth number of those that no rule names."""
    for number in range(abi.base, abi.base + BEYOND):
        if IS_NIGHT or number in named or number % 4 == 0:
            yield number
    yield from range(abi.base + 0xF0000, abi.base + 0xF0010)
    yield abi.base + 0x3FFFFFFF


def limits_by_number(profile: Profile, abi: Abi) -> dict[int, dict[int, set[int]]]:
    """Values near the limits of each call's conditions, by number and index of the argument."""
    limits: dict[int, dict[int, set[int]]] = {}
    for rule in profile.rules:
        for name in rule.names:
            called = [name]
            if abi is X86 and name in MULTIPLEXED:
                carrier, selector = MULTIPLEXED[name]
                limits.setdefault(abi.numbers[carrier], {}).setdefault(0, set()).update((0, selector - 1, selector))
                called.append(carrier)
            for number in (abi.numbers[one] for one in called if one in abi.numbers):
                for condition in rule.conditions:
                    values = limits.setdefault(number, {}).setdefault(condition.index, set())
                    for limit in (condition.value, condition.value_two, condition.value & condition.value_two):
                        near = {limit - 1, limit, limit + 1, limit + (1 << 32), limit & 0xFFFFFFFF, limit >> 32}
                        values |= {value & ((1 << 64) - 1) for value in near}
    # Where arguments have 32 bits, the kernel shows no others.
    bits = (1 << (64 if abi.wide else 32)) - 1
    return {
        number: {index: {value & bits for value in (*values, *EDGES)} for index, values in arguments.items()}
        for number, arguments in limits.items()
    }


def combinations(values: dict[int, set[int]]) -> Iterator[tuple[int, ...]]:
    for combination in itertools.product(*(sorted(values[index]) for index in sorted(values))):
        arguments = [0] * 6
        for index, value in zip(sorted(values), combination, strict=True):
            arguments[index] = value
        yield tuple(arguments)


def read(document: dict[str, Any] | bytes, machine: str = "x86_64", bounding: int = 0) -> Profile:
    text = document if isinstance(document, bytes) else json.dumps(document)
    names = frozenset(f"CAP_{name}" for name in capabilities.NAMES if bounding & capabilities.BITS[name])
    profile = parse_profile(text, Situation(machine, (6, 18), names))
    assert profile is not None
    return profile


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    "bounding",
    [0, capabilities.DEFAULT, capabilities.ALL, capabilities.DEFAULT | capabilities.BITS["SYS_ADMIN"]],
    ids=["none", "default", "all", "admin"],
)
def test_the_runtimes_default(machine: str, bounding: int) -> None:
    assert_same(comparable(read(_runtime_default_text(), machine, bounding)))


def test_each_capability_opens_in_the_runtimes_default_what_it_opens_with_libseccomp() -> None:
    without = read(_runtime_default_text())
    for name in capabilities.NAMES:
        profile = read(_runtime_default_text(), bounding=capabilities.BITS[name])
        if profile != without:
            assert_same(attrs.evolve(comparable(profile), abis=ABIS_OF_MACHINE["x86_64"][:1]))


@pytest.mark.parametrize("operator", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize("value", [0, 1, 39, 0xFFFFFFFF, 1 << 32, 0x5_0000_0005, 1 << 63, (1 << 64) - 1])
def test_each_comparison_with_each_kind_of_value(operator: str, value: int) -> None:
    one = {"index": 2, "value": value, "op": f"SCMP_CMP_{operator}"}
    for default, action in (("SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"), ("SCMP_ACT_ALLOW", "SCMP_ACT_KILL_PROCESS")):
        rules = [{"names": ["fcntl", "socket", "shmget"], "action": action, "args": [one]}]
        assert_same(read({"defaultAction": default, "architectures": X86_ABIS, "syscalls": rules}))


@pytest.mark.parametrize("mask", [0, 1, 0x7E020000, 0xFFFFFFFF, 0xF_0000_0000, 0x1_0000_0001, (1 << 64) - 1])
@pytest.mark.parametrize("rest", [0, 1, 0x7E020000, 0x1_0000_0001])
def test_masks(mask: int, rest: int) -> None:
    one = {"index": 0, "value": mask, "valueTwo": rest, "op": "SCMP_CMP_MASKED_EQ"}
    rules = [{"names": ["clone", "personality"], "action": "SCMP_ACT_ALLOW", "args": [one]}]
    assert_same(read({"defaultAction": "SCMP_ACT_ERRNO", "architectures": X86_ABIS, "syscalls": rules}))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SCMP_ACT_ALLOW", ALLOW),
        ("SCMP_ACT_LOG", LOG),
        ("SCMP_ACT_TRACE", TRACE | 7),
        ("SCMP_ACT_ERRNO", ERRNO | 7),
        ("SCMP_ACT_TRAP", 0x30000),
        ("SCMP_ACT_KILL", 0),
        ("SCMP_ACT_KILL_THREAD", 0),
        ("SCMP_ACT_KILL_PROCESS", 0x80000000),
    ],
)
def test_every_answer_by_default_and_by_rule(name: str, expected: int) -> None:
    rules = [{"names": ["getpid", "socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99}]
    profile = read({"defaultAction": name, "defaultErrnoRet": 7, "architectures": X86_ABIS, "syscalls": rules})
    assert profile.default == expected
    assert_same(profile)
    rules = [{"names": ["getpid", "socket"], "action": name, "errnoRet": 7}]
    assert_same(read({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 99, "syscalls": rules}))


def test_a_rule_without_conditions_wins_whatever_its_place() -> None:
    narrow = {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"}]}
    wide = {"names": ["socket"], "action": "SCMP_ACT_LOG"}
    other = {"names": ["socket"], "action": "SCMP_ACT_TRAP"}
    for rules in itertools.permutations((narrow, wide, other)):
        # Not on i386: there libseccomp refuses such rules, since it cannot look at the arguments of `socketcall`.
        abis = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"]
        assert_same(read({"defaultAction": "SCMP_ACT_ALLOW", "architectures": abis, "syscalls": rules}))


def test_conditions_on_one_argument_are_alternatives() -> None:
    conditions = [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"} for value in (3, 9, 1 << 40)]
    rules = [{"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": conditions}]
    assert_same(read({"defaultAction": "SCMP_ACT_ERRNO", "architectures": X86_ABIS, "syscalls": rules}))


def test_without_architectures_only_the_machines_own_calls_are_known() -> None:
    profile = read({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]})
    assert profile.abis == ABIS_OF_MACHINE["x86_64"][:1]
    assert_same(profile)
    program = program_of(assemble(profile))
    assert run(program, X32.audit, X32.base) == 0


def test_random_profiles() -> None:
    random_numbers = random.Random(18)
    names = sorted(name for name in ABIS_OF_MACHINE["x86_64"][0].numbers if is_known_to_both(name))
    for _ in range(examples(25)):
        assert_same(read(random_profile(random_numbers, names)))


def random_profile(chance: random.Random, names: list[str]) -> dict[str, Any]:
    """Any calls, each in one rule with conditions at most: of several, libseccomp's order is its own."""
    actions = ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_LOG"]
    rest = chance.sample(names, chance.randrange(1, 120))
    rules: list[dict[str, Any]] = []
    while rest:
        size = chance.choice([1, 2, 5, 20])
        taken, rest = rest[:size], rest[size:]
        rule: dict[str, Any] = {"names": taken, "action": chance.choice(actions)}
        if size < 5 and not set(taken) & {"socketcall", "ipc"} and chance.random() < 0.2:
            rule["args"] = [
                {
                    "index": index,
                    "value": chance.choice([*EDGES[:-1], 5, 1 << 20]),
                    "valueTwo": chance.choice([0, 1, 1 << 32]),
                    "op": f"SCMP_CMP_{chance.choice(['EQ', 'NE', 'LT', 'LE', 'GT', 'GE', 'MASKED_EQ'])}",
                }
                for index in chance.sample(range(6), chance.randrange(1, 3))
            ]
        rules.append(rule)
    return {"defaultAction": chance.choice(actions), "architectures": X86_ABIS, "syscalls": rules}
