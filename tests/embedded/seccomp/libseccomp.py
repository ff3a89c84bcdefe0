"""Filters made by libseccomp, the way runc asks it for them."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from typing import TYPE_CHECKING

from trikubelet.embedded.seccomp.syscalls import X32, Abi

if TYPE_CHECKING:
    from trikubelet.embedded.seccomp.profile import Profile

_NATIVE = 0
_UNKNOWN = -1
_OPERATORS = {"NE": 1, "LT": 2, "LE": 3, "EQ": 4, "GE": 5, "GT": 6, "MASKED_EQ": 7}
_library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
_library.seccomp_init.restype = ctypes.c_void_p


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    ]


def knows(name: str) -> bool:
    """Whether this version has heard of a system call."""
    return number_on_native(name) != _UNKNOWN


def number_on_native(name: str) -> int:
    return int(_library.seccomp_syscall_resolve_name(name.encode()))


def number(abi: Abi, name: str) -> int:
    """Below 0 for a call that the ABI does not have, or multiplexes."""
    return int(_library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token(abi)), name.encode()))


def token(abi: Abi) -> int:
    """libseccomp's name for an ABI: the kernel's, but for x32."""
    return 0x4000003E if abi is X32 else abi.audit


def compiled(profile: Profile) -> bytes:
    """The filter of a profile, without runc's addition for unknown numbers."""
    context = ctypes.c_void_p(_checked(_library.seccomp_init(ctypes.c_uint32(profile.default)), "init"))
    try:
        for abi in profile.abis:
            added = _library.seccomp_arch_add(context, ctypes.c_uint32(token(abi)))
            assert added in (0, -17), added
        native = ctypes.c_uint32(_library.seccomp_arch_native())
        if native.value not in map(token, profile.abis):
            assert _library.seccomp_arch_remove(context, native) == 0
        for rule in profile.rules:
            if rule.action == profile.default:
                continue
            conditions = (_Comparison * len(rule.conditions))(
                *(_Comparison(one.index, _OPERATORS[one.operator], one.value, one.value_two) for one in rule.conditions)
            )
            for name in rule.names:
                if knows(name):
                    failed = _library.seccomp_rule_add_array(
                        context,
                        ctypes.c_uint32(rule.action),
                        ctypes.c_int(number_on_native(name)),
                        ctypes.c_uint(len(conditions)),
                        conditions,
                    )
                    assert failed == 0, (name, failed)
        file = os.memfd_create("filter")
        try:
            assert _library.seccomp_export_bpf(context, ctypes.c_int(file)) == 0
            return os.pread(file, os.fstat(file).st_size, 0)
        finally:
            os.close(file)
    finally:
        _library.seccomp_release(context)


def _checked(pointer: int | None, what: str) -> int:
    assert pointer, f"libseccomp: {what} failed"
    return pointer
