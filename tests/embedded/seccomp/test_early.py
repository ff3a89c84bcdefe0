"""Which filters let through what a process does between the namespaces of others and its exec."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.embedded.seccomp.interpreter import program_of, run
from trikubelet.embedded.seccomp import filters
from trikubelet.embedded.seccomp.bpf import assemble
from trikubelet.embedded.seccomp.early import EARLY_CALLS, can_be_loaded_early
from trikubelet.embedded.seccomp.profile import ALLOW, LOG, Situation, parse_profile


def rule(*names: str, action: str = "SCMP_ACT_ALLOW", **argument: Any) -> dict[str, Any]:
    return {"names": names, "action": action, "args": [argument] if argument else []}


EVERYTHING = rule(*{name for name, _ in EARLY_CALLS})
NAMESPACES: dict[str, Any] = {"index": 0, "value": 0x7E020000, "valueTwo": 0}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "i686", "armv7l"])
@pytest.mark.parametrize(
    ("default", "rules", "early"),
    [
        ("ALLOW", [], True),
        ("LOG", [], True),
        ("ALLOW", [rule("keyctl", action="SCMP_ACT_KILL_PROCESS")], True),
        ("ALLOW", [rule("capset", action="SCMP_ACT_ERRNO")], False),
        ("ALLOW", [rule("wait4", action="SCMP_ACT_LOG")], True),
        ("ALLOW", [rule("clone", action="SCMP_ACT_ERRNO", op="SCMP_CMP_NE", **NAMESPACES)], False),
        ("ALLOW", [rule("prctl", action="SCMP_ACT_ERRNO", op="SCMP_CMP_GT", index=0, value=47)], True),
        ("ALLOW", [rule("write", action="SCMP_ACT_ERRNO", op="SCMP_CMP_EQ", index=0, value=2)], False),
        ("KILL", [EVERYTHING], True),
        ("KILL", [], False),
        ("KILL", [{**EVERYTHING, "names": sorted({*EVERYTHING["names"]} - {"setsid"})}], False),
        (
            "KILL",
            [
                {**EVERYTHING, "names": sorted({*EVERYTHING["names"]} - {"clone"})},
                rule("clone", op="SCMP_CMP_MASKED_EQ", **NAMESPACES),
            ],
            True,
        ),
    ],
)
def test_a_filter_can_be_loaded_early_if_it_lets_through_what_follows(
    machine: str, default: str, rules: list[dict[str, Any]], early: bool
) -> None:
    document = {"defaultAction": f"SCMP_ACT_{default}", "syscalls": rules}
    profile = parse_profile(json.dumps(document), Situation(machine, (6, 1), frozenset()))
    assert profile is not None
    assert can_be_loaded_early(profile) is early
    if early:
        # What the program itself says of these calls.
        program, abi = program_of(assemble(profile)), profile.abis[0]
        for name, known in EARLY_CALLS:
            if name in abi.numbers:
                arguments = [known.get(index, 0) for index in range(6)]
                assert run(program, abi.audit, abi.numbers[name], arguments) in (ALLOW, LOG), name


@pytest.mark.parametrize("capabilities", [(), ("CAP_CHOWN", "CAP_SETUID"), ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE")])
def test_the_default_can(capabilities: tuple[str, ...]) -> None:
    default = filters.runtime_default(capabilities)
    assert default is not None
    assert default["early"] is True
