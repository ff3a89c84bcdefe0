"""The keeper's first lines, `python -I -S keeper_main.py --root FOLDER`; `serving` has those that follow.

Before anything else the interpreter is executed once more from a read-only mount of itself that exists nowhere else: a
container that gets hold of `/proc/…/exe` of a process on its way to exec cannot write to the host's interpreter
through it (the hole that runc closed as CVE-2019-5736). What only the second interpreter needs, the first one does not
import.
"""

from __future__ import annotations

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from trikubelet.embedded.keeper import linux

_SEALED = "--sealed"


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] != "--root":
        sys.exit("usage: keeper_main.py --root FOLDER")
    root = os.path.abspath(sys.argv[2])
    if _SEALED in sys.argv:
        name = sys.argv[-1]
    else:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        name = _name(root)
        _execute_sealed(name)
    from trikubelet.embedded.keeper import serving

    serving.start(root, name)


def _name(root: str) -> str:
    """Return the prefix of all names that this keeper makes on the machine; each runtime folder has its own."""
    import hashlib  # with a library that is as large as all else here together: the keeper itself goes without

    return "trikubelet-" + hashlib.sha256(root.encode()).hexdigest()[:8]


def _execute_sealed(name: str) -> None:
    """Execute this interpreter again, through a detached read-only copy of its mount."""
    try:
        tree = _read_only_interpreter()
    except OSError:
        try:
            tree = _read_only_interpreter_of_a_user_namespace()
        except OSError:
            return  # no namespaces at all: containers are plain processes of this user, who may do as they like
    arguments = [sys.executable, "-I", "-S", *sys.argv, _SEALED, name]
    os.execve(f"/proc/self/fd/{tree}", arguments, dict(os.environ))


def _read_only_interpreter() -> int:
    tree = linux.open_tree(os.path.realpath(sys.executable), recursive=False)
    linux.set_mount_attributes("", descriptor=tree, read_only=True)
    return tree


def _read_only_interpreter_of_a_user_namespace() -> int:
    """The same from a forked process that has the privilege in namespaces of its own."""
    import socket

    from trikubelet.embedded.keeper import probe, protocol

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            probe.enter_user_namespace()
            linux.unshare(linux.CLONE_NEWNS)
            socket.send_fds(theirs, [b"made"], [_read_only_interpreter()])
        finally:
            os._exit(0)
    theirs.close()
    _, descriptors = protocol.receive(ours, 16)
    ours.close()
    os.waitpid(pid, 0)
    if not descriptors:
        raise PermissionError("this user may make no namespaces")
    return descriptors[0]


if __name__ == "__main__":
    main()
