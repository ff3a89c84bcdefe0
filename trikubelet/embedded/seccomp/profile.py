"""Seccomp profiles: what a JSON document says, as rules for one container on one machine.

Two formats are read. OCI's (`linux.seccomp` of the runtime specification) is what Kubernetes users write for
`Localhost`. Docker's adds sub-architectures (`archMap`) and conditions (`includes`, `excludes`: capabilities,
architectures, the kernel's version); containerd ignores those and so allows too much, here they count.

A key that is not known is an error: a misspelled condition would otherwise widen a rule in silence.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.embedded.seccomp.syscalls import ABIS_OF_MACHINE, Abi
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

ALLOW: Final = 0x7FFF0000
LOG: Final = 0x7FFC0000
TRACE: Final = 0x7FF00000
ERRNO: Final = 0x00050000
TRAP: Final = 0x00030000
KILL_THREAD: Final = 0x00000000
KILL_PROCESS: Final = 0x80000000
"""What a filter answers; the low 16 bits of ERRNO and TRACE carry a number."""

EPERM: Final = 1
FLAG_LOG: Final = 1 << 1
FLAG_SPEC_ALLOW: Final = 1 << 2

_ACTIONS: Final = {
    "SCMP_ACT_ALLOW": ALLOW,
    "SCMP_ACT_LOG": LOG,
    "SCMP_ACT_TRACE": TRACE,
    "SCMP_ACT_ERRNO": ERRNO,
    "SCMP_ACT_TRAP": TRAP,
    "SCMP_ACT_KILL": KILL_THREAD,
    "SCMP_ACT_KILL_THREAD": KILL_THREAD,
    "SCMP_ACT_KILL_PROCESS": KILL_PROCESS,
}
_OPERATORS: Final = frozenset(f"SCMP_CMP_{name}" for name in ("EQ", "NE", "LT", "LE", "GT", "GE", "MASKED_EQ"))
_FLAGS: Final = {
    # Threads are in step anyway: the filter is loaded before the program exists.
    "SECCOMP_FILTER_FLAG_TSYNC": 0,
    "SECCOMP_FILTER_FLAG_LOG": FLAG_LOG,
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW": FLAG_SPEC_ALLOW,
}
_ARCHITECTURES: Final = re.compile(
    "SCMP_ARCH_(X86|X86_64|X32|ARM|AARCH64|MIPS|MIPS64|MIPS64N32|MIPSEL|MIPSEL64|MIPSEL64N32|PPC|PPC64|PPC64LE|"
    "S390|S390X|PARISC|PARISC64|RISCV64|LOONGARCH64|M68K|SH|SHEB)"
)
_GO_NAMES: Final = {"x86_64": "amd64", "i686": "386", "aarch64": "arm64", "armv7l": "arm", "armv8l": "arm"}
_TOP_KEYS: Final = frozenset({
    "$schema", "comment", "defaultAction", "defaultErrnoRet", "architectures", "archMap", "flags", "listenerPath",
    "listenerMetadata", "syscalls",
})  # fmt: skip
_RULE_KEYS: Final = frozenset({"comment", "name", "names", "action", "errnoRet", "args", "includes", "excludes"})
_ARGUMENT_KEYS: Final = frozenset({"index", "value", "valueTwo", "op"})
_FILTER_KEYS: Final = frozenset({"caps", "arches", "minKernel"})
_ARCH_MAP_KEYS: Final = frozenset({"architecture", "subArchitectures"})
_MOST_ARGUMENTS: Final = 6
_LARGEST_ERRNO: Final = 4095
_LARGEST_VALUE: Final = 2**64 - 1
_LARGEST_INT: Final = 2**32 - 1
_SIGN: Final = 2**31
_SMALLEST_NEGATIVE: Final = 2**64 - 2**31


class ProfileError(Exception):
    """A profile that cannot be read or carried out. The text says where in it and why."""


def _as_int(value: int) -> int:
    """Without the sign's extension to 64 bits."""
    return value & _LARGEST_INT if value >= _SMALLEST_NEGATIVE else value


