"""What a file system can do to the file source: nothing of it ends the agent, or a pod that should run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.patience import PATIENCE
from tests.sources.test_file import manifest, put, watching
from trikubelet.clock import SystemClock
from trikubelet.sources import file
from trikubelet.sources.file import FileSource
from trikubelet.sources.manifests import display_path, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(rate=1.0)


def fail_below(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int, *, itself: bool = False) -> None:
    """`stat` and `lstat` of everything in a folder (and of the folder itself) fail from now on."""

    def failing(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def look(path: Any, **options: Any) -> os.stat_result:
            if isinstance(path, str | Path) and (folder in Path(path).parents or (itself and Path(path) == folder)):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, **options)

        return look

    monkeypatch.setattr(os, "stat", failing(os.stat))
    monkeypatch.setattr(os, "lstat", failing(os.lstat))


async def until_idle(source: FileSource) -> None:
    """A task that waits for its thread counts as blocked, so the thread must have ended, too."""
    await trio.testing.wait_all_tasks_blocked(0.02)
    while source._limiter.borrowed_tokens:
        await trio.testing.wait_all_tasks_blocked(0.02)


class Warnings(list[str]):
    """Stands in for a module's log and keeps the lines of its warnings."""

    def warning(self, event: str, **fields: object) -> None:
        self.append(" ".join((event, *map(str, fields.values()))))

    def info(self, event: str, **fields: object) -> None:
        pass

    debug = info


async def test_a_file_name_that_is_not_utf_8_is_a_name_like_any_other(tmp_path: Path) -> None:
    put(tmp_path / os.fsdecode(b"\xff.yaml"), manifest("odd"))
    put(tmp_path / os.fsdecode(b"\xfe.yaml"), "kind: Job", age=60)
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1", "odd-node=x:1"]
        (problem,) = next(iter(watched.source.problems.values()))
        text = str(problem)
        assert text.encode().decode() == text
        assert "\\xfe.yaml:1: kind: expected Pod" in text


def test_two_names_that_are_not_utf_8_give_two_uids(tmp_path: Path) -> None:
    uids = set()
    for name in (b"\xff.yaml", b"\xfe.yaml"):
        path = put(tmp_path / os.fsdecode(name), manifest("a"))
        uids.add(read_manifest(path, "node").pods[0].pod.metadata.uid)
    assert len(uids) == 2


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"/m/a.yaml", "/m/a.yaml"), (b"/m/\xff.yaml", r"/m/\xff.yaml"), (b"/m/a\nb\x1b[0m", r"/m/a\nb\x1b[0m")],
)
def test_a_path_is_shown_on_one_line_of_printable_text(name: bytes, shown: str) -> None:
    assert display_path(Path(os.fsdecode(name))) == shown
    assert display_path(Path("/m/straße.yaml")) == "/m/straße.yaml"


@pytest.mark.parametrize("error", [ValueError("no such thing"), RecursionError("too deep"), MemoryError()])
async def test_a_mistake_in_reading_one_file_is_a_problem_of_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def read(path: Path, node_name: str, *, may_refer: bool) -> Any:
        if path.name == "bad.yaml":
            raise error
        return read_manifest(path, node_name, may_refer=may_refer)

    monkeypatch.setattr(file, "read_manifest", read)
    put(tmp_path / "bad.yaml", manifest("bad"), age=60)
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        (message,) = watched.problems()["bad.yaml"]
        assert message.startswith(f"cannot be read: {type(error).__name__}")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG, errno.ELOOP])
