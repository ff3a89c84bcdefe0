"""A read-only root for plain processes: Landlock, which any process may use, where no mount namespace can be had.

It covers what changes the tree and the contents of files. It knows nothing of modes, owners, times and attributes, and
it takes from the processes of one container the right to trace those of another.
"""

from __future__ import annotations

import ctypes
import os
import stat

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# The same on every architecture.
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_REMOVE_DIR_TO_MAKE_SYM = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_OF_FILES = _WRITE_FILE | _TRUNCATE


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def version() -> int:
    """The kernel's Landlock ABI; 0 without."""
    found = _libc.syscall(
        ctypes.c_long(_SYS_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION)
    )
    return max(0, int(found))


def write_only_below(paths: list[str]) -> None:
    """Deny this process, for good, every change of a file system except below these paths. Raises OSError.

    Takes no_new_privs or CAP_SYS_ADMIN. Paths that are missing are passed over.
    """
    abi = version()
    handled = _WRITE_FILE | _REMOVE_DIR_TO_MAKE_SYM | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    attributes = ctypes.c_uint64(handled)
    ruleset = _checked(_SYS_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint(0))
    for path in paths:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = handled if stat.S_ISDIR(os.fstat(place).st_mode) else handled & _OF_FILES
        rule = _PathBeneath(allowed, place)
        _checked(
            _SYS_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint(0),
        )
        os.close(place)
    _checked(_SYS_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)


def _checked(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"read-only root by Landlock: {os.strerror(error)}")
    return result
