"""Rotating logs that a runtime writes to, with an agent that may be killed and a runtime that may fail meanwhile."""

from __future__ import annotations

import errno
import gzip
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
from grpclib.const import Status

from trikubelet.node_api.log_file import LogFile
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.logs import rotation as log_rotation
from trikubelet.runtime.logs.rotation import LogLocks, LogRotator
from trikubelet.runtime.logs.rotation_choice import LogRotationPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trio.testing import MockClock

LINE = b"2026-01-01T00:00:00.000000000Z stdout F %08d\n"


@attrs.define
class Writer:
    """A container that writes numbered lines, through a descriptor as a runtime holds it."""

    path: Path
    state: v1.ContainerState = v1.ContainerState.CONTAINER_RUNNING
    written: int = 0
    descriptor: int = -1

    def reopen(self) -> None:
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def write(self, lines: int) -> None:
        first, self.written = self.written, self.written + lines
        os.write(self.descriptor, b"".join(LINE % number for number in range(first, self.written)))

    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir())

    def lines(self) -> list[bytes]:
        """All that is still there, oldest first."""
        rotated = sorted(path for path in self.path.parent.iterdir() if path.name.startswith(f"{self.path.name}."))
        found: list[bytes] = []
        for path in [*rotated, *([self.path] if self.path.exists() else [])]:
            data = path.read_bytes()
            found += (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines(keepends=True)
        return found

    def wrote(self) -> list[bytes]:
        return [LINE % number for number in range(self.written)]


@attrs.define
class Runtime:
    """As much of a runtime as the rotation of logs needs."""

    writers: dict[str, Writer] = attrs.field(factory=dict)
    statuses: list[str] = attrs.field(factory=list)
    reopened: list[str] = attrs.field(factory=list)
    refusal: CRIError | None = None
    """What a reopen says without doing it."""
    lost: CRIError | None = None
    """What a reopen says after doing it."""
    hangs: bool = False

    async def list_containers(self) -> list[v1.Container]:
        await trio.lowlevel.checkpoint()
        return [v1.Container(id=one, state=writer.state) for one, writer in self.writers.items()]

    async def container_status(self, container_id: str) -> v1.ContainerStatusResponse:
        await trio.lowlevel.checkpoint()
        self.statuses.append(container_id)
        path = str(self.writers[container_id].path)
        return v1.ContainerStatusResponse(status=v1.ContainerStatus(id=container_id, log_path=path))

    async def reopen_container_log(self, container_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self.reopened.append(container_id)
        if self.hangs:
            await trio.sleep_forever()
        if self.refusal is not None:
            raise self.refusal
        self.writers[container_id].reopen()
        if self.lost is not None:
            raise self.lost


class Ticking:
    """A wall clock that goes on by a minute with every look."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
        self.step = timedelta(minutes=1)

    def now(self) -> datetime:
        self.moment += self.step
        return self.moment


@attrs.define
class Own:
    root: Path
    names: list[str]
    log_locks: LogLocks = attrs.field(factory=LogLocks)

    def pod_log_directories(self) -> list[str]:
        return self.names

    def logs_directory(self, name: str) -> Path:
        return self.root / name


@attrs.define
class Stage:
    """A node whose one container logs."""

    root: Path
    runtime: Runtime
    own: Own
    clock: Ticking

    def rotator(self, max_size: int = 100, max_files: int = 5, **more: Any) -> LogRotator:
        return LogRotator(
            cast("Any", self.runtime),
            cast("Any", self.own),
            policy=LogRotationPolicy(max_size=max_size, max_files=max_files, **more),
            clock=self.clock,
        )

    @property
    def main(self) -> Writer:
        return self.runtime.writers["id-main"]

    def add(self, pod: str, container: str) -> Writer:
        writer = Writer(self.root / f"default_{pod}_uid-{pod}" / container / "0.log")
        writer.reopen()
        self.runtime.writers[f"id-{container}"] = writer
        return writer


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "logs", Runtime(), Own(tmp_path / "logs", ["default_web_uid-web"]), Ticking())
    stage.add("web", "main")
    yield stage
    for writer in stage.runtime.writers.values():
        writer.close()


async def test_a_log_that_is_large_enough_is_rotated_and_older_ones_are_compressed(stage: Stage) -> None:
    rotator = stage.rotator()
    for _ in range(3):
        stage.main.write(3)
        await rotator.rotate_all()
    assert stage.main.files() == [
        "0.log",
        "0.log.20260131-120100.gz",
        "0.log.20260131-120200.gz",
        "0.log.20260131-120300",
    ]
    assert stage.main.path.stat().st_size == 0
    assert stage.main.lines() == stage.main.wrote()
    assert {oct(path.stat().st_mode & 0o777) for path in stage.main.path.parent.iterdir()} == {"0o640"}


async def test_no_more_files_are_kept_than_allowed(stage: Stage) -> None:
    rotator = stage.rotator(max_files=3)
    for _ in range(6):
        stage.main.write(3)
        await rotator.rotate_all()
    assert len(stage.main.files()) == 3
    assert stage.main.lines() == stage.main.wrote()[-6:]


async def test_a_small_log_and_one_of_a_container_that_has_ended_stay(stage: Stage) -> None:
    rotator = stage.rotator()
    stage.main.write(1)
    await rotator.rotate_all()
    stage.main.write(5)
    stage.main.state = v1.ContainerState.CONTAINER_EXITED
    await rotator.rotate_all()
    assert stage.main.files() == ["0.log"]


async def test_logs_of_other_agents_stay_until_their_pod_is_taken_over(stage: Stage) -> None:
    rotator = stage.rotator()
    theirs = stage.add("go", "theirs")
    theirs.write(5)
    theirs.path.unlink()
    theirs.reopen()
    theirs.write(5)
    await rotator.rotate_all()
    assert theirs.files() == ["0.log"]
    stage.own.names.append("default_go_uid-go")
    await rotator.rotate_all()
    assert len(theirs.files()) == 2


async def test_a_folder_of_the_same_name_elsewhere_is_not_ours(stage: Stage) -> None:
    path = stage.root.parent / "other" / "default_web_uid-web" / "main" / "0.log"
    elsewhere = stage.runtime.writers["id-elsewhere"] = Writer(path)
    elsewhere.reopen()
    elsewhere.write(5)
    await stage.rotator().rotate_all()
    assert elsewhere.files() == ["0.log"]


async def test_each_container_is_asked_once_where_it_logs_to(stage: Stage) -> None:
    rotator = stage.rotator()
    for _ in range(3):
        await rotator.rotate_all()
    assert stage.runtime.statuses == ["id-main"]


async def test_a_container_without_a_log_gets_one(stage: Stage) -> None:
    stage.main.path.unlink()
    await stage.rotator().rotate_all()
    assert stage.main.path.exists()


async def test_a_log_that_is_not_reopened_gets_its_name_back(stage: Stage) -> None:
    stage.runtime.refusal = CRIError("ReopenContainerLog", Status.UNKNOWN, "container is not running")
    stage.main.write(5)
    await stage.rotator().rotate_all()
    assert stage.main.files() == ["0.log"]
    stage.main.write(1)
    assert stage.main.lines() == stage.main.wrote()


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.UNKNOWN])
async def test_a_log_that_was_reopened_without_an_answer_is_not_overwritten(stage: Stage, status: Status) -> None:
    stage.runtime.lost = CRIError("ReopenContainerLog", status, "connection lost")
    stage.main.write(5)
    await stage.rotator().rotate_all()
    stage.main.write(1)
    assert len(stage.main.files()) == 2
    assert stage.main.lines() == stage.main.wrote()


async def test_a_fault_about_one_log_leaves_no_other_unrotated(stage: Stage) -> None:
    other = stage.add("web", "other")
    switch = LogRotator._switch

    async def stumble(rotator: LogRotator, container_id: str, *paths: Path) -> None:
        if container_id == "id-other":
            raise RuntimeError("nobody thought of that")
        await switch(rotator, container_id, *paths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogRotator, "_switch", stumble)
        for writer in (other, stage.main):
            writer.write(5)
        await stage.rotator().rotate_all()
    assert len(stage.main.files()) == 2


async def test_a_log_of_a_runtime_that_is_away_is_rotated_when_it_is_back(stage: Stage) -> None:
    stage.runtime.refusal = CRIError("ReopenContainerLog", Status.UNAVAILABLE, "no connection")
    rotator = stage.rotator()
    stage.main.write(5)
    await rotator.rotate_all()
    await rotator.rotate_all()
    stage.main.write(1)
    stage.runtime.refusal = None
    await rotator.rotate_all()
    stage.main.write(1)
    assert len(stage.main.files()) == 2
    assert stage.main.lines() == stage.main.wrote()


async def test_a_runtime_that_hangs_is_not_waited_for(stage: Stage, autojump_clock: MockClock) -> None:
    stage.runtime.hangs = True
    stage.main.write(5)
    began = trio.current_time()
    await stage.rotator().rotate_all()
    assert trio.current_time() - began == log_rotation.REOPEN_PATIENCE
    stage.main.write(1)
    assert stage.main.path.read_bytes() == b"".join(stage.main.wrote())


async def test_a_cancelled_rotation_finishes_the_switch(stage: Stage) -> None:
    stage.main.write(5)
    with trio.CancelScope() as scope:
        reopen = stage.runtime.reopen_container_log

        async def reopen_and_cancel(container_id: str) -> None:
            scope.cancel()
            await reopen(container_id)

        rotator = stage.rotator()
        cast("Any", rotator)._runtime = _Delegate(stage.runtime, reopen_and_cancel)
        await rotator.rotate_all()
    assert len(stage.main.files()) == 2
    stage.main.write(1)
    assert stage.main.lines() == stage.main.wrote()


class _Delegate:
    """A runtime with another way to reopen."""

    def __init__(self, runtime: Runtime, reopen: Callable[[str], Any]) -> None:
        self.list_containers = runtime.list_containers
        self.container_status = runtime.container_status
        self.reopen_container_log = reopen


async def test_compressing_ends_between_two_blocks_when_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rotation, "BLOCK", 64)
    path = stage.main.path.with_name("0.log.20260131-110000")
    path.write_bytes(b"x" * 100_000)
    blocks = []
    check = trio.from_thread.check_cancelled
    with trio.CancelScope() as scope:

        def count() -> None:
            blocks.append(1)
            if len(blocks) == 3:
                trio.from_thread.run_sync(scope.cancel)
            check()

        monkeypatch.setattr(trio.from_thread, "check_cancelled", count)
        await trio.to_thread.run_sync(log_rotation._compress, path)
    assert scope.cancelled_caught
    assert len(blocks) == 3
    assert stage.main.files() == ["0.log", path.name]


async def test_a_file_that_grows_while_it_is_compressed_stays(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stage.main.path.with_name("0.log.20260131-110000")
    path.write_bytes(b"early\n")
    sync = os.fsync

    def late(descriptor: int) -> None:
        with path.open("ab") as file:
            file.write(b"late\n")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", late)
    with pytest.raises(OSError, match="still written to"):
        await trio.to_thread.run_sync(log_rotation._compress, path)
    assert stage.main.files() == ["0.log", path.name]


class Killed(BaseException):
    """The agent is no more: nothing that it would do to clean up is done either."""


def kill_at(monkeypatch: pytest.MonkeyPatch, operation: int) -> list[str]:
    """From the `operation`th change to the disk on, none is made any more. Returns what was done."""
    done: list[str] = []

    def deadly(name: str) -> None:
        original = getattr(os, name)

        def act(*arguments: Any, **more: Any) -> Any:
            if len(done) >= operation:
                raise Killed
            done.append(name)
            return original(*arguments, **more)

        monkeypatch.setattr(os, name, act)

    for name in ("rename", "unlink", "link", "fsync", "fchmod"):
        deadly(name)
    return done


@pytest.mark.parametrize("operation", range(7))
@pytest.mark.parametrize("refused", [False, True], ids=["reopened", "not reopened"])
async def test_nothing_is_lost_when_the_agent_is_killed_at_any_point(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, operation: int, refused: bool
) -> None:
    stage.main.write(5)
    await stage.rotator(max_files=50).rotate_all()
    stage.main.write(5)
    if refused:
        stage.runtime.refusal = CRIError("ReopenContainerLog", Status.UNAVAILABLE, "gone")
    with monkeypatch.context() as patch:
        done = kill_at(patch, operation)
        problem = None
        try:
            await stage.rotator(max_files=50).rotate_all()
        except BaseExceptionGroup as error:
            problem = error
        assert problem is None or (problem.split(Killed)[1] is None and len(done) == operation)
    stage.main.write(5)
    stage.runtime.refusal = None
    again = stage.rotator(max_files=50)
    for _ in range(3):
        await again.rotate_all()
        stage.main.write(5)
    assert stage.main.lines() == stage.main.wrote()
    assert not [name for name in stage.main.files() if name.endswith(".tmp")]


async def test_an_agent_that_was_killed_before_the_reopen_goes_on(stage: Stage) -> None:
    stage.main.write(5)
    stage.main.path.rename(stage.main.path.with_name("0.log.20260131-110000"))
    stage.main.path.with_name("0.log.20260131-100000.tmp").write_bytes(b"half")
    stage.main.write(1)
    rotator = stage.rotator()
    await rotator.rotate_all()
    stage.main.write(5)
    await rotator.rotate_all()
    assert stage.main.files() == ["0.log", "0.log.20260131-110000.gz", "0.log.20260131-120100"]
    assert stage.main.lines() == stage.main.wrote()


async def test_a_removal_ends_a_rotation_and_keeps_others_away(stage: Stage) -> None:
    stage.main.write(5)
    path = str(stage.main.path)
    async with stage.own.log_locks.removal(path):
        await stage.rotator().rotate_all()
    assert stage.main.files() == ["0.log"]
    ended = trio.Event()
    async with trio.open_nursery() as nursery:

        async def rotate() -> None:
            with stage.own.log_locks.rotation(path) as allowed:
                assert allowed
                try:
                    await trio.sleep_forever()
                finally:
                    ended.set()

        nursery.start_soon(rotate)
        await trio.testing.wait_all_tasks_blocked()
        async with stage.own.log_locks.removal(path):
            assert ended.is_set()
            with stage.own.log_locks.rotation(path) as allowed:
                assert not allowed
    await stage.rotator().rotate_all()
    assert len(stage.main.files()) == 2


async def test_a_reader_goes_from_file_to_file(stage: Stage) -> None:
    rotator = stage.rotator()
    path = stage.main.path
    stage.main.write(5)
    reader = LogFile(path)
    try:
        assert await reader.read(10**6) == b"".join(stage.main.wrote())
        assert reader.successor(path) is None
        await rotator.rotate_all()
        assert reader.successor(path) == path
        stage.main.write(5)
        await rotator.rotate_all()
        # Its own file is compressed by now.
        assert reader.successor(path) == path.with_name("0.log.20260131-120200")
    finally:
        reader.close()


async def test_rounds_come_at_their_interval_and_survive_a_runtime_that_is_away(
    stage: Stage, autojump_clock: MockClock
) -> None:
    rounds: list[float] = []

    async def list_containers() -> list[v1.Container]:
        rounds.append(trio.current_time())
        raise CRIError("ListContainers", Status.UNAVAILABLE, "away")

    rotator = stage.rotator(interval=7.0)
    delegate = _Delegate(stage.runtime, stage.runtime.reopen_container_log)
    delegate.list_containers = list_containers
    cast("Any", rotator)._runtime = delegate
    began = trio.current_time()
    with trio.move_on_after(20):
        await rotator.run()
    assert [moment - began for moment in rounds] == [0, 7, 14]


async def test_a_policy_without_a_size_rotates_nothing(stage: Stage) -> None:
    await stage.rotator(max_size=-1).run()
    assert stage.runtime.statuses == []


async def test_as_many_rotations_run_at_a_time_as_there_are_workers(stage: Stage) -> None:
    most, now = 0, 0
    two_at_once = trio.Event()

    async def reopen(container_id: str) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == 2:
            two_at_once.set()
        await two_at_once.wait()
        now -= 1
        stage.runtime.writers[container_id].reopen()

    for name in ("a", "b", "c"):
        stage.add("web", name).write(5)
    rotator = stage.rotator(max_workers=2)
    cast("Any", rotator)._runtime = _Delegate(stage.runtime, reopen)
    with trio.fail_after(30):
        await rotator.rotate_all()
    assert most == 2
    assert all(len(stage.runtime.writers[f"id-{name}"].files()) == 2 for name in ("a", "b", "c"))


async def test_a_disk_that_cannot_be_read_does_not_end_the_rotations(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    rounds = 0

    async def rotate_all(_: LogRotator) -> None:
        nonlocal rounds
        rounds += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(LogRotator, "rotate_all", rotate_all)
    with trio.move_on_after(25):
        await stage.rotator().run()
    assert rounds == 3
