"""Rotating the logs of running containers before they fill the disk.

The story of a round, every ten seconds: the runtime lists what runs; the logs that belong to this agent are measured;
those that are too large are rotated, a few at a time. A rotation removes what an earlier one left behind and the oldest
files beyond the number, renames the log and has the runtime reopen it, and only then compresses the files that were
rotated before: a slow disk or a full one does not keep the log from being cut.

Nothing that a container wrote is lost when the agent is killed at any moment, or when the runtime does not answer:

- a compressed file gets its name when it is complete and on the disk, and what it was made of goes after that;
- a log that was renamed but not reopened is still written to, under its new name; the next round sees that there is no
  log and has the runtime make one;
- a log that the runtime refuses to reopen is renamed back, but never over a new one.

The kubelet asks for the status of each running container in every round. Here each is asked once: where a container
logs to never changes.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import define
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.logs.rotation_choice import (
    COMPRESSED,
    TEMPORARY,
    LogRotationPolicy,
    Tidying,
    rotated_name,
    tidy,
)
from trikubelet.supervision import contain
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from datetime import datetime

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.pod_files import PodFiles

log = get_logger("logs")

REOPEN_PATIENCE: Final = 5.0
"""Seconds that the runtime has to reopen a log that was renamed. This is not cancelled half way."""
BLOCK: Final = 2**20
"""Bytes that are compressed between two looks whether to go on: some 30 ms."""


class LogRotator:
    """Log rotation (kubelet: `containerLogManager`).

    `files` knows which log folders belong to this agent, and locks logs that it removes.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        files: PodFiles,
        *,
        policy: LogRotationPolicy,
        clock: WallClock,
    ) -> None:
        self._runtime = runtime
        self._files = files
        self._policy = policy
        self._clock = clock
        self._locks = files.log_locks
        self._threads = trio.CapacityLimiter(policy.max_workers + 1)
        self._turns = trio.CapacityLimiter(policy.max_workers)
        self._logs: dict[str, str] = {}
        """By the id of a running container, the path of its log, empty when it has none."""
        self._owned: set[str] = set()
        """Ids of containers whose log is known to be this agent's."""
        self._told: set[tuple[str, str]] = set()
        """Ids of containers, and what was said of them already."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after the logs until cancelled; returns at once when the policy is never to rotate."""
        task_status.started()
        while self._policy.rotates:
            try:
                await self.rotate_all()
            except Exception as error:  # noqa: BLE001 - comes again, and nothing else depends on it
                log.warning("containers' logs cannot be looked at", problem=str(error))
            await trio.sleep(self._policy.interval)

    async def rotate_all(self) -> None:
        """One round. Raises CRIError when the runtime does not say what runs; other problems are logged."""
        running = v1.ContainerState.CONTAINER_RUNNING
        ids = [container.id for container in await self._runtime.list_containers() if container.state == running]
        await self._find_logs(ids)
        owned = {container_id: self._logs[container_id] for container_id in ids if container_id in self._owned}
        sizes = await trio.to_thread.run_sync(_sizes, owned.values(), limiter=self._threads)
        async with trio.open_nursery() as nursery:
            for container_id, path in owned.items():
                size = sizes[path]
                if size is None:
                    nursery.start_soon(contain, self._make_log, container_id, path)
                elif self._policy.is_due(size):
                    nursery.start_soon(contain, self._rotate_in_turn, container_id, path)

    # Which logs

    async def _find_logs(self, ids: Iterable[str]) -> None:
        """Learn of new containers, and forget those that run no more."""
        logs: dict[str, str] = {}
        for container_id in ids:
            path = self._logs.get(container_id)
            if path is None:
                try:
                    path = (await self._runtime.container_status(container_id)).status.log_path
                except CRIError as error:
                    if not error.not_found:
                        self._record(container_id, "where a container logs to is not known", "", str(error))
                    continue
            logs[container_id] = path
        self._logs = logs
        self._told = {(one, what) for one, what in self._told if one in logs}
        self._owned &= logs.keys()
        undecided = {one: path for one, path in logs.items() if path and one not in self._owned}
        if undecided:
            # Others' logs are asked about each time: a pod that was another agent's may be taken over.
            names = frozenset(await trio.to_thread.run_sync(self._files.pod_log_directories, limiter=self._threads))
            self._owned.update(one for one, path in undecided.items() if self._is_below(Path(path), names))

    def _is_below(self, path: Path, directories: frozenset[str]) -> bool:
        """Whether a log is in one of the pods' directories, as `<logs>/<directory>/<container>/<log>`."""
        if len(path.parts) < 4:
            return False
        directory = path.parents[1]
        # Runtimes report paths in this form.
        own = self._files.logs_directory(directory.name)
        return directory.name in directories and directory == Path(os.path.normpath(own))

    # One log

    async def _make_log(self, container_id: str, path: str) -> None:
        """Have the runtime write to a file with the log's name again. It was removed, or a rotation was cut off."""
        try:
            await self._runtime.reopen_container_log(container_id)
        except CRIError as error:
            self._record(container_id, "a container has no log, and does not reopen it", path, str(error))
        else:
            self._record(container_id, "a container's log was gone: the container has been made to reopen it", path)

    async def _rotate_in_turn(self, container_id: str, path: str) -> None:
        async with self._turns:
            with self._locks.rotation(path) as allowed:
                if not allowed:
                    return
                try:
                    await self._rotate(container_id, Path(path))
                except (CRIError, OSError) as error:
                    self._record(container_id, "a container's log could not be rotated", path, str(error))

    async def _rotate(self, container_id: str, path: Path) -> None:
        """Raises CRIError and OSError; the log is then as it was, or the next round goes on with it."""
        now = self._clock.now()
        rotated, tidying = await trio.to_thread.run_sync(_make_room, path, self._policy, now, limiter=self._threads)
        await self._switch(container_id, path, rotated)
        log.debug("a container's log is rotated", container_id=container_id, path=str(rotated))
        for name in tidying.compress:
            await trio.to_thread.run_sync(_compress, path.parent / name, limiter=self._threads)

    async def _switch(self, container_id: str, path: Path, rotated: Path) -> None:
        """Rename the log and have it reopened, or leave it where it was. One rename needs no thread."""
        problem: CRIError | None = None
        with trio.move_on_after(REOPEN_PATIENCE, shield=True) as scope:
            _rename(path, rotated)
            try:
                await self._runtime.reopen_container_log(container_id)
            except CRIError as error:
                problem = error
        if scope.cancelled_caught:
            problem = _no_answer()
        if problem is not None:
            _rename_back(path, rotated, refused=not (problem.unavailable or problem.timed_out))
            raise problem

    def _record(self, container_id: str, what: str, path: str, problem: str = "") -> None:
        """Once for each container, not with each round."""
        emit = log.debug if (container_id, what) in self._told else log.warning
        self._told.add((container_id, what))
        emit(what, container_id=container_id, path=path, problem=problem)