@frozen
class Condition:
    """One comparison of an argument. For MASKED_EQ `value` is the mask, and `value_two` what it leaves."""

    index: int
    operator: str
    value: int
    value_two: int = 0
    is_int: bool = False
    """Whether the values have 32 bits, and no more of the argument is compared."""

    def of_int(self) -> Condition | bool:
        """The same of an argument that the kernel takes as an `int`, or whether it holds for each of those.

        A negative value may be written with 32 or 64 bits, of which a mask leaves fewer. No `int` has any other value
        that is larger than 32 bits.
        """
        if self.operator == "MASKED_EQ":
            mask, rest = self.value & _LARGEST_INT, self.value & self.value_two
            if rest & _SIGN and rest >> 32 == self.value >> 32:
                rest &= _LARGEST_INT
            if rest > _LARGEST_INT or not mask:
                return rest <= _LARGEST_INT
            return attrs.evolve(self, value=mask, value_two=rest, is_int=True)
        value = _as_int(self.value)
        if value > _LARGEST_INT:
            return self.operator in ("NE", "LT", "LE")
        return attrs.evolve(self, value=value, is_int=True)


@frozen
class Rule:
    """System calls by name, the conditions that must all hold, and the answer."""

    names: tuple[str, ...]
    action: int
    conditions: tuple[Condition, ...] = ()


@frozen
class Profile:
    """What a filter is made of. `abis`: those it knows, the machine's own first; calls of others kill the thread."""

    default: int
    abis: tuple[Abi, ...]
    rules: tuple[Rule, ...]
    flags: int


@frozen
class Situation:
    """What the conditions of a Docker profile are about."""

    machine: str
    """As `uname -m` says."""
    kernel: tuple[int, int]
    capabilities: frozenset[str]
    """The bounding set, as `CAP_…`."""


def parse_profile(text: str | bytes, situation: Situation) -> Profile | None:
    """The profile of a document; None for one that says nothing at all, which confines nothing. Raises ProfileError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"not JSON: {error}") from None
    top = _object(document, "the profile", _TOP_KEYS)
    if not top.get("defaultAction") and not top.get("syscalls"):
        return None
    if top.get("listenerPath") or top.get("listenerMetadata"):
        raise ProfileError("listenerPath: the embedded runtime has no agent to notify")
    flags = top.get("flags")
    return Profile(
        default=_action(top, "defaultAction", "defaultErrnoRet", ""),
        abis=_abis(top, situation.machine),
        rules=tuple(_rules(_list(top, "syscalls", ""), situation)),
        flags=FLAG_SPEC_ALLOW if flags is None else sum(_flag(flag) for flag in set(_strings(top, "flags", ""))),
    )


def _abis(top: dict[str, Any], machine: str) -> tuple[Abi, ...]:
    family = ABIS_OF_MACHINE.get(machine)
    if family is None:
        raise ProfileError(f"no table of system calls for {machine}: expected one of {', '.join(ABIS_OF_MACHINE)}")
    wanted = set(_strings(top, "architectures", ""))
    for number, entry in enumerate(_list(top, "archMap", "")):
        where = f"archMap[{number}]: "
        entry = _object(entry, where, _ARCH_MAP_KEYS)
        if entry.get("architecture") == family[0].name:
            wanted.update(_strings(entry, "subArchitectures", where))
    unknown = [name for name in wanted if not _ARCHITECTURES.fullmatch(name)]
    if unknown:
        raise ProfileError(f"architectures: unknown: {', '.join(sorted(unknown))}")
    # Its own counts as named, as with libseccomp. Those of other machines do not occur here.
    return (family[0], *(abi for abi in family[1:] if abi.name in wanted))


def _rules(entries: list[Any], situation: Situation) -> Iterable[Rule]:
    for number, entry in enumerate(entries):
        where = f"syscalls[{number}]: "
        entry = _object(entry, where, _RULE_KEYS)
        names = _strings(entry, "names", where)
        if entry.get("name"):
            names = [str(entry["name"]), *names]
        if not names or not all(names):
            raise ProfileError(f"{where}names: expected names of system calls, got {names}")
        action = _action(entry, "action", "errnoRet", where)
        conditions = [_condition(one, f"{where}args: ") for one in _list(entry, "args", where)]
        if not _applies(entry, situation, where):
            continue
        if len({condition.index for condition in conditions}) < len(conditions):
            # As runc: several conditions on one argument are alternatives, each a rule of its own.
            for condition in conditions:
                yield Rule(tuple(names), action, (condition,))
        else:
            yield Rule(tuple(names), action, tuple(conditions))


def _applies(entry: dict[str, Any], situation: Situation, where: str) -> bool:
    """Docker's conditions: every capability that is included, none that is excluded, and so on."""
    includes = _object(entry.get("includes") or {}, f"{where}includes", _FILTER_KEYS)
    excludes = _object(entry.get("excludes") or {}, f"{where}excludes", _FILTER_KEYS)
    machine = _GO_NAMES.get(situation.machine, situation.machine)
    arches = _strings(includes, "arches", where)
    return (
        all(name in situation.capabilities for name in _strings(includes, "caps", where))
        and not any(name in situation.capabilities for name in _strings(excludes, "caps", where))
        and (not arches or machine in arches)
        and machine not in _strings(excludes, "arches", where)
        and situation.kernel >= (_kernel(includes, where) or (0, 0))
        and situation.kernel < (_kernel(excludes, where) or (1 << 32, 0))
    )


