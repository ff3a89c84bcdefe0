"""System calls that Python 3.11 does not offer, each a function that raises OSError with what was tried.

Everything goes through ctypes on the C library that is loaded anyway. Numbers from 424 up are the same on every
architecture; `pivot_root` is the one older call that some C libraries do not export.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value
# The same library, called without letting go of the interpreter's lock: see `fork`.
_held_libc = ctypes.PyDLL(None, use_errno=True)
_held_libc.syscall.restype = ctypes.c_long

_CLONE_VM = 0x00000100
CLONE_PARENT = 0x00008000
CLONE_PARENT_SETTID = 0x00100000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_INTO_CGROUP = 0x200000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MS_STRICTATIME = 1 << 24
MNT_DETACH = 2

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_QUIET = 0xE
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
RESOLVE_IN_ROOT = 0x10
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_SYS_ADMIN = 1 << 21

_SYS_CLONE3 = 435
_SYS_CLONE = {"x86_64": 56, "aarch64": 220, "i686": 120, "armv7l": 120, "armv8l": 120}.get(os.uname().machine, -1)
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}.get(
    os.uname().machine, -1
)
_SYS_SECCOMP = {"x86_64": 317, "i686": 354, "aarch64": 277, "armv7l": 383, "armv8l": 383}.get(os.uname().machine, -1)
_SYS_BPF = {
    "x86_64": 321,
    "i686": 357,
    "aarch64": 280,
    "riscv64": 280,
    "armv7l": 386,
    "armv8l": 386,
    "ppc64le": 361,
    "s390x": 351,
}.get(os.uname().machine, -1)
_SYS_KEYCTL = {
    "x86_64": 250,
    "i686": 288,
    "aarch64": 219,
    "riscv64": 219,
    "armv7l": 311,
    "armv8l": 311,
    "ppc64le": 271,
    "s390x": 280,
}.get(os.uname().machine, -1)
_KEYCTL_JOIN_SESSION_KEYRING = 1
_KEYCTL_SETPERM = 5
_KEYCTL_DESCRIBE = 6
_KEY_USER_SEARCH = 0x00080000
_LONGEST_DESCRIPTION = 4096
_SECCOMP_SET_MODE_FILTER = 1
_BPF_INSTRUCTION_SIZE = 8
_CAPABILITY_VERSION_3 = 0x20080522
_SIGCHLD = 17
_IDLE_SECONDS = 5
_stack = ctypes.create_string_buffer(64 * 1024)
_SIG_SETMASK = 2
_NO_SIGNALS = bytes(128)
"""A `sigset_t`, which is not larger in any C library."""


class _CloneArgs(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _bytes(path: str | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones. CLONE_NEWPID takes effect for children only."""
    _checked(_libc.unshare(ctypes.c_int(flags)), f"unshare namespaces {flags:#x}")


def fork(flags: int, cgroup: int | None = None, *, pid_at: ctypes.Array[ctypes.c_char] | None = None) -> int:
    """Fork as `os.fork` does, with clone3's flags, the child born in the v2 cgroup behind a descriptor. 0 in the child.

    The kernel writes the child's pid to `pid_at` before the child runs: on a `shared_page`, even a process that is
    killed right after its fork has told it.

    Joining a cgroup later costs the kernel a grace period (5 to 15 ms measured); being born in it costs nothing.
    Python's own fork hooks do not run: fit only for a process without threads, whose child executes a program soon.
    """
    arguments = _CloneArgs(flags=flags, exit_signal=0 if flags & CLONE_PARENT else _SIGCHLD)
    if pid_at is not None:
        arguments.flags |= CLONE_PARENT_SETTID
        arguments.parent_tid = ctypes.addressof(pid_at)
    if cgroup is not None:
        arguments.flags |= CLONE_INTO_CGROUP
        arguments.cgroup = cgroup
    result = _held_libc.syscall(
        ctypes.c_long(_SYS_CLONE3), ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))
    )
    return _checked(int(result), "clone3")


def plain_fork(flags: int = 0, *, pid_at: ctypes.Array[ctypes.c_char] | None = None) -> int:
    """The same by the older call `clone`: filters of containers let that through, and not clone3.

    Without Python's hooks it is also faster than `os.fork`, by 0.1 to 0.2 ms.
    """
    if _SYS_CLONE < 0:
        return fork(flags, pid_at=pid_at)
    number = flags if flags & CLONE_PARENT else flags | _SIGCHLD
    if pid_at is not None:
        number |= CLONE_PARENT_SETTID
    result = _held_libc.syscall(ctypes.c_long(_SYS_CLONE), ctypes.c_ulong(number), None, pid_at, None, None)
    return _checked(int(result), "clone")


def shared_page(descriptor: int) -> ctypes.Array[ctypes.c_char]:
    """The first page of a memfd, in this process's memory and not in that of what it forks."""
    address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
    _checked(_libc.madvise(address, mmap.PAGESIZE, mmap.MADV_DONTFORK), "madvise")
    return (ctypes.c_char * mmap.PAGESIZE).from_address(address)


