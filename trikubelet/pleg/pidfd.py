"""Pidfds: the kernel says that a process ended, some 100 ms before most runtimes do.

The pid of a container's or sandbox's first process comes from its verbose status. Between that reply and `pidfd_open`
the process may have ended and its pid been given to another. So once the pidfd is held, two witnesses are asked: the
cgroup of the pid, which names the container with nearly all runtimes, or else the runtime, which must still say that
the container runs with that pid. When the pidfd becomes readable the pod is inspected until the runtime has seen the
end too.

A process that cannot be watched (no pid in the status, a runtime on another host or in another PID namespace, no
descriptors left, a seccomp profile that forbids it) is tried again now and then. Until then the source counts as
unhealthy, so that relists do not slow down.
"""

from __future__ import annotations

import json
import os
import select
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.backoff import Backoff
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.cri.v1 import ContainerState, PodSandboxState
from trikubelet.supervision import follow, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio_typing import TaskStatus

    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pleg.exits import ExitTracker
    from trikubelet.pleg.pleg import Pleg
    from trikubelet.pleg.relist import Relist
    from trikubelet.rpc.cri.client import RuntimeClient

log = get_logger("pleg")

GIVE_UP_AFTER: Final = 10.0
"""Seconds after which a runtime that has not seen the exit is left to the relists."""
RETRIES: Final = Backoff(first=1.0, longest=60.0)
EXIT_POLL_PERIOD: Final = 0.03
"""Seconds between two questions to the runtime."""
EXIT_TIMEOUT: Final = 2.0
"""Seconds for a runtime to notice that a process is gone."""
RETRY_OF_FOREIGN: Final = 600.0
"""Seconds; a runtime that hides its processes hides all of them, and hardly ever stops doing so."""


class UnwatchableError(Exception):
    """Why a process that runs cannot be watched."""


@frozen
class WatchedProcess:
    """The first process of a container or sandbox."""

    uid: str
    """The pod's."""
    id: str
    is_sandbox: bool


@frozen(eq=False)
class _Unwatchable:
    why: str
    ended: trio.Event = attrs.field(factory=trio.Event)
    """An inspection did not see it run any more."""


class ProcessEnd(Protocol):
    """Something to wait on that belongs to one process."""

    async def wait(self) -> None: ...

    def close(self) -> None: ...


class Pidfd:
    """A process that cannot be mistaken for another."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError when there is none with this pid, and OSError."""
        self._descriptor = os.pidfd_open(pid)

    async def wait(self) -> None:
        await trio.lowlevel.wait_readable(self._descriptor)

    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        os.close(self._descriptor)


