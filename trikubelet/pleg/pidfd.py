"""Pidfds: the kernel says that a container's first process ended, some 100 ms before most runtimes do.

A container's pid comes from its verbose status. Between that reply and `pidfd_open` the process may have ended and
its pid been given to another, so the status is read once more after the pidfd is taken: if the container still runs
with the same pid, the pidfd is its own. When it becomes readable the pod is inspected until the runtime has seen the
exit too.

Runtimes on other hosts, in other PID namespaces or without the pid in their status simply have no watcher: relists and
events see those deaths.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.logs import get_logger

if TYPE_CHECKING:
    from trio_typing import TaskStatus

    from trikubelet.cri.client import RuntimeClient
    from trikubelet.pleg.ends import ContainerEnds
    from trikubelet.pleg.pleg import Pleg
    from trikubelet.runtime.model import PodRuntimeStatus

log = get_logger("pleg")

GIVE_UP_AFTER: Final = 10.0
"""Seconds after which a runtime that has not seen the exit is left to the relists."""


class PidfdWatchers:
    """One task per running container, each waiting on its pidfd."""

    def __init__(self, client: RuntimeClient, ends: ContainerEnds) -> None:
        self._client = client
        self._ends = ends
        self._watched: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._pleg: Pleg | None = None

    async def run(self, pleg: Pleg, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled."""
        self._pleg = pleg
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def watch(self, status: PodRuntimeStatus) -> None:
        """Called with every observed status: containers that run and have no watcher get one."""
        if self._nursery is None:
            return
        for container in status.running_containers():
            if container.id.id not in self._watched:
                self._watched.add(container.id.id)
                self._nursery.start_soon(self._watch, status.uid, container.id.id)

    @property
    def watched(self) -> int:
        return len(self._watched)

    async def _watch(self, uid: str, container_id: str) -> None:
        try:
            pidfd = await self._open(container_id)
            if pidfd is None:
                return
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
            self._ends.note(container_id)
            await self._until_runtime_knows(uid, container_id)
        except Exception as error:  # noqa: BLE001 - without a watcher, relists and events tell of the death
            log.debug("cannot watch process", container=container_id, error=str(error))
        finally:
            self._watched.discard(container_id)

    async def _open(self, container_id: str) -> int | None:
        pid = await self._running_pid(container_id)
        if pid is None:
            return None
        pidfd = os.pidfd_open(pid)
        try:
            if await self._running_pid(container_id) == pid:
                return pidfd
        except BaseException:
            os.close(pidfd)
            raise
        os.close(pidfd)
        return None

    async def _running_pid(self, container_id: str) -> int | None:
        """The host pid of a running container's first process, None when the runtime does not tell."""
        from trikubelet.cri.v1 import ContainerState as CriState

        reply = await self._client.container_status(container_id, verbose=True)
        if reply.status.state != CriState.CONTAINER_RUNNING:
            return None
        try:
            pid = json.loads(reply.info.get("info", "{}")).get("pid")
        except (ValueError, AttributeError):
            return None
        return pid if isinstance(pid, int) and pid > 0 else None

    async def _until_runtime_knows(self, uid: str, container_id: str) -> None:
        assert self._pleg is not None
        with trio.move_on_after(GIVE_UP_AFTER):
            await self._pleg.until_runtime_knows_end(uid, container_id)