def lock_mounts() -> None:
    """Go on in a copy of this mount namespace whose mounts stay on top of each other, even when it ends.

    Who has a descriptor of a folder keeps the mount that it is on. When the last process of a mount namespace ends,
    the kernel takes its mounts apart, and such a descriptor then shows what they hid: of procfs all that was masked
    or read-only. It leaves those alone that a less privileged namespace got as a copy, which is why this one belongs
    to a user namespace of its own. Raises OSError, and the namespace is as before.
    """
    owner = _idle_child(CLONE_NEWUSER | CLONE_NEWNS)
    try:
        setns(owner, CLONE_NEWNS)
    finally:
        signal.pidfd_send_signal(owner, signal.SIGKILL)
        os.waitid(os.P_PIDFD, owner, os.WEXITED)
        os.close(owner)


def _idle_child(flags: int) -> int:
    """A pidfd of a child in new namespaces that ends by itself after some seconds.

    It shares this process's memory, which a fork would take 0.3 ms to copy and as long again to write to, and runs
    nothing but the C library's `sleep` on a stack of its own.
    """
    end_of_stack = ctypes.c_void_p(ctypes.addressof(_stack) + len(_stack))
    pid = _libc.clone(_libc.sleep, end_of_stack, _CLONE_VM | flags | _SIGCHLD, _IDLE_SECONDS)
    return os.pidfd_open(_checked(pid, "clone"))


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor that is not kept; what is at 0 (the keeper's: /dev/null) is at 1 and 2 too then."""
    close_others(kept)
    os.dup2(0, 1)
    os.dup2(0, 2)


def close_others(kept: Iterable[int]) -> None:
    """Close every descriptor from 3 on that is not kept."""
    following = 3
    for descriptor in sorted({*kept, os.sysconf("SC_OPEN_MAX")}):
        if descriptor >= following:
            os.closerange(following, descriptor)
            following = descriptor + 1


IGNORED_SIGNALS = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGXCPU, signal.SIGXFSZ),
)
"""Signals that the keeper ignores: each would end it, and every container with it. Programs get them back."""


def default_signal(number: int) -> None:
    """Reset a signal of a process that executes a program soon. Python does not hear of it, which would cost more."""
    _libc.signal(ctypes.c_int(number), None)


def unblock_signals() -> None:
    _checked(_libc.sigprocmask(ctypes.c_int(_SIG_SETMASK), _NO_SIGNALS, None), "unblock signals")


def setns(descriptor: int, flags: int) -> None:
    """Enter the namespaces of a namespace file, or those in `flags` of the process behind a pidfd."""
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), f"enter namespaces {flags:#x}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    result = _libc.mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _checked(result, f"mount {kind or source or 'flags'} at {target}")


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    _checked(_libc.umount2(_bytes(target), ctypes.c_int(flags)), f"unmount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _checked(_libc.syscall(ctypes.c_long(_SYS_PIVOT_ROOT), _bytes(new_root), _bytes(put_old)), "pivot_root")


def open_tree(path: str, *, descriptor: int = AT_FDCWD, recursive: bool = True) -> int:
    """A detached copy of the mount tree at `path`, or at what `descriptor` is of when the path is empty.

    As a descriptor for `move_mount`.
    """
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    result = _libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), ctypes.c_int(descriptor), _bytes(path), ctypes.c_uint(flags))
    return _checked(result, f"take the mount at {path or 'a descriptor'}")


def new_mount(
    kind: str, *, read_only: bool = False, quiet: bool = True, options: dict[str, str | None] | None = None
) -> int:
    """A detached mount of a fresh file system.

    `quiet`: nosuid, nodev, noexec. `options`: None is for those without a value. `read_only` is the mount alone, not
    the file system, which others may have mounted too.
    """
    context = _checked(
        int(_libc.syscall(ctypes.c_long(_SYS_FSOPEN), kind.encode(), ctypes.c_uint(_FSOPEN_CLOEXEC))), f"fsopen {kind}"
    )
    try:
        for name, value in (options or {}).items():
            command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
            option = (ctypes.c_uint(command), name.encode(), _bytes(value), ctypes.c_int(0))
            _checked(int(_libc.syscall(ctypes.c_long(_SYS_FSCONFIG), ctypes.c_int(context), *option)), f"{kind} {name}")
        create = (ctypes.c_uint(_FSCONFIG_CMD_CREATE), None, None, ctypes.c_int(0))
        _checked(int(_libc.syscall(ctypes.c_long(_SYS_FSCONFIG), ctypes.c_int(context), *create)), f"create {kind}")
        attributes = (_MOUNT_ATTR_QUIET if quiet else 0) | (MOUNT_ATTR_RDONLY if read_only else 0)
        flags = (ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(attributes))
        return _checked(int(_libc.syscall(ctypes.c_long(_SYS_FSMOUNT), ctypes.c_int(context), *flags)), f"mount {kind}")
    finally:
        os.close(context)


