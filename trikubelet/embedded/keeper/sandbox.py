"""A pod's shared namespaces, held open as descriptors: there is no pause process.

Hostname (UTS), IPC and network namespaces, and sockets in a pod's network, come from a process of their own
(`namespace_maker.py`). Only a PID namespace that containers share needs somebody in it: a process that does nothing but
reap (`reaper.py`).
Its `/dev/shm` is the only mount of a mount namespace that no process is in: it has no name on the machine, and goes
with the last container and with this process, however that ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat

from trikubelet.embedded.keeper import linux, protocol
from trikubelet.embedded.keeper.log import log
from trikubelet.embedded.keeper.namespace_maker import NETLINK_ROUTE, open_socket
from trikubelet.linux.trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.cgroups import ContainerCgroup
    from trikubelet.embedded.keeper.environment import Environment

SHARED_MEMORY = "/dev/shm"
NAMESPACE = "{namespace}"
"""In a helper's arguments: the path of the pod's network namespace."""
_LARGEST_ARGUMENTS = 64 * 1024
_MOST_WAITED = 5.0
"""Seconds for the first process of a PID namespace, which asks the kernel alone."""
_MOST_WAITED_FOR_PORTS = 100  # milliseconds
_RETRY = 0.01
_LONGEST_RETRY = 60.0


class Sandbox:
    """The namespaces of one pod: `namespaces` as (descriptor, CLONE flag) pairs for its containers to enter."""

    def __init__(self, environment: Environment, spec: dict[str, Any]) -> None:
        """`spec`: sandbox (id), hostname, sysctls, host_ipc, host_uts, shared_pid, network. Raises OSError."""
        self._environment = environment
        self.proc: int | None = None
        """A mount namespace whose root is procfs for a shared PID namespace."""
        self.id: str = spec["sandbox"]
        self.namespaces: list[tuple[int, int]] = []
        self._helpers: dict[int, int] = {}
        """Pids by pidfd."""
        self.has_lost_network = False
        """A helper ended by itself."""
        self.network: int | None = None
        """The descriptor of the pod's network namespace, which is among `namespaces`; None: the machine's network."""
        self._netlink: int | None = None
        """A socket in there, for who sets it up: one that is made later costs a process."""
        self.pid_namespace: int | None = None
        self._group: ContainerCgroup | None = None
        """Cgroups of the first process of the shared PID namespace."""
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
        wanted = [] if spec["host_uts"] else [("uts", linux.CLONE_NEWUTS)]
        wanted += [] if spec["host_ipc"] else [("ipc", linux.CLONE_NEWIPC), ("mnt", linux.CLONE_NEWNS)]
        if spec.get("network") == "pod":  # absent in what an older agent asks for
            wanted.append(("net", linux.CLONE_NEWNET))
        names = [name for name, _ in wanted]
        made = self._environment.namespace_maker.make(names, spec["hostname"], spec["sysctls"])
        if len(made) > len(wanted):
            self._netlink = made.pop()
        for (_, flag), descriptor in zip(wanted, made, strict=True):
            if flag == linux.CLONE_NEWNS:
                self.shared_memory = descriptor
            else:
                self.namespaces.append((descriptor, flag))
            if flag == linux.CLONE_NEWNET:
                self.network = descriptor

    def _hold_pid_namespace(self) -> None:
        forker, cgroups = self._environment.forker, self._environment.cgroups
        if cgroups.usable:
            self._group = cgroups.create(self.id, "", {}, privileged=False, devices=[])
        group = {} if self._group is None else self._group.to_json()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.settimeout(_MOST_WAITED)
            socket.send_fds(ours, [json.dumps(group).encode()], [] if self.network is None else [self.network])
            pid, pidfd = forker.fork("namespace holder", theirs, fresh=True, cgroup=self._group)
            theirs.close()
            try:
                answer, descriptors = protocol.receive(ours, 4096)
                if not descriptors:
                    raise OSError(answer.decode() or "the first process of the PID namespace ended without an answer")
                self.proc = descriptors[0]
                # Until its end: then the process is none of an interpreter any more.
                ours.recv(1)
            except OSError:
                os.close(pidfd)
                forker.end(pid)
                raise
        finally:
            ours.close()
            theirs.close()
        self.pid_namespace = pidfd
        self._holder = pid
        self._environment.loop.watch(self.pid_namespace, self._holder_ended)

    def _holder_ended(self, _events: int) -> None:
        if self.pid_namespace is not None and os.waitpid(self._holder, os.WNOHANG)[0]:
            self._environment.loop.forget(self.pid_namespace)
            os.close(self.pid_namespace)
            self.pid_namespace = None
            self._remove_group(_RETRY)

    def _remove_group(self, retry: float) -> None:
        """A group stays busy for a moment after its last process died."""
        if self._group is not None and not self._group.remove() and retry < _LONGEST_RETRY:
            self._environment.loop.after(retry, lambda: self._remove_group(2 * retry))

    def socket(self, family: int, kind: int, protocol: int) -> int:
        """The descriptor of a new socket in the pod's network, not blocking. Raises OSError."""
        if self.network is None:
            return open_socket(family, kind, protocol)
        if self._netlink is not None and (family, kind, protocol) == NETLINK_ROUTE:
            made, self._netlink = self._netlink, None
            return made
        return self._environment.namespace_maker.open_socket(self.network, family, kind, protocol)

    def start_helper(self, argv: list[str], output: int, on_lost: Callable[[], None]) -> int:
        """Execute a program that serves the pod's network from outside, for as long as the pod is there.

        Returns a pidfd, the caller's to close. `on_lost` is called when it ends before that. `argv` has NAMESPACE where
        it wants the path of the pod's network namespace. What it prints, and why it could not be executed, goes to
        `output`. Raises OSError.
        """
        if self.network is None:
            raise OSError(0, "the pod is on the machine's network")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            socket.send_fds(ours, [json.dumps(argv).encode()], [self.network, output])
            pid, process = self._environment.forker.fork("network helper", theirs)
        try:
            copy = os.dup(process)
        except OSError:
            os.close(process)
            self._environment.forker.end(pid)
            raise
        self._helpers[process] = pid
        self._environment.loop.watch(process, lambda _events: self._helper_ended(process, on_lost))
        return copy

    def _helper_ended(self, process: int, on_lost: Callable[[], None]) -> None:
        if self._reap_helper(process) and self.network is not None:
            log(f"a network helper of pod {self.id} ended by itself")
            self.has_lost_network = True
            on_lost()

    def _reap_helper(self, process: int) -> bool:
        ended = os.waitpid(self._helpers[process], os.WNOHANG)[0] != 0
        if ended:
            self._environment.loop.forget(process)
            os.close(process)
            del self._helpers[process]
        return ended

    def _end_helpers(self) -> None:
        """Kill them. Their ports are free when this returns, unless the kernel takes long; then the loop reaps them."""
        for process in list(self._helpers):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if _is_ready(process):
                self._reap_helper(process)

    def close(self) -> None:
        """Let the namespaces go. Whatever still runs in a shared PID namespace dies with it."""
        self._end_helpers()
        for descriptor, _ in self.namespaces:
            os.close(descriptor)
        self.namespaces, self.network = [], None
        if self.pid_namespace is not None:
            signal.pidfd_send_signal(self.pid_namespace, signal.SIGKILL)
            if _is_ready(self.pid_namespace):
                self._holder_ended(0)
        else:
            self._remove_group(_RETRY)
        for other in (self.shared_memory, self.proc, self._netlink):
            if other is not None:
                os.close(other)
        self.shared_memory = self.proc = self._netlink = None


def _is_ready(process: int) -> bool:
    """Whether a process behind a pidfd has ended, or ends in a moment."""
    poll = select.poll()  # for descriptors of any number
    poll.register(process, select.POLLIN)
    return bool(poll.poll(_MOST_WAITED_FOR_PORTS))


def be_helper(channel: socket.socket) -> NoReturn:
    """In the forked process: execute the program, with the namespace as its only descriptor besides the usual."""
    try:
        arguments, (network, output) = protocol.receive(channel, _LARGEST_ARGUMENTS)
        argv = json.loads(arguments)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.setsid()
        for number in linux.IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.set_inheritable(network, True)
        path = f"/proc/self/fd/{network}"
        os.execve(argv[0], [path if word == NAMESPACE else word for word in argv], dict(os.environ))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}".encode())
    finally:
        os._exit(127)


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
        log(f"cannot delete {SHARED_MEMORY}/{name}: {error}")
    finally:
        os.close(machine)