# What is done to files, in a thread


def _sizes(paths: Iterable[str]) -> dict[str, int | None]:
    """The logs' sizes in bytes, None for one that is not there. What is no file of its own is never too large."""
    sizes: dict[str, int | None] = {}
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError as error:
            sizes[path] = None if isinstance(error, FileNotFoundError) else 0
        else:
            sizes[path] = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return sizes


def _make_room(path: Path, policy: LogRotationPolicy, now: datetime) -> tuple[Path, Tidying]:
    """Remove what must go. Returns what the log is to be called, and what is left to do. Raises OSError."""
    names = os.listdir(path.parent)  # noqa: PTH208 - names only
    tidying = tidy(path.name, names, policy)
    for name in tidying.remove:
        (path.parent / name).unlink(missing_ok=True)
    current = path.stat()
    for name in tidying.compress:
        # A second name of the log itself, from a rotation that did not come to its end.
        if os.path.samestat((path.parent / name).stat(), current):
            (path.parent / name).unlink()
    kept = tuple(name for name in tidying.compress if (path.parent / name).exists())
    return path.parent / rotated_name(path.name, names, now), Tidying(tidying.remove, kept)


def _compress(path: Path) -> None:
    """Put a compressed file in a file's place. Raises OSError, and Cancelled between two blocks."""
    import gzip

    temporary = path.with_name(path.name + TEMPORARY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with path.open("rb") as source:
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            with os.fdopen(os.open(temporary, flags, mode), "wb") as target:
                os.fchmod(target.fileno(), mode)
                with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=target, mtime=0) as packed:
                    while block := source.read(BLOCK):
                        packed.write(block)
                        trio.from_thread.check_cancelled()
                target.flush()
                os.fsync(target.fileno())
            if os.fstat(source.fileno()).st_size != source.tell():
                raise OSError(f"{path} is still written to: it is compressed another time")
        temporary.rename(path.with_name(path.name + COMPRESSED))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def _rename(path: Path, rotated: Path) -> None:
    path.rename(rotated)


def _rename_back(path: Path, rotated: Path, *, refused: bool) -> None:
    """Give a log its name again, unless the runtime has made a new one.

    When it is not known what the runtime did, the other name stays too, in case the runtime puts a new file in the
    place of the log yet; the next rotation removes it.
    """
    try:
        os.link(rotated, path)
    except FileExistsError:
        return
    if refused:
        rotated.unlink()


def _no_answer() -> CRIError:
    from grpclib.const import Status

    return CRIError("ReopenContainerLog", Status.DEADLINE_EXCEEDED, f"no answer within {REOPEN_PATIENCE:g} seconds")


@define
class _Rotation:
    scope: trio.CancelScope
    ended: trio.Event


class LogLocks:
    """Keeps the rotation and the removal of one log apart, by its path. One for the node.

    A log that is removed while it is rotated would leave files behind. The removal wins: it ends the rotation, which
    takes a moment, and no other begins until it is done. It does not wait until a large file is compressed.
    """

    def __init__(self) -> None:
        self._rotations: dict[str, _Rotation] = {}
        self._removals: Counter[str] = Counter()

    @contextmanager
    def rotation(self, log_path: str) -> Iterator[bool]:
        """The time of a rotation; false when there must be none now. A removal cancels what is within."""
        if log_path in self._rotations or log_path in self._removals:
            yield False
            return
        rotation = _Rotation(trio.CancelScope(), trio.Event())
        self._rotations[log_path] = rotation
        try:
            with rotation.scope:
                yield True
        finally:
            del self._rotations[log_path]
            rotation.ended.set()

    @asynccontextmanager
    async def removal(self, log_path: str) -> AsyncIterator[None]:
        """The time of a removal: nothing rotates the log."""
        self._removals[log_path] += 1
        try:
            rotation = self._rotations.get(log_path)
            if rotation is not None:
                rotation.scope.cancel()
                await rotation.ended.wait()
            yield
        finally:
            self._removals[log_path] -= 1
            if not self._removals[log_path]:
                del self._removals[log_path]