def move_mount(tree: int, target: int, name: str) -> None:
    """Attach a detached tree onto the file or directory behind descriptor `target`; `name` is for the message."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOVE_MOUNT), ctypes.c_int(tree), b"", ctypes.c_int(target), b"", ctypes.c_uint(flags)
    )
    _checked(result, f"mount at {name}")


def set_mount_attributes(
    path: str,
    *,
    descriptor: int = AT_FDCWD,
    read_only: bool = False,
    quiet: bool = False,
    propagation: int = 0,
    recursive: bool = False,
) -> None:
    """Change the mount at `path`, or the one behind `descriptor` when the path is empty.

    `quiet`: nosuid, nodev, noexec.
    """
    wanted = (MOUNT_ATTR_RDONLY if read_only else 0) | (_MOUNT_ATTR_QUIET if quiet else 0)
    attributes = _MountAttr(wanted, 0, propagation, 0)
    flags = (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(descriptor),
        _bytes(path),
        ctypes.c_uint(flags),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _checked(result, f"set mount attributes of {path or 'a mount'}")


def open_without_magic(path: str, flags: int, *, folder: int = AT_FDCWD, follow: bool = True) -> int:
    """Open a path that a container may have written: links of procfs that lead out of any root are refused (ELOOP).

    Without `follow` all links are, in every part of the path. `folder`: a descriptor, where a relative path begins.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS if follow else RESOLVE_NO_SYMLINKS)
    result = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(folder),
        _bytes(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    return _checked(result, f"open {path}")


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open a path below the folder `root`, which is "/" for every link on the way."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    result = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(root),
        _bytes(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    return _checked(result, f"open {path}")


def prctl(option: int, argument: int = 0, second: int = 0) -> None:
    _checked(_libc.prctl(option, argument, second, 0, 0), f"prctl {option}")


def set_name(name: str) -> None:
    """What this process is called in lists of processes, until it executes a program; 15 bytes at most."""
    text = ctypes.create_string_buffer(name.encode())
    prctl(_PR_SET_NAME, ctypes.addressof(text))


def set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    """Replace this process's capability sets, each a bit mask."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)(
        *(
            _CapData(*((mask >> shift) & 0xFFFFFFFF for mask in (effective, permitted, inheritable)))
            for shift in (0, 32)
        )
    )
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "set capabilities")


def permitted_capabilities() -> int:
    """This process's permitted set, a bit mask."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    _checked(_libc.capget(ctypes.byref(header), ctypes.byref(data)), "get capabilities")
    return int(data[0].permitted) | int(data[1].permitted) << 32


def has_seccomp() -> bool:
    """Whether this kernel filters system calls."""
    return _SYS_SECCOMP >= 0 and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def filter_system_calls(program: bytes, flags: int) -> None:
    """Load a seccomp filter for good. Takes no_new_privs or CAP_SYS_ADMIN in this process's user namespace."""
    filter_program = _FilterProgram(len(program) // _BPF_INSTRUCTION_SIZE, program)
    result = _libc.syscall(
        ctypes.c_long(_SYS_SECCOMP),
        ctypes.c_uint(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_uint(flags),
        ctypes.byref(filter_program),
    )
    _checked(int(result), "load the seccomp filter")


def bpf(command: int, request: bytes, what: str) -> int:
    """`request`: the fields of `bpf_attr` that the command has. What they point to has to stay until this returns."""
    size = ctypes.c_uint(len(request))
    return _checked(int(_libc.syscall(ctypes.c_long(_SYS_BPF), ctypes.c_int(command), request, size)), what)


def join_session_keyring(name: str | None) -> int:
    """Leave the session keyring for the one of that name that may be searched, or a new one. None: a new one.

    Returns its serial number.
    """
    return _keyctl("join a session keyring", _KEYCTL_JOIN_SESSION_KEYRING, None if name is None else name.encode())


def let_user_search(keyring: int) -> None:
    """Let other processes of the user that made it find a keyring by its name."""
    what = "permit to search a keyring"
    text = ctypes.create_string_buffer(_LONGEST_DESCRIPTION)
    _keyctl(what, _KEYCTL_DESCRIBE, ctypes.c_int(keyring), text, ctypes.c_size_t(len(text)))
    permissions = int(text.value.split(b";")[3], 16)  # type;uid;gid;permissions;name
    _keyctl(what, _KEYCTL_SETPERM, ctypes.c_int(keyring), ctypes.c_uint(permissions | _KEY_USER_SEARCH))


def _keyctl(what: str, *arguments: Any) -> int:
    return _checked(int(_libc.syscall(ctypes.c_long(_SYS_KEYCTL), *arguments)), what)


def set_hostname(name: str) -> None:
    encoded = os.fsencode(name)
    _checked(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), f"set hostname {name}")