def _kernel(conditions: dict[str, Any], where: str) -> tuple[int, int] | None:
    version = conditions.get("minKernel")
    if not version:
        return None
    try:
        major, minor = (int(part) for part in str(version).split("."))
    except ValueError:
        raise ProfileError(f"{where}minKernel: expected MAJOR.MINOR, got {version!r}") from None
    return major, minor


def _condition(entry: Any, where: str) -> Condition:
    entry = _object(entry, where, _ARGUMENT_KEYS)
    operator = entry.get("op")
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise ProfileError(f"{where}op: expected one of {', '.join(sorted(_OPERATORS))}, got {operator!r}")
    return Condition(
        index=_number(entry, "index", _MOST_ARGUMENTS - 1, where),
        operator=operator.removeprefix("SCMP_CMP_"),
        value=_number(entry, "value", _LARGEST_VALUE, where),
        value_two=_number(entry, "valueTwo", _LARGEST_VALUE, where),
    )


def _action(entry: dict[str, Any], key: str, number_key: str, where: str) -> int:
    name = entry.get(key)
    if name == "SCMP_ACT_NOTIFY":
        raise ProfileError(f"{where}{key}: SCMP_ACT_NOTIFY: the embedded runtime has no agent to notify")
    if not isinstance(name, str) or name not in _ACTIONS:
        raise ProfileError(f"{where}{key}: expected one of {', '.join(_ACTIONS)}, got {name!r}")
    action = _ACTIONS[name]
    if action not in (ERRNO, TRACE):
        return action
    return action | (EPERM if entry.get(number_key) is None else _number(entry, number_key, _LARGEST_ERRNO, where))


def _flag(name: str) -> int:
    if name not in _FLAGS:
        raise ProfileError(f"flags: expected some of {', '.join(_FLAGS)}, got {name!r}")
    return _FLAGS[name]


def _object(value: Any, where: str, keys: frozenset[str]) -> dict[str, Any]:
    where = where.removesuffix(": ")
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: expected an object, got {value!r}")
    unknown = value.keys() - keys
    if unknown:
        raise ProfileError(
            f"{where}: unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(sorted(keys))}"
        )
    return value


def _list(entry: dict[str, Any], key: str, where: str) -> list[Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProfileError(f"{where}{key}: expected a list, got {value!r}")
    return value


def _strings(entry: dict[str, Any], key: str, where: str) -> list[str]:
    values = _list(entry, key, where)
    if not all(isinstance(value, str) for value in values):
        raise ProfileError(f"{where}{key}: expected texts, got {values!r}")
    return values


def _number(entry: dict[str, Any], key: str, largest: int, where: str) -> int:
    value = 0 if entry.get(key) is None else entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise ProfileError(f"{where}{key}: expected a number up to {largest}, got {value!r}")
    return value
