"""A pod's shared namespaces, held open as descriptors: there is no pause process.

Hostname (UTS), IPC and network namespaces are made by a process that is forked for it and ends at once. So is every
socket in a pod's network: in a user namespace this process could not come back from there. Only a PID namespace
that containers share needs somebody in it: a forked process that does nothing but reap (`reaper.py`).
Its `/dev/shm` is the only mount of a mount namespace that no process is in: it has no name on the machine, and goes
with the last container and with this process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import struct

from trikubelet.embedded.keeper import linux, reaper, rootfs
from trikubelet.embedded.keeper.cgroups import write_file
from trikubelet.embedded.keeper.log import log
from trikubelet.linux.trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.environment import Environment

SHARED_MEMORY = "/dev/shm"
NAMESPACE = "{namespace}"
"""In a helper's arguments: the path of the pod's network namespace."""
_SHARED_MEMORY_OPTIONS = "mode=1777,size=65536k"
_NETLINK_ROUTE = (socket.AF_NETLINK, socket.SOCK_RAW, 0)
# Not in the socket module; `struct ifreq` with its flags.
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_MOST_WAITED = 100  # milliseconds
_IFREQ = struct.Struct("16sh22x")


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
        self.network: int | None = None
        """The descriptor of the pod's network namespace, which is among `namespaces`; None: the machine's network."""
        self._netlink: int | None = None
        """A socket in there, for who sets it up: one that is made later costs a process."""
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
        if spec.get("network") == "pod":  # absent in what an older agent asks for
            wanted.append(("net", linux.CLONE_NEWNET))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = linux.plain_fork()
        if pid == 0:
            ours.close()
            _be_namespaces(theirs, wanted, spec, self._environment.root)
        theirs.close()
        try:
            answer, descriptors, _, _ = socket.recv_fds(ours, 4096, len(wanted) + 1, socket.MSG_CMSG_CLOEXEC)
            if answer != b"made":
                raise OSError(0, answer.decode() or "the process that makes them ended without an answer")
            if len(descriptors) > len(wanted):
                self._netlink = descriptors.pop()
            for (_, flag), descriptor in zip(wanted, descriptors, strict=True):
                if flag == linux.CLONE_NEWNS:
                    self.shared_memory = descriptor
                else:
                    self.namespaces.append((descriptor, flag))
                if flag == linux.CLONE_NEWNET:
                    self.network = descriptor
        finally:
            ours.close()
            os.waitpid(pid, 0)

    def _hold_pid_namespace(self) -> None:
        forker = self._environment.forker
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            optional = (forker.program, self.network)
            kept = {theirs.fileno(), *(descriptor for descriptor in optional if descriptor is not None)}
            pid = forker.fork(None, kept=kept, fresh=True)
            if pid == 0:
                reaper.hold_pid_namespace(forker.program, theirs, self._environment.root, self.network)
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

    def socket(self, family: int, kind: int, protocol: int) -> int:
        """The descriptor of a new socket in the pod's network, not blocking. Raises OSError."""
        if self.network is None:
            return _open_socket(family, kind, protocol)
        if self._netlink is not None and (family, kind, protocol) == _NETLINK_ROUTE:
            made, self._netlink = self._netlink, None
            return made
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = linux.plain_fork()
        if pid == 0:
            _be_socket(theirs, self.network, (family, kind, protocol))
        theirs.close()
        try:
            answer, descriptors, _, _ = socket.recv_fds(ours, 4096, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                raise OSError(0, answer.decode() or "the process that makes it ended without an answer")
            return descriptors[0]
        finally:
            ours.close()
            os.waitpid(pid, 0)

    def start_helper(self, argv: list[str], output: int) -> int:
        """Execute a program that serves the pod's network from outside, for as long as the pod is there.

        Returns a pidfd, the caller's to close. `argv` has NAMESPACE where it wants the path of the pod's network
        namespace. What it prints, and why it could not be executed, goes to `output`. Raises OSError.
        """
        if self.network is None:
            raise OSError(0, "the pod is on the machine's network")
        pid = os.fork()
        if pid == 0:
            _be_helper(argv, self.network, output)
        process = os.pidfd_open(pid)
        self._helpers[process] = pid
        self._environment.loop.watch(process, lambda _events: self._helper_ended(process))
        return os.dup(process)

    def _helper_ended(self, process: int) -> None:
        pid = self._helpers[process]
        if os.waitpid(pid, os.WNOHANG)[0]:
            log(f"a network helper of pod {self.id} ended, pid {pid}")
            self._environment.loop.forget(process)
            os.close(process)
            del self._helpers[process]

    def _end_helpers(self) -> None:
        """Kill them. Their ports are free when this returns, unless the kernel takes long; then the loop reaps them."""
        for process in list(self._helpers):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if _is_ready(process):
                self._helper_ended(process)

    def close(self) -> None:
        """Let the namespaces go. Whatever still runs in a shared PID namespace dies with it."""
        self._end_helpers()
        for descriptor, _ in self.namespaces:
            os.close(descriptor)
        self.namespaces, self.network = [], None
        if self.pid_namespace is not None:
            signal.pidfd_send_signal(self.pid_namespace, signal.SIGKILL)
        for other in (self.shared_memory, self.proc, self._netlink):
            if other is not None:
                os.close(other)
        self.shared_memory = self.proc = self._netlink = None


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
        if flags & linux.CLONE_NEWNET:
            _bring_loopback_up()
        for name, value in spec["sysctls"].items():
            write_file("/proc/sys/" + name.replace(".", "/"), value)
        descriptors = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name, _ in wanted]
        if flags & linux.CLONE_NEWNET:
            descriptors.append(_open_socket(*_NETLINK_ROUTE))
        if flags & linux.CLONE_NEWNS:
            rootfs.enter_new_root(folder, "tmpfs", rootfs.QUIET, _SHARED_MEMORY_OPTIONS)
        socket.send_fds(channel, [b"made"], descriptors)
    except OSError as error:
        channel.send(str(error).encode())
    finally:
        os._exit(0)


def _is_ready(process: int) -> bool:
    """Whether a process behind a pidfd has ended, or ends in a moment."""
    poll = select.poll()  # for descriptors of any number
    poll.register(process, select.POLLIN)
    return bool(poll.poll(_MOST_WAITED))


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", _IFF_UP))


def _be_socket(channel: socket.socket, network: int, wanted: tuple[int, int, int]) -> NoReturn:
    """In the forked process: make a socket in another network, hand it over, and end."""
    try:
        linux.close_all_but([channel.fileno(), network])
        linux.setns(network, linux.CLONE_NEWNET)
        socket.send_fds(channel, [b"made"], [_open_socket(*wanted)])
    except OSError as error:
        channel.send(str(error).encode())
    finally:
        os._exit(0)


def _be_helper(argv: list[str], network: int, output: int) -> NoReturn:
    """In the forked process: execute the program, with the namespace as its only descriptor besides the usual."""
    try:
        linux.close_all_but([network, output])
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.set_inheritable(network, True)
        path = f"/proc/self/fd/{network}"
        os.execve(argv[0], [path if word == NAMESPACE else word for word in argv], dict(os.environ))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _open_socket(family: int, kind: int, protocol: int) -> int:
    """The descriptor of a new socket in this process's network, not blocking. Raises OSError."""
    return socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol).detach()


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
