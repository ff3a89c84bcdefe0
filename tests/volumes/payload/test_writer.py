"""A payload in a folder: what readers see while it is written, and after an agent that was killed."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.volumes.payload.steps import before_each_step, killed_before
from trikubelet.volumes.payload.files import PayloadError, PayloadFile
from trikubelet.volumes.payload.writer import is_written, write_payload

NOW = datetime(2026, 2, 1, 15, 4, 5, tzinfo=UTC)
Contents = dict[str, bytes]


def write(folder: Path, contents: Contents) -> bool:
    return write_payload(folder, {path: PayloadFile(data, 0o644) for path, data in contents.items()}, now=NOW)


def shown(folder: Path) -> Contents:
    """All files of the version that a reader finds who looks where `..data` leads once."""
    try:
        top = os.open(folder / "..data", os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return {}
    try:
        found = {}
        for path, _, names, descriptor in os.fwalk(".", dir_fd=top):
            for name in names:
                file = os.open(name, os.O_RDONLY, dir_fd=descriptor)
                with os.fdopen(file, "rb") as stream:
                    found[os.path.normpath(f"{path}/{name}")] = stream.read()
        return found
    finally:
        os.close(top)


def through_links(folder: Path) -> Contents:
    """All files as containers find them."""
    tops = [entry for entry in folder.iterdir() if not entry.name.startswith("..")]
    files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def names(folder: Path) -> list[str]:
    return sorted(re.sub(r"^\.\.2026_02_01_15_04_05\..+", "VERSION", entry.name) for entry in folder.iterdir())


def without_conflicts(contents: Contents) -> bool:
    return not any(f"{path}/" == other[: len(path) + 1] for path in contents for other in contents)


contents_ = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d/e", "d/f", "d/g/h", "b/x"]), st.sampled_from([b"", b"1", b"22"])
).filter(without_conflicts)


def test_files_are_links_into_the_version_that_is_shown(tmp_path: Path) -> None:
    assert write(tmp_path, {"token": b"t", "d/e": b"x"}) is True
    assert names(tmp_path) == ["..data", "VERSION", "d", "token"]
    assert (tmp_path / "token").readlink() == Path("..data/token")
    assert (tmp_path / "d").readlink() == Path("..data/d")
    assert tmp_path / (tmp_path / "..data").readlink() in list(tmp_path.iterdir())
    assert through_links(tmp_path) == {"token": b"t", "d/e": b"x"}


def test_an_empty_payload_is_written_too(tmp_path: Path) -> None:
    assert not is_written(tmp_path)
    assert write(tmp_path, {}) is True
    assert is_written(tmp_path)
    assert names(tmp_path) == ["..data", "VERSION"]
    assert write(tmp_path, {}) is False


def test_unchanged_content_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "d/e": b"2"})
    before = {entry.name: entry.lstat() for entry in [tmp_path, *tmp_path.iterdir()]}
    steps: list[str] = []
    with before_each_step(lambda event, _: steps.append(event)):
        assert write(tmp_path, {"d//e": b"2", "./a": b"1"}) is False
    after = {entry.name: entry.lstat() for entry in [tmp_path, *tmp_path.iterdir()]}
    assert {name: info.st_mtime_ns for name, info in before.items()} == {
        name: info.st_mtime_ns for name, info in after.items()
    }
    assert set(steps) == {"open", "os.scandir"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": b"1"}, {"a": b"2"}),
        ({"a": b"1"}, {"a": b""}),
        ({"a": b"1"}, {"a": b"1", "b": b"1"}),
        ({"a": b"1", "b": b"1"}, {"a": b"1"}),
        ({"d/e": b"1", "d/f": b"1"}, {"d/e": b"1"}),
        ({"d/e": b"1"}, {"d": b"1"}),
        ({"d": b"1"}, {"d/e/f": b"1"}),
        ({"a": b"1"}, {}),
    ],
)
def test_changed_content_replaces_the_old(tmp_path: Path, old: Contents, new: Contents) -> None:
    write(tmp_path, old)
    assert write(tmp_path, new) is True
    assert shown(tmp_path) == through_links(tmp_path) == new
    assert names(tmp_path) == sorted({"..data", "VERSION", *(path.partition("/")[0] for path in new)})


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_are_as_given_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        write_payload(tmp_path, {"a": PayloadFile(b"", 0o400), "d/e": PayloadFile(b"", 0o777)}, now=NOW)
    finally:
        os.umask(old)
    version = (tmp_path / "..data").resolve()
    modes = {name: stat.S_IMODE((version / name).stat().st_mode) for name in ("", "a", "d", "d/e")}
    assert modes == {"": 0o755, "a": 0o400, "d": 0o755, "d/e": 0o777}


@pytest.mark.root
def test_a_file_with_a_user_is_his_and_so_is_its_link(tmp_path: Path) -> None:
    write_payload(tmp_path, {"a": PayloadFile(b"", 0o600, 1234), "b": PayloadFile(b"", 0o600)}, now=NOW)
    users = {name: ((tmp_path / name).stat().st_uid, (tmp_path / name).lstat().st_uid) for name in ("a", "b")}
    assert users == {"a": (1234, 1234), "b": (0, 0)}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_who_owns_it_is_set_before_it_is_shown(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1"})
    seen: list[tuple[Contents, int]] = []
    new = {"a": PayloadFile(b"2", 0o644)}
    write_payload(tmp_path, new, now=NOW, own=lambda: seen.append((shown(tmp_path), len(names(tmp_path)))))
    assert seen == [({"a": b"1"}, 4)]
    write_payload(tmp_path, new, now=NOW, own=lambda: pytest.fail("nothing is new"))


def test_what_cannot_be_written_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path, {"a": b"1"})
    with pytest.raises(OSError, match="No space left"):
        write_payload(tmp_path, {"a": PayloadFile(b"2", 0o644)}, now=NOW, own=fail)
    assert through_links(tmp_path) == {"a": b"1"}
    assert names(tmp_path) == ["..data", "VERSION", "a"]


def test_a_path_that_no_file_may_have_leaves_the_old_content(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1"})
    with pytest.raises(PayloadError, match="must not contain"):
        write(tmp_path, {"a": b"2", "d/../../x": b""})
    assert through_links(tmp_path) == {"a": b"1"}


def test_a_link_that_was_removed_comes_back_with_unchanged_content(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1", "b": b"2"})
    (tmp_path / "a").unlink()
    assert write(tmp_path, {"a": b"1", "b": b"2"}) is False
    assert through_links(tmp_path) == {"a": b"1", "b": b"2"}


def test_what_is_not_the_writers_stays(tmp_path: Path) -> None:
    (tmp_path / "nested").mkdir()  # the mount point of another volume
    (tmp_path / "link").symlink_to("nested")
    (tmp_path / "..other").mkdir()
    for data in (b"1", b"2"):
        write(tmp_path, {"a": data, "nested/x": data})
    assert names(tmp_path) == ["..data", "..other", "VERSION", "a", "link", "nested"]
    assert not (tmp_path / "nested").is_symlink()


def test_a_version_that_somebody_deleted_is_written_anew(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"1"})
    version = (tmp_path / "..data").resolve()
    (version / "a").unlink()
    version.rmdir()
    assert write(tmp_path, {"a": b"1"}) is True
    assert through_links(tmp_path) == {"a": b"1"}


@settings(max_examples=examples(60), deadline=None)
@given(contents_, contents_)
def test_a_reader_at_any_moment_sees_the_old_or_the_new_content(old: Contents, new: Contents) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, old)
        seen: list[Contents] = []

        def look(_: str, __: tuple[object, ...]) -> None:
            seen.append(shown(folder))
            assert seen[-1] in (old, new)
            for path, data in through_links(folder).items():
                # A link may come a moment late or go a moment late; what it shows is of the same version.
                assert data == seen[-1][path]

        with before_each_step(look):
            changed = write(folder, new)
        assert changed == (old != new)
        assert seen == sorted(seen, key=lambda content: content == new and old != new)
        assert shown(folder) == through_links(folder) == new


@settings(max_examples=examples(60), deadline=None)
@given(contents_, contents_, contents_, st.integers(0, 60), st.integers(0, 60))
def test_an_agent_killed_at_any_moment_leaves_old_or_new_and_the_next_repairs_it(
    old: Contents, new: Contents, last: Contents, first_kill: int, second_kill: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, old)
        with killed_before(first_kill):
            write(folder, new)
        after_first = shown(folder)
        assert after_first in (old, new)
        with killed_before(second_kill):
            write(folder, last)
        assert shown(folder) in (after_first, last)
        write(folder, last)
        assert shown(folder) == through_links(folder) == last
        assert names(folder) == sorted({"..data", "VERSION", *(path.partition("/")[0] for path in last)})


def test_every_single_step_of_a_first_write_may_be_the_last(tmp_path: Path) -> None:
    contents = {"a": b"1", "d/e": b"2"}
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        done = False
        with killed_before(step):
            write(folder, contents)
            done = True
        assert shown(folder) in ({}, contents)
        write(folder, contents)
        assert through_links(folder) == contents
        assert names(folder) == ["..data", "VERSION", "a", "d"]
        if done:
            return
    pytest.fail("expected a write to be done in 100 steps")


def test_a_reader_in_another_thread_never_sees_mixed_content(tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in range(5)]
    stop = threading.Event()
    mixed: list[Contents] = []
    versions: set[bytes] = set()

    def read() -> None:
        while not stop.is_set():
            try:
                found = shown(tmp_path)
            except FileNotFoundError:
                continue  # the version was deleted while it was read
            versions.update(found.values())
            if len(found) == len(keys) and len(set(found.values())) != 1:
                mixed.append(found)

    write(tmp_path, dict.fromkeys(keys, b"0"))
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(200):
            write(tmp_path, dict.fromkeys(keys, str(number).encode()))
    finally:
        stop.set()
        reader.join()
    assert mixed == []
    assert len(versions) > 1