async def test_a_folder_whose_files_cannot_be_looked_at_ends_nothing(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As a folder of mode 744 is: its names can be listed, its files cannot be looked at."""
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path, period=20) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        with monkeypatch.context() as broken:
            fail_below(broken, tmp_path, number)
            await until_idle(watched.source)
            clock.jump(21)
            await watched.until_told()
            assert watched.told == [("a.yaml", [f"cannot be read: {os.strerror(number)}"])]
            clock.jump(21)
            await until_idle(watched.source)
            assert watched.receive.statistics().current_buffer_used == 0
        clock.jump(21)
        await watched.until_told(2)
        assert watched.told[1:] == [("a.yaml", [])]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG, errno.ENOTDIR])
async def test_a_folder_that_cannot_be_reached_ends_nothing_and_is_tried_again(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    warnings = Warnings()
    monkeypatch.setattr(file, "log", warnings)
    async with watching(tmp_path, period=20) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        with monkeypatch.context() as broken:
            fail_below(broken, tmp_path, number, itself=True)
            for _ in range(3):
                await until_idle(watched.source)
                clock.jump(21)
            await until_idle(watched.source)
            assert watched.receive.statistics().current_buffer_used == 0
            assert warnings == [f"manifest path cannot be read {tmp_path} {os.strerror(number)}"]
        put(tmp_path / "b.yaml", manifest("b"))
        clock.jump(21)
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]


_AS_NOBODY = """
import os, sys
from pathlib import Path
import trio, yaml
from trikubelet.clock import SystemClock
from trikubelet.config.loader import ConfigurationError, load_configuration
from trikubelet.sources.file import FileSource
from trikubelet.telemetry.logs import configure_logging, get_logger

configure_logging("json", 2)
get_logger("test").warning("everything is imported while it may be read")

async def problems(path):
    source = FileSource(path, node_name="node", clock=SystemClock(), period=0.05)
    send, receive = trio.open_memory_channel(10)
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run, send.send)
        with trio.fail_after(10):
            while not (source.problems or source.path_problems):
                await trio.sleep(0.01)
        await trio.sleep(0.1)  # it looks again
        print(path.name, [str(p) for found in source.problems.values() for p in found], source.path_problems.get(path))
        nursery.cancel_scope.cancel()

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name in sys.argv[1:]:
    trio.run(problems, Path(name))
try:
    load_configuration(Path(sys.argv[2]))
except ConfigurationError as error:
    print([problem.message for problem in error.problems])
"""


@pytest.mark.root
def test_another_user_survives_folders_that_it_may_not_enter() -> None:
    # Not pytest's folder: any other test session that begins closes that to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        _look_as_nobody(Path(folder))


def _look_as_nobody(folder: Path) -> None:
    listed = folder / "listed"
    listed.mkdir(mode=0o755)
    put(listed / "a.yaml", manifest("a"), age=60)
    listed.chmod(0o744)
    closed = folder / "closed"
    (closed / "inner").mkdir(parents=True)
    put(closed / "inner" / "a.yaml", manifest("a"))
    closed.chmod(0o700)
    arguments = [sys.executable, "-c", _AS_NOBODY, str(listed), str(closed / "inner"), str(closed / "inner" / "a.yaml")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.splitlines() == [
        f"listed ['{listed}/a.yaml: cannot be read: Permission denied'] None",
        "inner [] Permission denied",
        "a.yaml [] Permission denied",
        "['cannot be read: Permission denied']",
    ], done.stderr


async def test_a_folder_that_becomes_a_file_is_read_as_one_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    put(folder / "a.yaml", manifest("a"))
    async with watching(folder, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        folder.rename(tmp_path / "away")
        assert await watched.pods() == []
        put(folder, manifest("single"))
        assert await watched.pods() == ["single-node=x:1"]
        folder.unlink()
        assert await watched.pods() == []
        (tmp_path / "away").rename(folder)
        assert await watched.pods() == ["a-node=x:1"]
        put(folder / "b.yaml", manifest("b"))
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]


async def test_folders_that_replace_each_other_leave_no_watch_behind(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    async with watching(folder, period=1000) as watched:
        await watched.pods()
        for number in range(3):
            folder.rename(tmp_path / f"away{number}")
            folder.mkdir()
            put(folder / "a.yaml", manifest(f"a{number}"))
            while await watched.pods() != [f"a{number}-node=x:1"]:
                pass
        assert _watches() <= 1


def _watches() -> int:
    count = 0
    for entry in Path("/proc/self/fdinfo").iterdir():
        try:
            count += entry.read_text().count("inotify wd:")
        except FileNotFoundError:
            continue
    return count


async def test_a_file_that_changes_its_owner_or_mode_keeps_its_pod(tmp_path: Path) -> None:
    path = put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path, period=1000) as watched:
        (before,) = await watched.receive.receive()
        os.chown(path, os.getuid(), os.getgid())
        path.chmod(0o600)
        put(tmp_path / "b.yaml", manifest("b"))
        with trio.fail_after(5):
            pods: tuple[Any, ...] = ()
            while len(pods) < 2:
                pods = await watched.receive.receive()
        assert pods[0] == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENAMETOOLONG])
async def test_a_watch_that_is_refused_is_said_once_and_replaced_by_the_periodic_reread(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    warnings = Warnings()
    monkeypatch.setattr(file, "log", warnings)

    def refuse(self: object, path: Path, mask: int) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("trikubelet.linux.inotify.Inotify.watch", refuse)
    async with watching(tmp_path, period=20) as watched:
        assert await watched.pods() == []
        for name in "abc":
            put(tmp_path / f"{name}.yaml", manifest(name))
            await trio.testing.wait_all_tasks_blocked(0.02)
            clock.jump(21)
            assert len(await watched.pods()) == ord(name) - ord("a") + 1
    assert len(warnings) == 1
    assert os.strerror(number) in warnings[0]


async def test_a_watch_that_breaks_while_it_is_waited_for_is_replaced(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the limit fs.epoll.max_user_watches is reached."""
    warnings = Warnings()
    monkeypatch.setattr(file, "log", warnings)

    async def fail(self: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("trikubelet.linux.inotify.Inotify.wait", fail)
        async with watching(tmp_path, period=20) as watched:
            assert await watched.pods() == []
            for name in "ab":
                put(tmp_path / f"{name}.yaml", manifest(name))
                await trio.testing.wait_all_tasks_blocked(0.02)
                clock.jump(21)
                assert len(await watched.pods()) == ord(name) - ord("a") + 1
            broken.undo()
            clock.jump(21)
            await trio.testing.wait_all_tasks_blocked(0.02)
            put(tmp_path / "c.yaml", manifest("c"))
            assert len(await watched.pods()) == 3
    assert len(warnings) == 1


async def test_a_worker_thread_that_cannot_be_started_ends_nothing(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path, period=20) as watched:
        assert await watched.pods() == ["a-node=x:1"]

        async def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as broken:
            broken.setattr(trio.to_thread, "run_sync", refuse)
            await trio.testing.wait_all_tasks_blocked(0.02)
            clock.jump(21)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert watched.source.path_problems == {tmp_path: "can't start new thread"}
        put(tmp_path / "b.yaml", manifest("b"))
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]


