"""Watching real processes of this machine, as told by a runtime that a test scripts."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio

from tests.pleg.test_pleg import ScriptedRuntime, drain
from trikubelet.backoff import Backoff
from trikubelet.container.model import ContainerState
from trikubelet.pleg import pidfd
from trikubelet.pleg.exits import ExitTracker
from trikubelet.pleg.pidfd import PidfdWatchers, UnwatchableError, pid_from_info
from trikubelet.pleg.pleg import Pleg
from trikubelet.pleg.relist import Relist
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trikubelet.rpc.cri.client import RuntimeClient


@attrs.define
class ScriptedClient:
    """Tells the pids of containers; None is for one that does not run."""

    pids: list[int | None]
    """The answers, the last one for ever."""
    asked: int = 0
    looks: int = 0
    """Questions for anything but pids, which `state` answers."""
    state: v1.ContainerState = v1.ContainerState.CONTAINER_RUNNING

    async def container_status(self, container_id: str, verbose: bool = False) -> v1.ContainerStatusResponse:
        await trio.lowlevel.checkpoint()
        if not verbose:
            self.looks += 1
            return v1.ContainerStatusResponse(status=v1.ContainerStatus(id=container_id, state=self.state))
        pid = self.pids.pop(0) if len(self.pids) > 1 else self.pids[0]
        self.asked += 1
        state = v1.ContainerState.CONTAINER_EXITED if pid is None else v1.ContainerState.CONTAINER_RUNNING
        return v1.ContainerStatusResponse(
            status=v1.ContainerStatus(id=container_id, state=state), info={"info": json.dumps({"pid": pid or 0})}
        )


@attrs.define
class Watching:
    client: ScriptedClient
    runtime: ScriptedRuntime
    watchers: PidfdWatchers
    pleg: Pleg
    relist: Relist

    async def until(self, condition: Any) -> None:
        with trio.fail_after(5):
            while not condition():
                await trio.sleep(0.005)

    def end(self) -> None:
        """The runtime knows that the container has ended."""
        self.runtime.pods["a"]["c"] = ContainerState.EXITED
        self.client.state = v1.ContainerState.CONTAINER_EXITED

    def state(self) -> ContainerState:
        [container] = self.pleg.cache.get("a").container_statuses
        return container.state


@pytest.fixture
async def watching(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    """A pod `a` whose container `c` runs; its pid is not told yet. Its cgroup does not name it."""
    monkeypatch.setattr(pidfd, "_cgroup_names", lambda _pid, _container: False)
    client = ScriptedClient([0])
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}})
    ends = ExitTracker(cast("RuntimeClient", client))
    watchers = PidfdWatchers(cast("RuntimeClient", client), ends)
    pleg = Pleg(runtime)
    relist = Relist(pleg, runtime, lambda: True, periodic=False)
    nursery.start_soon(drain, pleg)
    await nursery.start(pleg.run)
    await nursery.start(watchers.run, pleg, relist)
    yield Watching(client, runtime, watchers, pleg, relist)
    nursery.cancel_scope.cancel()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(["sleep", "60"])
    yield running
    running.kill()
    running.wait()


async def test_the_end_of_a_process_is_known_at_once_and_looked_for_until_the_runtime_knows(
    watching: Watching, process: subprocess.Popen[bytes]
) -> None:
    watching.client.pids = [process.pid]
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.client.asked == 2)
    assert watching.watchers.problem() is None
    process.kill()
    await watching.until(lambda: watching.client.looks > 3)
    assert watching.state() is ContainerState.RUNNING
    watching.end()
    await watching.until(lambda: watching.state() is ContainerState.EXITED)
    await watching.until(lambda: watching.watchers.watched == 0)


async def test_an_end_that_the_runtime_does_not_confirm_in_time_is_left_to_a_list(
    watching: Watching, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(pidfd, "GIVE_UP_AFTER", 0.05)
    watching.client.pids = [process.pid]
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.client.asked == 2)
    await nursery.start(watching.relist.run)
    lists = watching.relist.lists
    process.kill()
    await watching.until(lambda: watching.relist.lists > lists)


async def test_a_cgroup_that_names_the_container_spares_the_second_question(
    watching: Watching, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pidfd, "_cgroup_names", lambda pid, container: (pid, container) == (process.pid, "c"))
    watching.client.pids = [process.pid]
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.client.asked == 1)
    process.kill()
    watching.end()
    await watching.until(lambda: watching.watchers.watched == 0)
    assert watching.client.asked == 1


def test_a_process_is_of_the_cgroup_that_it_is_in() -> None:
    cgroup = Path("/proc/self/cgroup").read_text().splitlines()[0]
    assert pidfd._cgroup_names(os.getpid(), cgroup)
    assert not pidfd._cgroup_names(os.getpid(), "5c7d6a0f" * 8)
    assert not pidfd._cgroup_names(2**31 - 1, "c")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_pid_that_was_given_to_another_process_is_not_watched(
    watching: Watching, process: subprocess.Popen[bytes]
) -> None:
    watching.client.pids = [process.pid, None]  # the container ended after it had told its pid
    descriptors = open_descriptors()
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.client.asked >= 2)
    watching.end()
    await watching.until(lambda: watching.watchers.watched == 0)
    assert open_descriptors() == descriptors
    assert watching.watchers.problem() is None


async def test_a_process_that_has_just_ended_is_looked_at_when_the_runtime_knows_it(
    watching: Watching, process: subprocess.Popen[bytes]
) -> None:
    process.kill()
    process.wait()
    watching.client.pids = [process.pid, process.pid, process.pid, None]
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.client.asked == 3)
    watching.end()
    await watching.until(lambda: watching.state() is ContainerState.EXITED)
    await watching.until(lambda: watching.watchers.watched == 0)
    assert watching.watchers.problem() is None


async def test_what_cannot_be_watched_is_said_and_tried_again(
    watching: Watching, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pidfd, "RETRIES", Backoff(first=0.05, longest=60.0))

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    watching.client.pids = [process.pid]
    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", refuse)
        await watching.pleg.cache.get_newer_than("a", trio.current_time())
        await watching.until(lambda: watching.watchers.problem() is not None)
        expected = "1 processes cannot be watched, among them that of c: [Errno 24] Too many open files"
        assert watching.watchers.problem() == expected
        with trio.fail_after(1):
            await watching.relist._asked.receive()
    await watching.until(lambda: watching.watchers.problem() is None)
    process.kill()
    watching.end()
    await watching.until(lambda: watching.watchers.watched == 0)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"info": "nonsense"},
        {"info": "[]"},
        {"info": '{"pid": 0}'},
        {"info": '{"pid": "7"}'},
        {"info": f'{{"pid": {2**31}}}'},
        {"info": f'{{"pid": {2**32 - 1}}}'},
        {"info": "[" * 100_000},
    ],
)
def test_a_status_without_a_pid(info: dict[str, str]) -> None:
    with pytest.raises(UnwatchableError, match="does not tell its pid"):
        pid_from_info(info)


async def test_a_process_of_another_host_cannot_be_watched(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pidfd, "EXIT_TIMEOUT", 0.1)
    watching.client.pids = [2**22 + 1]  # more than the kernel ever gives
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.watchers.problem() is not None)
    problem = watching.watchers.problem()
    assert problem is not None
    assert problem.endswith(f"that of c: there is no process {2**22 + 1} on this host")
    watching.end()
    watching.client.pids = [None]
    await watching.pleg.cache.get_newer_than("a", trio.current_time())
    await watching.until(lambda: watching.watchers.watched == 0)
    assert watching.watchers.problem() is None
