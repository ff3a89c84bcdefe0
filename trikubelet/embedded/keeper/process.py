"""A forked process as the keeper sees it: its report on the way to exec, how it ended, and how to end it for sure."""

from __future__ import annotations

import array
import errno
import os
import signal
import socket
import struct

from trikubelet.embedded.keeper import child, linux
from trikubelet.embedded.keeper.reaper import STATUS
from trikubelet.embedded.keeper.reaper_program import open_program
from trikubelet.embedded.keeper.reports import read_report, read_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from trikubelet.embedded.keeper.cgroups import ContainerCgroup
    from trikubelet.embedded.keeper.event_loop import EventLoop

_KILL_ROUNDS_PER_TURN = 20
_PAUSE_BETWEEN_KILLS = 0.002
_CREDENTIALS = struct.Struct("iII")


class Forker:
    """Forks into PID namespaces and cgroups. This process itself never leaves its own namespaces.

    To be made before this process gives up to be dumpable: its own files in procfs are closed to it then, unless it is
    the machine's root. So would a child's be, which is why this process takes the child's OOM score for the fork.
    """

    def __init__(self) -> None:
        self.born_in_cgroup = False
        """For the child: whether it is in the v2 group already, or has to join."""
        self.program = open_program()
        """What a process executes that only reaps."""
        self._oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)

    def fork(
        self,
        namespace: int | None,
        *,
        kept: Collection[int],
        fresh: bool = False,
        cgroup: ContainerCgroup | None = None,
        oom_score: int | None = None,
        enter: Callable[[], None] | None = None,
    ) -> int:
        """`os.fork` into a fresh PID namespace, that of the process behind pidfd `namespace`, or this one's.

        The child is born in the v2 group of `cgroup`, if it has one, with the OOM score, if one is given, and has of
        this process's descriptors only those that are `kept`. With a `namespace`, `enter` is called before the child
        is in there, and what it changes the child has. Raises OSError, what `enter` raises among them.
        """
        own = None if oom_score is None else os.pread(self._oom_score, 16, 0)
        if own is not None:
            self._write_oom_score(str(oom_score).encode())
        pid = -1
        try:
            pid = self._fork_into_cgroup(namespace, kept, fresh=fresh, cgroup=cgroup, enter=enter)
        finally:
            if own is not None and pid != 0:
                self._write_oom_score(own)
        return pid

    def _write_oom_score(self, score: bytes) -> None:
        try:
            os.pwrite(self._oom_score, score, 0)
        except OSError:
            # Lowering it takes CAP_SYS_RESOURCE. A container that is killed a little earlier is better than none.
            return

    def _fork_into_cgroup(
        self,
        namespace: int | None,
        kept: Collection[int],
        *,
        fresh: bool,
        cgroup: ContainerCgroup | None,
        enter: Callable[[], None] | None,
    ) -> int:
        unified = None if cgroup is None else cgroup.unified
        self.born_in_cgroup = unified is not None
        if unified is None:
            return self._fork(namespace, kept, fresh=fresh, folder=None, enter=enter)
        folder = os.open(unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._fork(namespace, {*kept, folder}, fresh=fresh, folder=folder, enter=enter)
        finally:
            os.close(folder)

    def _fork(
        self,
        namespace: int | None,
        kept: Collection[int],
        *,
        fresh: bool,
        folder: int | None,
        enter: Callable[[], None] | None,
    ) -> int:
        if namespace is not None:
            return _fork_elsewhere(namespace, kept, folder, enter)
        pid = self._fork_here(fresh=fresh, folder=folder)
        if pid == 0:
            linux.close_all_but(kept)
        return pid

    def _fork_here(self, *, fresh: bool, folder: int | None) -> int:
        if folder is None and not fresh:
            return linux.plain_fork()
        try:
            return linux.fork(linux.CLONE_NEWPID if fresh else 0, folder)
        except OSError as error:
            # System call filters of some container runtimes pretend that clone3 does not exist.
            if fresh or error.errno != errno.ENOSYS:
                raise
            self.born_in_cgroup = False
            return linux.plain_fork()


def _fork_elsewhere(namespace: int, kept: Collection[int], folder: int | None, enter: Callable[[], None] | None) -> int:
    """Fork into another process's PID namespace.

    A process that enters one may not be allowed back (in a user namespace, to the host's). So a process in
    between enters it, and makes the child not its own but a sibling: a child of this process. Descriptors are closed
    and privileges given up there, and the filter is loaded, where nobody in that namespace can see it: a process with
    SYS_PTRACE could take the child over.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    between = linux.plain_fork() if folder is None else linux.fork(0, folder)
    if between == 0:
        try:
            linux.close_all_but({*kept, namespace, writer})
            linux.setns(namespace, linux.CLONE_NEWPID)
            if enter is not None:
                enter()
            pid = linux.plain_fork(linux.CLONE_PARENT)
            if pid == 0:
                os.close(writer)
                if namespace not in kept:
                    os.close(namespace)
                return 0
            answer = f"{pid} "
        except OSError as error:
            answer = f"0 {error.errno or 0} {error.strerror or error}"
        except Exception as error:  # noqa: BLE001 - nothing may travel up into the keeper's loop
            answer = f"0 0 {error}"
        os.write(writer, answer.encode(errors="backslashreplace"))
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 4096).decode(errors="replace")
    os.close(reader)
    os.waitpid(between, 0)
    pid_text, _, failure = answer.partition(" ")
    if not answer or pid_text == "0":
        number, _, text = failure.partition(" ")
        if not text:
            raise OSError("the process in between ended without an answer")
        raise OSError(int(number), text) if int(number) else OSError(text)
    return int(pid_text)


class Process:
    """One forked process and, behind a reaper, the command that it started.

    `on_report(message, descriptors)` for each message on the way; `on_ready()` when the exec worked or the process is
    gone without a word; `on_end(status)` once, with the command's wait status; `on_gone()` once, when nothing is left
    of it (with a reaper that keeps orphans: of its descendants either).
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        on_report: Callable[[dict[str, Any], list[int]], None],
        on_ready: Callable[[], None],
        on_end: Callable[[int], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_report = on_report
        self._on_ready = on_ready
        self._on_end = on_end
        self._on_gone = on_gone
        self._report: socket.socket | None = None
        self._status: socket.socket | None = None
        self._ended = False
        self._killing = False
        self.gone = False
        self.child = 0
        """The forked process: the command itself, or its reaper."""
        self.pid = 0
        """The command."""
        self._child_pidfd = -1
        self.pidfd = -1

    def spawn(
        self,
        forker: Forker,
        namespace: int | None,
        spec: dict[str, Any],
        context: child.ChildContext,
        *,
        fresh: bool,
        with_reaper: bool,
        kept: Collection[int],
    ) -> None:
        """Fork what `spec` and `context` describe. Raises OSError.

        The child has the descriptors that are `kept`, those to report to and the reaper's program.
        """
        self._report, their_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._report.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._report.setblocking(False)
        their_status: socket.socket | None = None
        if with_reaper:
            self._status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._status.setblocking(False)
        try:
            needed = {*kept, their_report.fileno()}
            if their_status is not None:
                needed |= {their_status.fileno(), *([] if forker.program is None else [forker.program])}
            context.report = their_report.fileno()
            context.status_channel = None if their_status is None else their_status.fileno()
            context.reaper_program = forker.program
            self.child = forker.fork(
                namespace,
                kept=needed,
                fresh=fresh,
                cgroup=context.cgroup,
                oom_score=spec["oom_score_adj"] or 0,
                enter=lambda: child.enter(spec, context, born_in_cgroup=forker.born_in_cgroup),
            )
        except OSError:
            self._close_channels()
            their_report.close()
            if their_status is not None:
                their_status.close()
            raise
        if self.child == 0:
            child.run(spec, context, born_in_cgroup=forker.born_in_cgroup)
        their_report.close()
        if their_status is not None:
            their_status.close()
        self._child_pidfd = os.pidfd_open(self.child)
        self._loop.watch(self._report.fileno(), self._report_ready)
        self._loop.watch(self._child_pidfd, self._child_ended)
        if self._status is None:
            self.pid, self.pidfd = self.child, self._child_pidfd
        else:
            self._loop.watch(self._status.fileno(), self._status_ready)

    def is_on_its_way(self) -> bool:
        """Whether it has neither executed its program nor ended, heard of or not."""
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._report is not None and os.waitid(os.P_PIDFD, self._child_pidfd, ended) is None

    def let_go_on(self) -> None:
        """Tell a process that waits for its start to execute its program. What came to an end is heard of otherwise."""
        if self._report is not None:
            try:
                self._report.send(child.START)
            except OSError:
                return

    def send_signal(self, number: int) -> None:
        """Signal the command. Raises ProcessLookupError when it has ended."""
        if self.pidfd < 0:
            raise ProcessLookupError("the process has ended")
        signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """SIGKILL to the command and, behind a reaper, to all that it started, again and again until none is left."""
        if self.gone or self._killing:
            return
        self._killing = True
        self._kill_round()

    def _kill_round(self) -> None:
        if self.gone:
            return
        if self._status is None:
            signal.pidfd_send_signal(self._child_pidfd, signal.SIGKILL)
            return
        for _ in range(_KILL_ROUNDS_PER_TURN):
            if not kill_descendants(self.child):
                break
        self._loop.after(_PAUSE_BETWEEN_KILLS, self._kill_round)

    # -- what the descriptors say -------------------------------------------------------------------------------

    def _report_ready(self, _events: int) -> bool:
        """Take one message. False when none is waiting."""
        assert self._report is not None
        try:
            data, control, _, _ = self._report.recvmsg(64 * 1024, 256, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it ended without reading that it may go on; what it said before comes now
        if not data:
            self._report_finished()
            return True
        descriptors, sender = _unpack(control)
        if self.pidfd < 0 and sender > 0 and not self._ended:
            self._know_command(sender)
        message = read_report(data, len(descriptors))
        if message is None:
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            self._on_report(message, descriptors)
        return True

    def _report_finished(self) -> None:
        assert self._report is not None
        self._loop.forget(self._report.fileno())
        self._report.close()
        self._report = None
        self._on_ready()

    def _receive_rest(self) -> None:
        while self._report is not None:
            if not self._report_ready(0):
                self._report_finished()

    def _know_command(self, pid: int) -> None:
        """A pidfd of the command behind a reaper; none if it has ended already and its pid means someone else."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        if pid == self.child or pid not in children_of(self.child):
            os.close(pidfd)
            return
        self.pid, self.pidfd = pid, pidfd

    def _status_ready(self, _events: int) -> None:
        assert self._status is not None
        try:
            data = self._status.recv(STATUS.size + 1)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        status = read_status(data)
        if status is not None:
            self._end(status)
        elif data:
            return
        self._loop.forget(self._status.fileno())

    def _child_ended(self, _events: int) -> None:
        pid, status = os.waitpid(self.child, os.WNOHANG)
        if pid == 0:
            return
        self._receive_rest()
        if self._status is not None:
            self._read_last_status()
            status = signal.SIGKILL
        self._loop.forget(self._child_pidfd)
        os.close(self._child_pidfd)
        if self.pidfd >= 0 and self.pidfd != self._child_pidfd:
            os.close(self.pidfd)
        self.pidfd = self._child_pidfd = -1
        self.gone = True
        self._end(status)
        self._close_channels()
        self._on_gone()

    def _read_last_status(self) -> None:
        if not self._ended:
            self._status_ready(0)

    def _end(self, status: int) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(status)

    def _close_channels(self) -> None:
        for channel in (self._report, self._status):
            if channel is not None:
                self._loop.forget(channel.fileno())
                channel.close()


def exit_code(status: int) -> int:
    """A wait status as a shell shows it: 128 and the signal's number for a killed process."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def children_of(pid: int) -> list[int]:
    """Direct children of all of a process's threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


def kill_descendants(pid: int) -> int:
    """SIGKILL to everything below a process; how many were there that were not dead already."""
    killed = 0
    waiting = children_of(pid)
    while waiting:
        victim = waiting.pop()
        waiting += children_of(victim)
        killed += _kill_one(victim)
    return killed


def _kill_one(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                return 0
        os.kill(pid, signal.SIGKILL)
    except (OSError, IndexError):
        return 0
    return 1


def _unpack(control: list[tuple[int, int, bytes]]) -> tuple[list[int], int]:
    """Passed descriptors and the sender's pid as this process sees it."""
    descriptors = array.array("i")
    sender = 0
    for level, kind, data in control:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        elif kind == socket.SCM_CREDENTIALS:
            sender = _CREDENTIALS.unpack_from(data)[0]
    return descriptors.tolist(), sender