@pytest.mark.parametrize("path", ["/x\0y", "/" + "n" * 300, "/dev/null/m"])
async def test_a_path_that_can_never_be_read_is_a_problem(path: str, clock: trio.testing.MockClock) -> None:
    async with watching(Path(path), period=20) as watched:
        with trio.fail_after(PATIENCE):
            while not watched.source.path_problems:
                await trio.testing.wait_all_tasks_blocked(0.02)
        assert watched.receive.statistics().current_buffer_used == 0


def test_a_removed_working_directory_does_not_matter_to_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    FileSource(tmp_path, node_name="node", clock=SystemClock())
    FileSource(Path("relative"), node_name="node", clock=SystemClock())


def test_a_link_that_vanishes_while_it_is_described_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "a.yaml"
    link.symlink_to(tmp_path / "nowhere")

    def vanished(path: object) -> str:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "readlink", vanished)
    (problem,) = read_manifest(link, "node").problems
    assert problem.message == "cannot be read: No such file or directory"


async def test_fields_without_effect_are_warned_of_once_a_change(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = Warnings()
    monkeypatch.setattr(file, "log", warnings)
    put(tmp_path / "a.yaml", manifest("a") + "    comand: [x]\n  restart: Never\n")
    async with watching(tmp_path, period=20) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        expected = f"unknown fields have no effect {tmp_path}/a.yaml spec.restart (line 10), "
        assert warnings == [expected + "spec.containers[0].comand (line 9)"]
        await trio.testing.wait_all_tasks_blocked(0.02)
        clock.jump(21)
        await trio.testing.wait_all_tasks_blocked(0.02)
        put(tmp_path / "a.yaml", manifest("a", "y:2") + "  restart: Never\n")
        assert await watched.pods() == ["a-node=y:2"]
        assert warnings[1:] == [f"unknown fields have no effect {tmp_path}/a.yaml spec.restart (line 9)"]
        put(tmp_path / "a.yaml", manifest("a"))
        assert await watched.pods() == ["a-node=x:1"]
        assert len(warnings) == 2
