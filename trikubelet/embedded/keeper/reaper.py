"""A process that stands between the keeper and a command, so that nothing the command starts can get away.

A container that is the first process of its PID namespace takes everything with it when it ends. All others (a command
executed in a container, a container in a shared PID namespace, a plain process on a machine without namespaces) get a
reaper: a child subreaper that owns exactly one command. Whatever forks and calls setsid to escape becomes its child at
last. It reaps until it has none left; the killing is done by the keeper, which sees the tree in procfs.

It lives inside the container's namespaces without any capability, so it is no way out for the container either. It has
no descriptor but the one it reports to, and no interpreter's memory: it executes `reaper_program.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct

from trikubelet.embedded.keeper import identity, linux, protocol, rootfs
from trikubelet.embedded.keeper.cgroups import ContainerCgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from trikubelet.embedded.keeper.context import Machine

STATUS = struct.Struct("i")
"""A wait status, as a reaper reports it."""
_LONGEST_REQUEST = 64 * 1024


def split(program: int | None, status_channel: int, *, keeps_orphans: bool) -> None:
    """Fork. Returns in the child, which goes on to become the command; the parent reaps and never returns.

    The wait status of the command goes through `status_channel`. With `keeps_orphans` the reaper stays until nothing is
    left of what the command started; without, it ends with the command, and what was left in the background belongs to
    the container's first process, as after any exec. `program`: from `reaper_program.open_program`.
    """
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    reaper = os.getpid()
    command = linux.plain_fork()
    if command == 0:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 0)
        os.setsid()
        if os.getppid() != reaper:
            os._exit(137)
        return
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(status_channel, 0)
        _give_everything_up(program)
        _execute(program, ["trikube-reaper", str(command), *(["stay"] if keeps_orphans else [])])
        _reap(command, keeps_orphans)
    finally:
        os._exit(0)


def hold_pid_namespace(channel: socket.socket, machine: Machine, *, born_in_cgroup: bool) -> NoReturn:
    """Be the first process of a pod's shared PID namespace: reap orphans until killed. Never returns.

    A mount namespace whose root is procfs goes through `channel`: containers get theirs from there, since one that
    mounts it has to be in the PID namespace, where others could take it over. It is closed when this process has
    executed the program that waits. It is in the pod's network, if that has one, whose descriptor comes first: what
    procfs shows of this process's network the pod may see.
    """
    try:
        group, networks = protocol.receive(channel, _LONGEST_REQUEST)
        # Its cgroups and keyring are the pod's alone, since a container of the pod can take it over.
        ContainerCgroup.from_json(json.loads(group)).join(born_inside=born_in_cgroup)
        identity.join_keyring(None, own_is_empty=machine.keyring_is_empty)
        for network in networks:
            linux.setns(network, linux.CLONE_NEWNET)
        linux.unshare(linux.CLONE_NEWNS)
        proc = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        rootfs.enter_new_root(machine.root, "proc", rootfs.QUIET)
        socket.send_fds(channel, [b"made"], [proc])
        linux.unshare(linux.CLONE_NEWNS)
        rootfs.enter_new_root("/sys", "tmpfs", rootfs.QUIET | linux.MS_RDONLY, "size=4k")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _give_everything_up(machine.program, channel.fileno())
        _execute(machine.program, ["trikube-holder"])
        channel.close()
        while True:
            signal.pause()
    except OSError as error:
        channel.send(str(error).encode())
    finally:
        os._exit(1)


def _give_everything_up(*kept: int | None) -> None:
    linux.close_all_but(descriptor for descriptor in kept if descriptor is not None)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    identity.drop_everything()
    # A program that root executes would get capabilities back.
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _execute(program: int | None, argv: list[str]) -> None:
    """Returns where that is not possible."""
    if program is not None:
        try:
            os.execve(program, argv, {})
        except OSError:
            return


def _reap(command: int, keeps_orphans: bool) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == command:
            os.write(0, STATUS.pack(status))
            if not keeps_orphans:
                return
