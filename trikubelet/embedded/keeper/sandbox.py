"""A pod's shared namespaces, held open as descriptors: there is no pause process.

Hostname (UTS) and IPC namespaces are made by a process that is forked for it and ends at once. Only a PID namespace
that containers share needs somebody in it: a forked process that does nothing but reap (`reaper.py`).
`/dev/shm` is shared through a folder on the host's own tmpfs.
"""

from __future__ import annotations

import os
import signal
import socket

from trikubelet.embedded.keeper import linux, reaper
from trikubelet.embedded.keeper.cgroups import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.environment import Environment

SHARED_MEMORY = "/dev/shm"


class Sandbox:
    """The namespaces of one pod: `namespaces` as (descriptor, CLONE flag) pairs for its containers to enter."""

    def __init__(self, environment: Environment, spec: dict[str, Any], shared_memory: str) -> None:
        """`spec`: sandbox (id), hostname, sysctls, host_ipc, host_uts, shared_pid. Raises OSError."""
        self._environment = environment
        self.id: str = spec["sandbox"]
        self.namespaces: list[tuple[int, int]] = []
        self.pid_namespace: int | None = None
        self.shared_memory: str | None = None
        if not environment.isolated:
            return
        try:
            self._make_namespaces(spec)
            if spec["shared_pid"]:
                self._hold_pid_namespace()
            self.shared_memory = SHARED_MEMORY if spec["host_ipc"] else _make_folder(f"{shared_memory}/{self.id}")
        except OSError:
            self.close()
            raise

    def _make_namespaces(self, spec: dict[str, Any]) -> None:
        """Let a forked process make them, and take hold of them through procfs before it ends."""
        wanted = [] if spec["host_uts"] else [("uts", linux.CLONE_NEWUTS)]
        wanted += [] if spec["host_ipc"] else [("ipc", linux.CLONE_NEWIPC)]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _be_namespaces(theirs.fileno(), sum(flag for _, flag in wanted), spec)
        theirs.close()
        try:
            answer = ours.recv(4096).decode()
            if answer != "made":
                raise OSError(0, answer or "the process that makes them ended without an answer")
            for name, flag in wanted:
                self.namespaces.append((os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag))
        finally:
            ours.close()
            os.waitpid(pid, 0)

    def _hold_pid_namespace(self) -> None:
        pid = self._environment.forker.fork(None, fresh=True)
        if pid == 0:
            reaper.hold_pid_namespace(self._environment.root)
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
        if self.shared_memory not in (None, SHARED_MEMORY):
            remove_tree(str(self.shared_memory))
        self.shared_memory = None


def _be_namespaces(channel: int, flags: int, spec: dict[str, Any]) -> NoReturn:
    """In the forked process: make namespaces, say so, and stay until the other end is closed."""
    try:
        linux.unshare(flags)
        if flags & linux.CLONE_NEWUTS:
            linux.set_hostname(spec["hostname"])
        for name, value in spec["sysctls"].items():
            write_file("/proc/sys/" + name.replace(".", "/"), value)
        os.write(channel, b"made")
        os.read(channel, 1)
    except OSError as error:
        os.write(channel, str(error).encode())
    finally:
        os._exit(0)


def _make_folder(path: str) -> str | None:
    """A folder for a pod's shared memory; None where the machine has no place for it."""
    if not os.path.ismount(SHARED_MEMORY):
        return None
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o1777)
    return path


def remove_tree(path: str) -> None:
    """Delete a folder as far as that is possible, following no link. (`shutil` would cost a megabyte.)"""
    for folder, names, files in os.walk(path, topdown=False):
        for name in (*names, *files):
            target = f"{folder}/{name}"
            try:
                if name in names and not os.path.islink(target):
                    os.rmdir(target)
                else:
                    os.unlink(target)
            except OSError:
                continue
    try:
        os.rmdir(path)
    except OSError:
        pass
