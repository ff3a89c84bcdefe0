"""The process that everything else is forked from: a copy of the keeper from before it knew of any pod.

A forked process has the memory of its parent until it executes a program, and a container with SYS_PTRACE can read that
of a process on its way in. The keeper's holds the environments and the output of all pods; this one's holds none. It
gets descriptors and a few words, forks, and answers; what a process is to become, the keeper tells that process alone
(`context.py`). All are children of the keeper (CLONE_PARENT), which waits for them and whose death ends them.

It never waits for anything but the next request, and never leaves its namespaces. The keeper has two of them
(`forker.py`): the second forks another when the first is lost.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import socket

from trikubelet.embedded.keeper import child, linux, namespace_maker, protocol, reaper, sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.context import Machine

_LONGEST_REQUEST = 4096
_LONGEST_TEXT = 1000


def serve(channel: socket.socket, machine: Machine) -> NoReturn:
    """In the forked process: until the keeper is gone.

    A request: role, fresh (whether in a PID namespace of its own), oom_score or None; descriptors of the forked
    process's end of a pair and, if it is to be born in one, of a v2 cgroup. The answer: its pid, or 0 and why not.
    """
    try:
        kept = {channel.fileno(), *([] if machine.program is None else [machine.program])}
        linux.close_all_but(kept)
        linux.set_name("trikube-forker")
        gc.disable()
        # Its own files in procfs are closed to a process that is not dumpable, unless it is the machine's root. So
        # would a child's be, which is why this process takes the child's OOM score for the fork.
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        while True:
            payload, descriptors = protocol.receive(channel, _LONGEST_REQUEST)
            if not payload:
                break
            request = json.loads(payload)
            pid, born_in_cgroup, why = _forked(request, descriptors, oom_score)
            if pid == 0:
                for descriptor in (channel.fileno(), oom_score, *descriptors[1:]):
                    os.close(descriptor)
                _become(request["role"], descriptors[0], machine, born_in_cgroup=born_in_cgroup)
            channel.send(f"{max(0, pid)} {why}".encode(errors="backslashreplace"))
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(0)


def _forked(request: dict[str, Any], descriptors: list[int], oom_score: int) -> tuple[int, bool, str]:
    """The pid, 0 in the child, -1 where there is none; whether it is in the cgroup already; why there is none."""
    wanted = request["oom_score"]
    before = None if wanted is None else os.pread(oom_score, 16, 0)
    if wanted is not None:
        _write(oom_score, str(wanted).encode())
    pid = -1
    try:
        pid, born_in_cgroup = _fork(descriptors[1] if len(descriptors) > 1 else None, fresh=request["fresh"])
    except OSError as error:
        return pid, False, str(error.strerror or error)[:_LONGEST_TEXT]
    finally:
        if before is not None and pid != 0:
            _write(oom_score, before)
    return pid, born_in_cgroup, ""


def _write(oom_score: int, score: bytes) -> None:
    try:
        os.pwrite(oom_score, score, 0)
    except OSError:
        # Lowering it takes CAP_SYS_RESOURCE. A container that is killed a little earlier is better than none.
        return


def _fork(folder: int | None, *, fresh: bool) -> tuple[int, bool]:
    """The pid, 0 in the child; and whether it is born in the cgroup of the folder, or has to join."""
    flags = linux.CLONE_PARENT | (linux.CLONE_NEWPID if fresh else 0)
    if folder is not None:
        try:
            return linux.fork(flags, folder), True
        except OSError as error:
            # System call filters of some container runtimes pretend that clone3 does not exist.
            if error.errno != errno.ENOSYS:
                raise
    return linux.plain_fork(flags), False


def _become(role: str, own: int, machine: Machine, *, born_in_cgroup: bool) -> NoReturn:
    """In the child, whose descriptors are its own end of a pair and the reaper's program."""
    try:
        channel = socket.socket(fileno=own)
        if role == "container":
            child.become(channel, machine, born_in_cgroup=born_in_cgroup)
        elif role == "namespace maker":
            namespace_maker.serve(channel, machine)
        elif role == "namespace holder":
            reaper.hold_pid_namespace(channel, machine, born_in_cgroup=born_in_cgroup)
        elif role == "network helper":
            sandbox.be_helper(channel)
        else:
            serve(channel, machine)
    finally:
        os._exit(127)
