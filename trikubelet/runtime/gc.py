"""Removing what dead pods left in the runtime and on disk: containers, sandboxes, logs and the links to them.

One problem does not stop the rest: what could not be removed is tried again next time.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from trikubelet.container.errors import GarbageCollectionError
from trikubelet.container.labels import read_identity
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.containers.life import containers_without_pod
from trikubelet.runtime.convert import start_was_cut_off
from trikubelet.runtime.gc_choice import (
    DeadContainer,
    SeenSandbox,
    containers_to_collect,
    sandboxes_to_collect,
)
from trikubelet.runtime.kill import MINIMUM_GRACE_PERIOD
from trikubelet.runtime.logs.paths import container_id_of_symlink, pod_uid_of_directory
from trikubelet.runtime.turns import CallKind
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trikubelet.clock import WallClock
    from trikubelet.container.model import ContainerStatus
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.containers.container import ContainerStarter
    from trikubelet.runtime.gc_choice import ContainerGCPolicy
    from trikubelet.runtime.kill import Killer
    from trikubelet.runtime.pod_files import PodFiles
    from trikubelet.runtime.turns import Turns

log = get_logger("gc")


class ContainerCollector:
    """Garbage collection of containers, sandboxes and logs (kubelet: `containerGC`)."""

    def __init__(
        self,
        runtime: RuntimeClient,
        starter: ContainerStarter,
        killer: Killer,
        files: PodFiles,
        clock: WallClock,
        turns: Turns,
        *,
        seen_end: Callable[[str], ContainerStatus | None],
    ) -> None:
        """`turns`: those of the stops of sandboxes, which go first. `seen_end`: the last status of a container that has
        ended, which tells whether it ever ran."""
        self._runtime = runtime
        self._starter = starter
        self._killer = killer
        self._files = files
        self._clock = clock
        self._turns = turns
        self._seen_end = seen_end

    async def collect(
        self,
        policy: ContainerGCPolicy,
        *,
        all_sources_ready: bool,
        is_pod_removed: Callable[[str], bool],
        is_runtime_removable: Callable[[str], bool],
    ) -> None:
        """Remove what is dead. Raises GarbageCollectionError when parts could not be looked at.

        `is_pod_removed`: nothing of the pod with this uid is needed any more, logs included. `is_runtime_removable`:
        the same, or its containers have ended for good and disk space is more urgent than their logs.
        """

        def containers_removed(uid: str) -> bool:
            return all_sources_ready and is_runtime_removable(uid)

        problems: list[str] = []
        try:
            left = await self._collect_containers(policy, containers_removed)
            await self._collect_sandboxes(is_runtime_removable, {container.pod_sandbox_id for container in left})
        except CRIError as error:
            problems.append(str(error))
        if all_sources_ready:
            await self._collect_logs(is_pod_removed)
        await self._collect_symlinks()
        if problems:
            raise GarbageCollectionError(list(dict.fromkeys(problems)))

    async def _collect_containers(
        self, policy: ContainerGCPolicy, is_removed: Callable[[str], bool]
    ) -> list[v1.Container]:
        """Returns the containers that are left. Raises CRIError."""
        with_hooks = self._killer.containers_with_hooks_begun
        listed = await self._runtime.list_containers()
        alive = {each.id for each in listed if each.state != v1.ContainerState.CONTAINER_EXITED}
        self._killer.forget_hooks_unless(alive, among=with_hooks)
        not_running = [one for one in listed if one.state != v1.ContainerState.CONTAINER_RUNNING]
        named = [(read_identity(one.labels).uid, one.metadata.name) for one in not_running]
        of_name = Counter(named)
        dead = [
            DeadContainer(
                id=container.id,
                name=name,
                pod_uid=uid,
                pod_sandbox_id=container.pod_sandbox_id,
                created_at=container.created_at / 1e9,
                unknown=container.state == v1.ContainerState.CONTAINER_UNKNOWN,
                attempt=container.metadata.attempt,
                never_started=await self._never_started(container, alone=of_name[uid, name] == 1),
            )
            for container, (uid, name) in zip(not_running, named, strict=True)
        ]
        now = self._clock.now().timestamp()
        removed = {
            container.id
            for container in containers_to_collect(dead, policy, now=now, is_removed=is_removed)
            if await self._remove_container(container)
        }
        return [container for container in listed if container.id not in removed]

    async def _never_started(self, container: v1.Container, *, alone: bool) -> bool:
        """Whether a container was made and never started. Raises CRIError.

        `alone`: no other one that does not run has its name, so that it takes nobody's place. Of others the runtime is
        asked where an agent that has just begun has not looked at them yet.
        """
        if container.state == v1.ContainerState.CONTAINER_CREATED:
            return True
        end = self._seen_end(container.id)
        if end is not None or alone:
            return end is not None and end.start_cut_off
        try:
            return start_was_cut_off((await self._runtime.container_status(container.id)).status)
        except CRIError as error:
            if error.not_found:
                return False
            raise

    async def _remove_container(self, container: DeadContainer) -> bool:
        if container.unknown:
            message = "Container is in unknown state, try killing it before removal"
            deadline = trio.current_time() + MINIMUM_GRACE_PERIOD
            async with containers_without_pod(self._killer) as containers:
                result = await containers.kill_container(
                    None, container.id, container.name, message=message, deadline=deadline
                )
            if result.failed:
                return False
        try:
            async with self._turns.take(CallKind.REMOVE):
                await self._starter.remove(container.id, pod_sandbox_id=container.pod_sandbox_id)
        except (CRIError, OSError) as error:
            log.warning("container could not be removed", container_id=container.id, problem=str(error))
            return False
        return True

    async def _collect_sandboxes(self, is_removed: Callable[[str], bool], in_use: Collection[str]) -> None:
        """`in_use`: sandboxes with containers. One that is not ready gets no more of them. Raises CRIError."""
        listed = await self._runtime.list_pod_sandboxes()
        stopped = self._killer.stopped_sandboxes
        stopped.intersection_update([sandbox.id for sandbox in listed])
        sandboxes = [
            SeenSandbox(
                id=sandbox.id,
                pod_uid=sandbox.metadata.uid,
                created_at=sandbox.created_at / 1e9,
                active=sandbox.state == v1.PodSandboxState.SANDBOX_READY or sandbox.id in in_use,
                attempt=sandbox.metadata.attempt,
            )
            for sandbox in listed
        ]
        for sandbox in sandboxes_to_collect(sandboxes, is_removed=is_removed):
            try:
                if sandbox.id not in stopped:  # else removing it would leak its network
                    await self._runtime.stop_pod_sandbox(sandbox.id)
                async with self._turns.take(CallKind.REMOVE):
                    await self._runtime.remove_pod_sandbox(sandbox.id)
            except CRIError as error:
                if not error.not_found:
                    log.warning("sandbox could not be removed", sandbox=sandbox.id, problem=str(error))

    async def _collect_logs(self, is_removed: Callable[[str], bool]) -> None:
        for name in self._files.pod_log_directories():
            if not is_removed(pod_uid_of_directory(name)):
                continue
            try:
                await self._files.remove_pod_logs(name)
            except OSError as error:
                log.warning("logs could not be removed", directory=name, problem=str(error))

    async def _collect_symlinks(self) -> None:
        """Remove links whose log is gone, but not those of a running container: its log may just be rotated."""
        for link in self._files.dangling_symlinks():
            container_id = container_id_of_symlink(link.name)
            if container_id is not None and await self._may_log_again(container_id):
                continue
            try:
                link.unlink(missing_ok=True)
            except OSError as error:
                log.warning("link could not be removed", link=str(link), problem=str(error))

    async def _may_log_again(self, container_id: str) -> bool:
        try:
            reply = await self._runtime.container_status(container_id)
        except CRIError as error:
            return not error.not_found
        return reply.status.state != v1.ContainerState.CONTAINER_EXITED
