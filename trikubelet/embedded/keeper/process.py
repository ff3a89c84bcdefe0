"""A forked process as the keeper sees it: its report on the way to exec, how it ended, and how to end it for sure.

The keeper waits for none of this: it hears of the process's pid, its report and its end in its loop. What takes longer
than WAY_IN_LIMIT to get to its program, in a file system that does not answer maybe, is ended.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct

from trikubelet.embedded.keeper import context as contexts
from trikubelet.embedded.keeper.child import START
from trikubelet.embedded.keeper.log import words_of
from trikubelet.embedded.keeper.protocol import close, too_many_open_files
from trikubelet.embedded.keeper.reaper import STATUS
from trikubelet.embedded.keeper.reports import LONGEST_REASON, PID_SIZE, read_report, read_sibling, read_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trikubelet.embedded.keeper.context import ChildContext
    from trikubelet.embedded.keeper.event_loop import EventLoop, Timer
    from trikubelet.embedded.keeper.forker import Forker

WAY_IN_LIMIT = 45.0
"""Seconds for the way from the fork, or from the word that it may go on, to the program. Agents wait a minute."""
_KILL_ROUNDS_PER_TURN = 20
_PAUSE_BETWEEN_KILLS = 0.002
_CREDENTIALS = struct.Struct("iII")
_CONTROL_SPACE = 256


class Process:
    """One forked process and, behind a reaper, the command that it started.

    `on_born()` when the forked process is known; `on_report(message, descriptors)` for each message on the way, which
    takes the descriptors that it keeps out of the list (if it raises OSError the process is given up);
    `on_ready()` when the exec worked or the process is gone without a word; `on_end(status)` once, with the command's
    wait status; `on_gone()` once, when nothing is left of it (with a reaper that keeps orphans: of its descendants
    either). One that cannot be forked reports an error, is ready, ends and is gone.
    """

    def __init__(
        self,
        loop: EventLoop,
        forker: Forker,
        *,
        on_report: Callable[[dict[str, Any], list[int]], None],
        on_ready: Callable[[], None],
        on_end: Callable[[int], None],
        on_gone: Callable[[], None],
        on_born: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._forker = forker
        self._on_born = on_born
        self._on_report = on_report
        self._on_ready = on_ready
        self._on_end = on_end
        self._on_gone = on_gone
        self._report: socket.socket | None = None
        self._status: socket.socket | None = None
        self._birth = -1
        """The memfd in which the process in between leaves whom it has forked into another PID namespace."""
        self._between = 0
        self._between_pidfd = -1
        self._limit: Timer | None = None
        self._ended = False
        self._killing = False
        self._has_command = False
        """Whether a reaper, if there is one, has a command to be ended with."""
        self.gone = False
        self.child = 0
        """The forked process: the command itself, or its reaper. 0 until it is known."""
        self.pid = 0
        """The command."""
        self._child_pidfd = -1
        self.pidfd = -1

    def spawn(self, spec: dict[str, Any], context: ChildContext, *, fresh: bool, with_reaper: bool) -> None:
        """Have forked what `spec` and `context` describe. Raises OSError, with nothing left behind.

        One that is expected is told the rest later, by `tell`.
        """
        theirs: list[socket.socket] = []
        try:
            self._report, report = _pair(with_credentials=True)
            theirs.append(report)
            if with_reaper:
                self._status, status = _pair()
                theirs.append(status)
                context.status_channel = status.fileno()
            if context.pid_namespace is not None:
                context.birth = self._birth = os.memfd_create("trikubelet-birth", os.MFD_CLOEXEC)
                os.ftruncate(self._birth, PID_SIZE + LONGEST_REASON)
            contexts.send(self._report, spec, context)
            oom_score = None if context.is_expected else spec["oom_score_adj"] or 0
            self._forker.start(
                "container", report, self._forked, fresh=fresh, cgroup=context.cgroup, oom_score=oom_score
            )
        except OSError:
            self._close_channels()
            raise
        finally:
            for channel in theirs:
                channel.close()
        if not context.waits:
            self._limit_the_way()

    def tell(self, spec: dict[str, Any], context: ChildContext) -> None:
        """The specification, to one that was forked without. Raises OSError."""
        if self._report is None:
            raise OSError("the process that was to become it has ended")
        contexts.send(self._report, spec, context)

    def _limit_the_way(self) -> None:
        self._limit = self._loop.after(WAY_IN_LIMIT, self._too_late)

    def _too_late(self) -> None:
        """Told at once, however long the kernel takes to let go of it."""
        why = f"its program was not executed within {WAY_IN_LIMIT:g} s"
        if self.child == self._between == 0:
            self._not_born(why)
            return
        self._fail(why)

    # -- its birth ------------------------------------------------------------------------------------------------

    def _forked(self, pid: int, why: str) -> None:
        """The template's answer: the child, or the process between here and a PID namespace with others."""
        if self.gone:
            if pid != 0:
                self._forker.end(pid)
            return
        if pid == 0:
            self._not_born(why)
            return
        try:
            pidfd = self._forker.watchable(pid)
        except OSError as error:
            self._not_born(words_of(error))
            return
        if self._birth < 0:
            self._born(pid, pidfd)
            return
        self._between, self._between_pidfd = pid, pidfd
        self._loop.watch(pidfd, self._between_ended)
        if self._killing:
            self._kill_round()

    def _between_ended(self, _events: int) -> None:
        if os.waitpid(self._between, os.WNOHANG)[0] == 0:
            return
        self._loop.forget(self._between_pidfd)
        os.close(self._between_pidfd)
        self._between_pidfd = -1
        pid, why = read_sibling(os.pread(self._birth, PID_SIZE + LONGEST_REASON, 0))
        os.close(self._birth)
        self._birth = -1
        if pid == 0:
            self._not_born(why)
            return
        try:
            self._born(pid, self._forker.watchable(pid))
        except OSError as error:
            self._not_born(words_of(error))

    def _born(self, pid: int, pidfd: int) -> None:
        self.child, self._child_pidfd = pid, pidfd
        if self._report is not None:
            self._loop.watch(self._report.fileno(), self._report_ready)
        self._loop.watch(pidfd, self._child_ended)
        if self._status is None:
            self.pid, self.pidfd = pid, pidfd
        else:
            self._loop.watch(self._status.fileno(), self._status_ready)
        self._on_born()
        if self._killing:
            self._kill_round()

    def _not_born(self, why: str) -> None:
        self.gone = True
        if self._report is not None:
            self._on_report({"error": why}, [])
            self._report_finished()
        self._close_channels()
        self._end(signal.SIGKILL)
        self._on_gone()

    # -- what may be done to it -----------------------------------------------------------------------------------

    def is_on_its_way(self) -> bool:
        """Whether it has neither executed its program nor ended, heard of or not."""
        if self._report is None or self.child == 0:
            return self._report is not None
        return os.waitid(os.P_PIDFD, self._child_pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def let_go_on(self) -> None:
        """Tell a process that waits for its start to execute its program. What came to an end is heard of otherwise."""
        if self._report is not None:
            self._limit_the_way()
            try:
                self._report.send(START)
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
        if self.child == 0:
            if self._between_pidfd >= 0:
                signal.pidfd_send_signal(self._between_pidfd, signal.SIGKILL)
            return  # again when there is news of its birth
        if self._status is None:
            signal.pidfd_send_signal(self._child_pidfd, signal.SIGKILL)
            return
        for _ in range(_KILL_ROUNDS_PER_TURN):
            if not kill_descendants(self.child):
                if not self._has_command:
                    signal.pidfd_send_signal(self._child_pidfd, signal.SIGKILL)
                break
        self._loop.after(_PAUSE_BETWEEN_KILLS, self._kill_round)

    # -- what the descriptors say -------------------------------------------------------------------------------

    def _report_ready(self, _events: int) -> bool:
        """Take one message. False when none is waiting."""
        assert self._report is not None
        try:
            data, control, flags, _ = self._report.recvmsg(64 * 1024, _CONTROL_SPACE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it ended without reading that it may go on; what it said before comes now
        if not data:
            self._report_finished()
            return True
        descriptors, sender = _unpack(control)
        self._has_command = self._has_command or sender not in (0, self.child)
        try:
            if flags & socket.MSG_CTRUNC:
                raise too_many_open_files()
            if self.pidfd < 0 and sender > 0 and not self._ended:
                self._know_command(sender)
            message = read_report(data, len(descriptors))
            if message is not None:
                self._on_report(message, descriptors)
        except OSError as error:
            self._fail(str(error))
        finally:
            close(descriptors)
        return True

    def _fail(self, why: str) -> None:
        """Give it up on its way, and tell so before it has ended."""
        self._on_report({"error": why}, [])
        self._report_finished()
        self.kill()

    def _report_finished(self) -> None:
        assert self._report is not None
        self._loop.forget(self._report.fileno())
        self._report.close()
        self._report = None
        if self._limit is not None:
            self._limit.cancel()
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
        if self._birth >= 0:
            os.close(self._birth)
            self._birth = -1


def _pair(*, with_credentials: bool = False) -> tuple[socket.socket, socket.socket]:
    """This process's end, and a forked one's. `with_credentials`: the kernel says who has sent what."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    if with_credentials:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


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