class PidfdWatchers:
    """One task per process, each waiting on its pidfd."""

    def __init__(self, client: RuntimeClient, ends: ExitTracker) -> None:
        self._client = client
        self._ends = ends
        self._watched: set[str] = set()
        self._unwatchable: dict[WatchedProcess, _Unwatchable] = {}
        self._running = False
        self._pleg: Pleg | None = None
        self._relist: Relist | None = None

    async def run(
        self, pleg: Pleg, relist: Relist, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Watch until cancelled."""
        self._pleg, self._relist = pleg, relist
        with pleg.observed.subscribe(key=lambda status: status.uid) as statuses:
            self._running = True
            try:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    await follow(statuses, partial(self._watch_processes, nursery))
            finally:
                self._running = False

    def _watch_processes(self, nursery: trio.Nursery, status: PodRuntimeStatus) -> None:
        """Processes that run and have no watcher get one."""
        running = [WatchedProcess(status.uid, one.id.id, is_sandbox=False) for one in status.running_containers()]
        running += [WatchedProcess(status.uid, one.id, is_sandbox=True) for one in status.sandbox_statuses if one.ready]
        for process in running:
            if process.id not in self._watched:
                self._watched.add(process.id)
                nursery.start_soon(self._watch, process)
        for process, unwatchable in self._unwatchable.items():
            if process.uid == status.uid and process not in running:
                unwatchable.ended.set()

    @property
    def watched(self) -> int:
        return len(self._watched)

    def problem(self) -> str | None:
        """Why an end may go unnoticed by this source; None while it watches all there is."""
        if not self._running:
            return "not started"
        if not self._unwatchable:
            return None
        example, unwatchable = next(iter(self._unwatchable.items()))
        number = len(self._unwatchable)
        return f"{number} processes cannot be watched, among them that of {example.id}: {unwatchable.why}"

    async def _watch(self, process: WatchedProcess) -> None:
        try:
            await supervise(self._watch_to_end, process)
        finally:
            self._watched.discard(process.id)
            self._unwatchable.pop(process, None)

    async def _watch_to_end(self, process: WatchedProcess) -> None:
        ended = await self._until_ended(process)
        try:
            if ended:
                if not process.is_sandbox:
                    self._ends.record(process.id)
                await self._follow_up(process)
            elif self._pleg is not None:
                # A process may end before its pidfd is open. Its pod should not wait for a list.
                await trio.sleep(EXIT_POLL_PERIOD)
                self._pleg.container_ended(process.uid, process.id)
        except Exception as error:  # noqa: BLE001 - whatever an inspection raises; a relist sees what has changed
            log.debug("an end was not followed up", id=process.id, error=str(error))
            self._list_soon()

    async def _until_ended(self, process: WatchedProcess) -> bool:
        """Whether it was watched to its end; else it had ended before it could be."""
        end = await self._open_with_retries(process)
        if end is None:
            return False
        with closing(end):
            await end.wait()
        return True

    async def _open_with_retries(self, process: WatchedProcess) -> ProcessEnd | None:
        pause = RETRIES.first
        while True:
            try:
                end = await self._open(process)
            except (UnwatchableError, CRIError, OSError) as error:
                if isinstance(error, UnwatchableError):
                    pause = RETRY_OF_FOREIGN
                unwatchable = self._record_unwatchable(process, str(error))
            else:
                self._unwatchable.pop(process, None)
                return end
            with trio.move_on_after(pause):
                await unwatchable.ended.wait()
            pause = RETRIES.after(pause)

    def _record_unwatchable(self, process: WatchedProcess, why: str) -> _Unwatchable:
        if process not in self._unwatchable:
            log.debug("cannot watch a process", id=process.id, error=why)
            self._list_soon()
        self._unwatchable[process] = _Unwatchable(why)
        return self._unwatchable[process]

    async def _open(self, process: WatchedProcess) -> ProcessEnd | None:
        """None when it does not run any more. Raises UnwatchableError, CRIError and OSError."""
        pid = await self._running_pid(process)
        if pid is None:
            return None
        try:
            pidfd = Pidfd(pid)
        except ProcessLookupError:
            # It has just ended, and the runtime is about to say so; or it runs on another host.
            with trio.move_on_after(EXIT_TIMEOUT):
                while await self._running_pid(process) == pid:  # noqa: ASYNC110 - the runtime sends no event
                    await trio.sleep(EXIT_POLL_PERIOD)
                return None
            raise UnwatchableError(f"there is no process {pid} on this host") from None
        with ExitStack() as unless_kept:
            unless_kept.callback(pidfd.close)
            named = _cgroup_names(pid, process.id) and not pidfd.has_ended()
            if named or await self._running_pid(process) == pid:
                unless_kept.pop_all()
                return pidfd
        return None

    async def _running_pid(self, process: WatchedProcess) -> int | None:
        """The host pid of what runs, None when it does not. Raises UnwatchableError and CRIError."""
        try:
            if process.is_sandbox:
                sandbox = await self._client.pod_sandbox_status(process.id, verbose=True)
                runs, info = sandbox.status.state is PodSandboxState.SANDBOX_READY, sandbox.info
            else:
                container = await self._client.container_status(process.id, verbose=True)
                runs, info = container.status.state is ContainerState.CONTAINER_RUNNING, container.info
        except CRIError as error:
            if error.not_found:
                return None
            raise
        return pid_from_info(info) if runs else None

    async def _follow_up(self, process: WatchedProcess) -> None:
        """Have it looked at once the runtime knows of the end."""
        assert self._pleg is not None
        with trio.move_on_after(GIVE_UP_AFTER) as scope:
            if process.is_sandbox:
                await self._pleg.until_runtime_knows_end(process.uid, process.id)
                return
            await self._pleg.until_nobody_acts(process.uid)
            await self._pleg.until_looked(process.uid)
            if not self._pleg.has_seen_end(process.uid, process.id):
                await self._ends.until_runtime_knows(process.id)
                self._pleg.container_ended(process.uid, process.id)
        if scope.cancelled_caught:
            self._list_soon()

    def _list_soon(self) -> None:
        """What this source cannot tell is the relists' business, and must not wait for their long period."""
        assert self._relist is not None
        self._relist.relist_soon()


def pid_from_info(info: Mapping[str, str]) -> int:
    """The process id in a verbose status, where containerd and CRI-O put it. Raises UnwatchableError."""
    try:
        pid = json.loads(info.get("info", "{}")).get("pid")
    except (ValueError, AttributeError, RecursionError):
        pid = None
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        raise UnwatchableError("the runtime does not tell its pid")
    return pid


def _cgroup_names(pid: int, container_id: str) -> bool:
    try:
        return container_id in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
