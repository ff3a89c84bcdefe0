"""A process that stands between the keeper and a command, so that nothing the command starts can get away.

A container that is the first process of its PID namespace takes everything with it when it ends. All others (a command
executed in a container, a container in a shared PID namespace, a plain process on a machine without namespaces) get a
reaper: a child subreaper that owns exactly one command. Whatever forks and calls setsid to escape becomes its child at
last. It reaps until it has none left; the killing is done by the keeper, which sees the tree in procfs.

It lives inside the container's namespaces without any capability, so it is no way out for the container either.
"""

from __future__ import annotations

import os
import signal

from trikubelet.embedded.keeper import identity, linux, rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def split(status_channel: int, *, keeps_orphans: bool) -> None:
    """Fork. Returns in the child, which goes on to become the command; the parent reaps and never returns.

    The exit status of the command goes through `status_channel` as decimal text, as `os.waitpid` gives it. With
    `keeps_orphans` the reaper stays until nothing is left of what the command started; without, it ends with the
    command, and what was left in the background belongs to the container's first process, as after any exec.
    """
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    reaper = os.getpid()
    command = os.fork()
    if command == 0:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 0)
        os.setsid()
        if os.getppid() != reaper:
            os._exit(137)
        return
    try:
        _keep_only(status_channel)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        identity.drop_everything()
        _reap(command, status_channel, keeps_orphans)
    finally:
        os._exit(0)


def hold_pid_namespace(empty_folder: str) -> NoReturn:
    """Be the first process of a pod's shared PID namespace: reap orphans until killed. Never returns."""
    try:
        linux.unshare(linux.CLONE_NEWNS)
        rootfs.enter_new_root(empty_folder, rootfs.QUIET | linux.MS_RDONLY, "size=4k")
        _keep_only(-1)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        identity.drop_everything()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def _keep_only(descriptor: int) -> None:
    """Close everything else, or pipes would never report their end."""
    highest = os.sysconf("SC_OPEN_MAX")
    os.closerange(0, max(0, descriptor))
    os.closerange(descriptor + 1, highest)


def _reap(command: int, status_channel: int, keeps_orphans: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == command:
            os.write(status_channel, str(status).encode())
            if not keeps_orphans:
                return
