"""The keeper's way to fork: it asks a process that knows nothing of its pods (`template.py`).

There are two of these, so that one is left when one is killed: a third could not be had from the keeper any more, whose
memory is what no forked process may have.
"""

from __future__ import annotations

import collections
import json
import os
import select
import signal
import socket
import time

from trikubelet.embedded.keeper import linux, template
from trikubelet.embedded.keeper.log import log
from trikubelet.embedded.keeper.reports import read_birth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from trikubelet.embedded.keeper.cgroups import ContainerCgroup
    from trikubelet.embedded.keeper.context import Machine
    from trikubelet.embedded.keeper.event_loop import EventLoop

    OnBorn: TypeAlias = Callable[[int, str], None]
    """Called with the pid of a child of this process, or with 0 and why there is none."""

_TEMPLATES = 2
_LONGEST_ANSWER = 4096
_ANSWERS_WITHIN = 5.0
_RETRY = 1.0
_LOOK_AGAIN = 0.01
_LOST = "the process that forks for the keeper ended"


class _Template:
    """One that answers its requests in their order."""

    __slots__ = ("channel", "pid", "waiting")

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.channel.setblocking(False)
        self.waiting: collections.deque[OnBorn] = collections.deque()


class Forker:
    """Forks children of this process that have nothing of its memory. To be made before a pod is known."""

    def __init__(self, loop: EventLoop, machine: Machine) -> None:
        self._loop = loop
        self._templates: list[_Template] = []
        """The first one forks."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = linux.plain_fork()
        if pid == 0:
            template.serve(theirs, machine)
        theirs.close()
        self._add(_Template(pid, ours))
        self._fill()

    def start(
        self,
        role: str,
        channel: socket.socket,
        on_born: OnBorn,
        *,
        fresh: bool = False,
        cgroup: ContainerCgroup | None = None,
        oom_score: int | None = None,
    ) -> None:
        """Have a process forked, in a fresh PID namespace or this process's own; `on_born` is called later.

        `role`: one of those in `template.py`. Of this process's descriptors it has `channel` alone. It is born in the
        v2 group of `cgroup`, if it has one, and with the OOM score, if one is given. Raises OSError, and then does not
        call `on_born`.
        """
        request = json.dumps({"role": role, "fresh": fresh, "oom_score": oom_score}).encode()
        descriptors = [channel.fileno()]
        folder = -1
        if cgroup is not None and cgroup.unified is not None:
            folder = os.open(cgroup.unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            descriptors.append(folder)
        try:
            self._send(request, descriptors).waiting.append(on_born)
        finally:
            if folder >= 0:
                os.close(folder)

    def fork(
        self, role: str, channel: socket.socket, *, fresh: bool = False, cgroup: ContainerCgroup | None = None
    ) -> tuple[int, int]:
        """The same, waiting for pid and pidfd: as long as a fork takes, since who forks does nothing else.

        Raises OSError.
        """
        answers: list[tuple[int, str]] = []
        self.start(role, channel, lambda pid, why: answers.append((pid, why)), fresh=fresh, cgroup=cgroup)
        asked = self._templates[0]
        poll = select.poll()
        poll.register(asked.channel, select.POLLIN)
        deadline = time.monotonic() + _ANSWERS_WITHIN
        while not answers:
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._answered(asked)
            else:
                self._lose(asked)
        pid, why = answers[0]
        if pid == 0:
            raise OSError(why)
        return pid, self.watchable(pid)

    def watchable(self, pid: int) -> int:
        """A pidfd of a new child of this process. Raises OSError, and then the child is ended."""
        try:
            return os.pidfd_open(pid)
        except OSError:
            self.end(pid)
            raise

    @property
    def works(self) -> bool:
        """Whether it can fork: not when all that it forks from were killed at once."""
        return bool(self._templates)

    def end(self, pid: int) -> None:
        """SIGKILL to a child of this process that nobody watches. It is collected without waiting for it."""
        os.kill(pid, signal.SIGKILL)
        self._collect(pid)

    def _collect(self, pid: int) -> None:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            self._loop.after(_LOOK_AGAIN, lambda: self._collect(pid))

    def close(self) -> None:
        """End the processes that it forks from: they are in the keeper's cgroup, which is to be deleted."""
        for one in self._templates:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)

    def _send(self, request: bytes, descriptors: list[int]) -> _Template:
        while self._templates:
            first = self._templates[0]
            try:
                socket.send_fds(first.channel, [request], descriptors)
            except (BrokenPipeError, ConnectionResetError):
                self._lose(first)
            else:
                return first
        raise OSError(_LOST)

    def _answered(self, one: _Template) -> None:
        try:
            answer = one.channel.recv(_LONGEST_ANSWER)
        except BlockingIOError:
            return
        except ConnectionError:
            answer = b""
        if not answer:
            self._lose(one)
            return
        one.waiting.popleft()(*read_birth(answer))

    def _add(self, one: _Template) -> None:
        self._templates.append(one)
        self._loop.watch(one.channel.fileno(), lambda _events: self._answered(one))

    def _fill(self) -> None:
        """Have as many as there should be."""
        if not 0 < len(self._templates) < _TEMPLATES:
            return
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    pid, pidfd = self.fork("template", theirs)
                except OSError:
                    ours.close()
                    raise
            os.close(pidfd)
            self._add(_Template(pid, ours))
        except OSError as error:
            log(f"no second process to fork from: {error}")
            self._loop.after(_RETRY, self._fill)

    def _lose(self, one: _Template) -> None:
        if one not in self._templates:
            return
        log(f"process {one.pid}, which forks for the keeper, ended or does not answer")
        self._templates.remove(one)
        self._loop.forget(one.channel.fileno())
        one.channel.close()
        self.end(one.pid)
        self._loop.after(0, self._fill)
        while one.waiting:
            one.waiting.popleft()(0, _LOST)
