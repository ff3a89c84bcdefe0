"""A process on its way, as the keeper sees it: what it waits for, how long, and who is forked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.patience import PATIENCE
from trikubelet.embedded.keeper import linux
from trikubelet.embedded.keeper import process as processes
from trikubelet.embedded.keeper.context import ChildContext
from trikubelet.embedded.keeper.event_loop import EventLoop
from trikubelet.embedded.keeper.process import Process
from trikubelet.embedded.keeper.reports import read_sibling

if TYPE_CHECKING:
    import socket


@attrs.define
class Forks:
    """In the place of a Forker: the test says what has been forked."""

    ended: list[int] = attrs.field(factory=list)
    asked: list[Callable[[int, str], None]] = attrs.field(factory=list)
    report: int = -1
    """The forked process's end, which stays open as long as it has not executed its program."""

    def start(self, _role: str, channel: socket.socket, on_born: Callable[[int, str], None], **_: Any) -> None:
        self.report = os.dup(channel.fileno())
        self.asked.append(on_born)

    def watchable(self, pid: int) -> int:
        return os.pidfd_open(pid)

    def end(self, pid: int) -> None:
        self.ended.append(pid)


@attrs.define
class Way:
    """One process, and what has been heard of it."""

    loop: EventLoop
    forks: Forks
    process: Process = attrs.field(init=False)
    heard: list[Any] = attrs.field(factory=list)

    def begin(self, *, pid_namespace: int | None = None, waits: bool = False) -> None:
        self.process = Process(
            self.loop,
            self.forks,  # type: ignore[arg-type]
            on_born=lambda: self.heard.append("born"),
            on_report=lambda message, _descriptors: self.heard.append(message),
            on_ready=lambda: self.heard.append("ready"),
            on_end=lambda status: self.heard.append(status),
            on_gone=self._gone,
        )
        null = os.open("/dev/null", os.O_RDWR)
        context = ChildContext(
            (null, null, null), cgroup=None, reaper_keeps_orphans=False, pid_namespace=pid_namespace, waits=waits
        )
        self.process.spawn({"oom_score_adj": 0}, context, fresh=False, with_reaper=False)
        os.close(null)

    def _gone(self) -> None:
        self.heard.append("gone")
        self.loop.stop()

    def run(self) -> None:
        """Until it is gone."""
        self.loop.after(PATIENCE, self.loop.stop)
        self.loop.run()
        os.close(self.forks.report)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Way:
    monkeypatch.setattr(processes, "WAY_IN_LIMIT", 0.01)
    return Way(EventLoop(), Forks())


def sleeper() -> int:
    return os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})


TOO_LATE = {"error": "its program was not executed within 0.01 s"}


def test_one_that_does_not_get_to_its_program_is_told_of_and_ended(way: Way) -> None:
    way.begin()
    way.forks.asked[0](sleeper(), "")
    way.run()
    assert way.heard == ["born", TOO_LATE, "ready", signal.SIGKILL, "gone"]


def test_one_that_waits_has_its_time_from_its_start_on(way: Way) -> None:
    way.begin(waits=True)
    way.forks.asked[0](sleeper(), "")
    way.loop.after(0.05, lambda: way.heard.append("started"))
    way.loop.after(0.05, way.process.let_go_on)
    way.run()
    assert way.heard == ["born", "started", TOO_LATE, "ready", signal.SIGKILL, "gone"]


def test_one_that_is_never_forked_is_given_up_and_ended_when_it_comes_after_all(way: Way) -> None:
    way.begin()
    way.run()
    assert way.heard == [TOO_LATE, "ready", signal.SIGKILL, "gone"]
    way.forks.asked[0](4321, "")
    way.forks.asked[0](0, "no more processes")
    assert way.forks.ended == [4321]


def test_one_that_cannot_be_forked_says_why(way: Way) -> None:
    way.begin()
    way.forks.asked[0](0, "no more processes")
    assert way.heard == [{"error": "no more processes"}, "ready", signal.SIGKILL, "gone"]
    os.close(way.forks.report)


def test_one_that_is_killed_before_it_is_known_ends_as_soon_as_it_is(way: Way) -> None:
    way.begin(waits=True)
    way.process.kill()
    way.forks.asked[0](sleeper(), "")
    way.run()
    assert way.heard[0] == "born"
    assert way.heard[-2:] == [signal.SIGKILL, "gone"]


def in_between() -> int:
    return os.posix_spawn("/bin/true", ["true"], {})


def left_in(way: Way, pid: int, why: bytes = b"") -> None:
    """What the kernel and the process in between leave."""
    os.pwrite(way.process._birth, pid.to_bytes(4, sys.byteorder) + why, 0)


@pytest.mark.parametrize(
    ("why", "told"),
    [(b"", "the process in between ended without an answer"), (b"no such process", "no such process")],
)
def test_a_process_in_between_that_forks_nobody_says_why(
    way: Way, why: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WAY_IN_LIMIT", PATIENCE)
    way.begin(pid_namespace=0)
    left_in(way, 0, why)
    way.forks.asked[0](in_between(), "")
    way.run()
    assert way.heard == [{"error": told}, "ready", signal.SIGKILL, "gone"]


def test_what_a_process_in_between_has_forked_is_ended_with_it(way: Way) -> None:
    """Killed in between, it had forked already: the keeper is the parent, and nobody else would collect that."""
    way.begin(pid_namespace=0, waits=True)
    forked = sleeper()
    way.process.kill()
    left_in(way, forked)
    way.forks.asked[0](in_between(), "")
    way.run()
    assert way.heard[0] == "born"
    assert way.heard[-2:] == [signal.SIGKILL, "gone"]
    with pytest.raises(ChildProcessError):
        os.waitpid(forked, 0)


def test_a_pid_is_told_by_who_is_killed_right_after_its_fork_and_by_nobody_else() -> None:
    page = os.memfd_create("page", os.MFD_CLOEXEC)
    os.ftruncate(page, 4096)
    killed = os.fork()
    if killed == 0:
        shared = linux.shared_page(page)
        if linux.plain_fork(linux.CLONE_PARENT, pid_at=shared) == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            shared[0] = b"x"  # not in its memory
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(killed, 0)[1] == signal.SIGKILL
    forked, why = read_sibling(os.pread(page, 4096, 0))
    assert why == ""
    assert os.WTERMSIG(os.waitpid(forked, 0)[1]) == signal.SIGSEGV
    os.close(page)
