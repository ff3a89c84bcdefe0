"""What a profile's JSON becomes, and which profiles are refused."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embedded.seccomp.interpreter import program_of, run
from trikubelet.embedded.seccomp import filters, profile
from trikubelet.embedded.seccomp.bpf import MOST_INSTRUCTIONS, assemble
from trikubelet.embedded.seccomp.profile import (
    ALLOW,
    ERRNO,
    FLAG_LOG,
    FLAG_SPEC_ALLOW,
    Condition,
    Profile,
    ProfileError,
    Rule,
    Situation,
    parse_profile,
)
from trikubelet.embedded.seccomp.syscalls import ABIS_OF_MACHINE, X86_64

if TYPE_CHECKING:
    from pathlib import Path

HERE = Situation("x86_64", (5, 10), frozenset({"CAP_CHOWN", "CAP_KILL"}))


def read(situation: Situation = HERE, **document: Any) -> Profile:
    found = parse_profile(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", **document}), situation)
    assert found is not None
    return found


def names(*rules: dict[str, Any], situation: Situation = HERE) -> list[str]:
    """Those of the rules that apply."""
    complete = [{"action": "SCMP_ACT_ALLOW", **rule} for rule in rules]
    return [name for rule in read(situation, syscalls=complete).rules for name in rule.names]


def test_a_profile_that_says_nothing_confines_nothing() -> None:
    assert parse_profile("{}", HERE) is None


def test_calls_of_before_names_were_lists_are_read_too() -> None:
    assert names({"name": "read"}, {"names": ["write", "close"]}) == ["read", "write", "close"]


def test_architectures_are_those_of_this_machine_among_what_is_listed() -> None:
    listed = ["SCMP_ARCH_ARM", "SCMP_ARCH_X86"]
    assert [abi.name for abi in read(architectures=listed).abis] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]
    there = attrs.evolve(HERE, machine="aarch64")
    assert [abi.name for abi in read(there, architectures=listed).abis] == ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]
    docker = [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
    ]
    assert [abi.name for abi in read(archMap=docker).abis] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32"]


def test_dockers_conditions_count() -> None:
    rules = [
        {"names": ["has"], "includes": {"caps": ["CAP_CHOWN", "CAP_KILL"]}},
        {"names": ["lacks"], "includes": {"caps": ["CAP_CHOWN", "CAP_BPF"]}},
        {"names": ["excluded"], "excludes": {"caps": ["CAP_KILL"]}},
        {"names": ["not excluded"], "excludes": {"caps": ["CAP_BPF"]}},
        {"names": ["here"], "includes": {"arches": ["amd64", "arm"]}},
        {"names": ["elsewhere"], "includes": {"arches": ["arm64"]}},
        {"names": ["not here"], "excludes": {"arches": ["amd64"]}},
        {"names": ["newer"], "includes": {"minKernel": "5.11"}},
        {"names": ["new enough"], "includes": {"minKernel": "5.9"}},
        {"names": ["older"], "excludes": {"minKernel": "4.8"}},
    ]
    assert names(*rules) == ["has", "not excluded", "here", "new enough"]
    arm = Situation("aarch64", (4, 4), frozenset())
    assert names(*rules, situation=arm) == ["excluded", "not excluded", "elsewhere", "not here", "older"]


def test_flags() -> None:
    assert read().flags == FLAG_SPEC_ALLOW  # as runc
    assert read(flags=[]).flags == 0
    assert read(flags=["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_TSYNC"]).flags == FLAG_LOG


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("[", "not JSON"),
        ("[]", r"the profile: expected an object, got \[\]"),
        ({"defaultAction": "ALLOW"}, "defaultAction: expected one of SCMP_ACT_ALLOW, "),
        ({"defaultAction": "SCMP_ACT_NOTIFY"}, "no agent to notify"),
        ({"listenerPath": "/run/x"}, "no agent to notify"),
        ({"architectures": ["SCMP_ARCH_Z80"]}, "architectures: unknown: SCMP_ARCH_Z80"),
        ({"flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}, "flags: expected some of"),
        ({"defaultErrnoRet": 5000}, "defaultErrnoRet: expected a number up to 4095"),
        ({"syscals": []}, "the profile: unknown: syscals"),
        ({"syscalls": {}}, "syscalls: expected a list"),
        ({"syscalls": [{"names": [], "action": "SCMP_ACT_LOG"}]}, r"syscalls\[0\]: names: expected names"),
        ({"syscalls": [{"names": [1], "action": "SCMP_ACT_LOG"}]}, "expected texts"),
        ({"syscalls": [{"names": ["x"], "action": "SCMP_ACT_LOG", "arg": []}]}, r"syscalls\[0\]: unknown: arg;"),
        ({"syscalls": [{"names": ["x"], "action": "SCMP_ACT_LOG", "args": [{"op": "=="}]}]}, "args: op: expected one"),
        (
            {"syscalls": [{"names": ["x"], "action": "SCMP_ACT_LOG", "args": [{"op": "SCMP_CMP_EQ", "index": 6}]}]},
            "args: index: expected a number up to 5, got 6",
        ),
        (
            {"syscalls": [{"names": ["x"], "action": "SCMP_ACT_LOG", "args": [{"op": "SCMP_CMP_EQ", "value": -1}]}]},
            "args: value: expected a number up to",
        ),
        (
            {"syscalls": [{"names": ["x"], "action": "SCMP_ACT_LOG", "includes": {"minKernel": "five"}}]},
            "minKernel: expected MAJOR.MINOR, got 'five'",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_refused(document: dict[str, Any] | str, problem: str) -> None:
    text = document if isinstance(document, str) else json.dumps({"defaultAction": "SCMP_ACT_ERRNO", **document})
    with pytest.raises(ProfileError, match=problem):
        parse_profile(text, HERE)


KEYS = sorted(
    (profile._TOP_KEYS | profile._RULE_KEYS | profile._ARGUMENT_KEYS | profile._FILTER_KEYS | profile._ARCH_MAP_KEYS)
    - {"listenerPath", "$schema", "comment"}
)
VALUES = [
    *(None, True, 0, -1, 5, 1 << 32, 1 << 70, 1.5, "", "x", "read", "5.10", "SCMP_ARCH_X86", "SCMP_CMP_GE"),
    *("SCMP_CMP_MASKED_EQ", "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SECCOMP_FILTER_FLAG_LOG", "clone", "socket"),
]
DOCUMENTS = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=30,
)


@given(DOCUMENTS, st.lists(DOCUMENTS, max_size=4))
def test_any_document_is_a_filter_or_an_error(document: Any, rules: list[Any]) -> None:
    for text in (json.dumps(document), json.dumps({"defaultAction": "SCMP_ACT_LOG", "syscalls": rules})):
        try:
            read_profile = parse_profile(text, HERE)
        except ProfileError:
            continue
        if read_profile is not None:
            program_of(assemble(read_profile))


def test_a_document_that_is_too_deep_is_an_error() -> None:
    with pytest.raises(ProfileError, match="not JSON"):
        parse_profile("[" * 100_000, HERE)


def test_a_machine_without_a_table_is_named() -> None:
    with pytest.raises(ProfileError, match="no table of system calls for sparc64"):
        read(attrs.evolve(HERE, machine="sparc64"))


def test_jumps_reach_across_long_programs_and_too_long_ones_are_refused() -> None:
    def long_profile(values: int) -> Profile:
        rules = [Rule(("clone", "socket"), ALLOW, (Condition(3, "GT", 7 * one),)) for one in range(values)]
        rules += [Rule(("read",), ALLOW, (Condition(1, "EQ", 7 * one),)) for one in range(values)]
        return Profile(ERRNO | 1, ABIS_OF_MACHINE["x86_64"], tuple(reversed(rules)), 0)

    program = program_of(assemble(long_profile(120)))
    assert len(program) > 10 * 255
    numbers = X86_64.numbers
    assert run(program, X86_64.audit, numbers["read"], [0, 7 * 119]) == ALLOW
    assert run(program, X86_64.audit, numbers["read"], [0, 7 * 119 + 1]) == ERRNO | 1
    assert run(program, X86_64.audit, numbers["socket"], [0, 0, 0, 1]) == ALLOW
    assert run(program, X86_64.audit, numbers["write"]) == ERRNO | 1
    with pytest.raises(ProfileError, match=f"the kernel takes {MOST_INSTRUCTIONS}"):
        assemble(long_profile(400))


def test_the_runtimes_default_is_compiled_once_for_a_set_of_capabilities() -> None:
    first, other = filters.runtime_default(["CAP_CHOWN"]), filters.runtime_default(["CAP_SYS_ADMIN"])
    assert first is not None
    assert filters.runtime_default(["CAP_CHOWN"]) is first
    assert first != other
    assert len(base64.b64decode(first["program"])) // 8 < 500


def test_a_profile_on_the_machine_is_read_anew_when_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    first = filters.from_file(str(file), [])
    file.write_text('{"defaultAction": "SCMP_ACT_LOG"}')
    assert filters.from_file(str(file), []) != first
    with pytest.raises(ProfileError, match=f"cannot load seccomp profile {tmp_path}/none.json: No such file"):
        filters.from_file(f"{tmp_path}/none.json", [])
    os.mkfifo(tmp_path / "pipe")
    for path in (f"{tmp_path}/pipe", str(tmp_path), "mine.json", ""):
        with pytest.raises(ProfileError, match="expected the absolute path of a file"):
            filters.from_file(path, [])
    file.write_text("x")
    with pytest.raises(ProfileError, match=f"seccomp profile {file}: not JSON"):
        filters.from_file(str(file), [])
