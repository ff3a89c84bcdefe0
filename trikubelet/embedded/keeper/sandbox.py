"""A pod's shared namespaces, held open as descriptors: there is no pause process.

Hostname (UTS) and IPC namespaces are made by a process that is forked for it and ends at once. Only a PID namespace
that containers share needs somebody in it: a forked process that does nothing but reap (`reaper.py`).
Its `/dev/shm` is the only mount of a mount namespace that no process is in: it has no name on the machine, and goes
with the last container and with this process, however that ends.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys

from trikubelet.embedded.keeper import linux, reaper, rootfs
from trikubelet.embedded.keeper.cgroups import write_file
from trikubelet.linux.trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.environment import Environment

SHARED_MEMORY = "/dev/shm"
_SHARED_MEMORY_OPTIONS = "mode=1777,size=65536k"


class Sandbox:
    """The namespaces of one pod: `namespaces` as (descriptor, CLONE flag) pairs for its containers to enter."""

    def __init__(self, environment: Environment, spec: dict[str, Any]) -> None:
        """`spec`: sandbox (id), hostname, sysctls, host_ipc, host_uts, shared_pid. Raises OSError."""
        self._environment = environment
        self.proc: int | None = None
        """A mount namespace whose root is procfs for a shared PID namespace."""
        self.id: str = spec["sandbox"]
        self.namespaces: list[tuple[int, int]] = []
        self.pid_namespace: int | None = None
        self.host_ipc: bool = spec["host_ipc"]
        self.shared_memory: int | None = None
        """A mount namespace whose root is the pod's `/dev/shm`; None for one that shares the machine's."""
        if not environment.isolated:
            return
        try:
            self._make_namespaces(spec)
            if spec["shared_pid"]:
                self._hold_pid_namespace()
        except OSError:
            self.close()
            raise

    def _make_namespaces(self, spec: dict[str, Any]) -> None:
        """Let a forked process make them, and hand them over."""
        wanted = [] if spec["host_uts"] else [("uts", linux.CLONE_NEWUTS)]
        wanted += [] if spec["host_ipc"] else [("ipc", linux.CLONE_NEWIPC), ("mnt", linux.CLONE_NEWNS)]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _be_namespaces(theirs, wanted, spec, self._environment.root)
        theirs.close()
        try:
            answer, descriptors, _, _ = socket.recv_fds(ours, 4096, len(wanted), socket.MSG_CMSG_CLOEXEC)
            if answer != b"made":
                raise OSError(0, answer.decode() or "the process that makes them ended without an answer")
            for (_, flag), descriptor in zip(wanted, descriptors, strict=True):
                if flag == linux.CLONE_NEWNS:
                    self.shared_memory = descriptor
                else:
                    self.namespaces.append((descriptor, flag))
        finally:
            ours.close()
            os.waitpid(pid, 0)

    def _hold_pid_namespace(self) -> None:
        forker = self._environment.forker
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            kept = {theirs.fileno(), *([] if forker.program is None else [forker.program])}
            pid = forker.fork(None, kept=kept, fresh=True)
            if pid == 0:
                reaper.hold_pid_namespace(forker.program, theirs, self._environment.root)
            theirs.close()
            answer, descriptors, _, _ = socket.recv_fds(ours, 4096, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                os.waitpid(pid, 0)
                raise OSError(answer.decode() or "the first process of the PID namespace ended without an answer")
            self.proc = descriptors[0]
            # Until its end: then the process has no copy of this one's memory that a container could look into.
            ours.recv(1)
        finally:
            ours.close()
            theirs.close()
        self.pid_namespace = os.pidfd_open(pid)
        self._holder = pid
        self._environment.loop.watch(self.pid_namespace, self._holder_ended)

    def _holder_ended(self, _events: int) -> None:
        if self.pid_namespace is not None and os.waitpid(self._holder, os.WNOHANG)[0]:
            self._environment.loop.forget(self.pid_namespace)
            os.close(self.pid_namespace)
            self.pid_namespace = None

    def close(self) -> None:
        """Let the namespaces go. Whatever still runs in a shared PID namespace dies with it."""
        for descriptor, _ in self.namespaces:
            os.close(descriptor)
        self.namespaces = []
        if self.pid_namespace is not None:
            signal.pidfd_send_signal(self.pid_namespace, signal.SIGKILL)
        for mounts in (self.shared_memory, self.proc):
            if mounts is not None:
                os.close(mounts)
        self.shared_memory = self.proc = None


def _be_namespaces(
    channel: socket.socket, wanted: list[tuple[str, int]], spec: dict[str, Any], folder: str
) -> NoReturn:
    """In the forked process: make namespaces, hand over descriptors of them, and end.

    The root of a mount namespace, mounted over `folder` on the way, becomes the pod's shared memory.
    """
    try:
        linux.close_all_but([channel.fileno()])
        flags = sum(flag for _, flag in wanted)
        linux.unshare(flags)
        if flags & linux.CLONE_NEWUTS:
            linux.set_hostname(spec["hostname"])
        for name, value in spec["sysctls"].items():
            write_file("/proc/sys/" + name.replace(".", "/"), value)
        descriptors = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name, _ in wanted]
        if flags & linux.CLONE_NEWNS:
            rootfs.enter_new_root(folder, "tmpfs", rootfs.QUIET, _SHARED_MEMORY_OPTIONS)
        socket.send_fds(channel, [b"made"], descriptors)
    except OSError as error:
        channel.send(str(error).encode())
    finally:
        os._exit(0)


def remove_old_shared_memory(name: str) -> None:
    """Delete the folder that a keeper of an earlier release made in the machine's `/dev/shm`.

    Everybody may write there: only a folder of this user is touched, and no link is followed.
    """
    try:
        machine = os.open(SHARED_MEMORY, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        status = os.stat(name, dir_fd=machine, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            remove_tree(f"{SHARED_MEMORY}/{name}", machine)
    except FileNotFoundError:
        pass
    except OSError as error:
        print(f"cannot delete {SHARED_MEMORY}/{name}: {error}", file=sys.stderr, flush=True)
    finally:
        os.close(machine)
