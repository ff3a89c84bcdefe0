"""`trikubelet cp`: as a process with a real tar, and its archives one by one, the hostile ones too."""

from __future__ import annotations

import io
import os
import shlex
import signal
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.conftest import run_command
from tests.cli.streaming_agent import StreamingAgent, run_cli, started_cli, streaming_agent
from trikubelet.cli.failures import CommandError
from trikubelet.cli.file_spec import FileSpec, parse_spec, split_remote
from trikubelet.cli.tar_creation import TarCreation
from trikubelet.cli.tar_extraction import TarExtraction, _stays_inside
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.http.streaming.command import CommandResult, Exited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.http.streaming.remote_command import RemoteCommand


@pytest.fixture
async def agent(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    async with streaming_agent(root_dir) as agent:
        yield agent


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder "in the container": the stand-in runs commands on this machine."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "script").chmod(0o750)
    (folder / "empty").mkdir()
    (folder / "sub").mkdir()
    (folder / "sub" / "data").write_bytes(bytes(range(256)) * 5000)
    (folder / "link").symlink_to("sub/data")
    os.link(folder / "script", folder / "twin")
    (folder / "sub").chmod(0o511)


def described(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = str(path.readlink()).encode() if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = mode, content
    return found


# -- the command -------------------------------------------------------------------------------------------------------


async def test_a_folder_goes_into_a_container_and_comes_back_the_same(
    agent: StreamingAgent, here: Path, there: Path
) -> None:
    fill(here / "src")
    done = await run_cli(agent.root_dir, "cp", here / "src", f"web:{there}")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert described(there / "src") == described(here / "src")
    done = await run_cli(agent.root_dir, "cp", f"web:{there}/src", here / "back")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert described(here / "back") == described(here / "src")
    assert (here / "back" / "script").stat().st_mtime == pytest.approx(
        (there / "src" / "script").stat().st_mtime, abs=1
    )


async def test_a_folder_goes_under_another_name_where_none_is(agent: StreamingAgent, here: Path, there: Path) -> None:
    fill(here / "src")
    done = await run_cli(agent.root_dir, "cp", "--no-preserve", here / "src", f"default/web:{there}/new")
    assert done.returncode == 0, done.stderr
    assert (there / "new" / "sub" / "data").stat().st_size == 1_280_000
    tar = next(request for request in agent.requests if "tar" in request.query.get("command", ()))
    assert tar.query["command"][1:4] == ["--no-same-permissions", "--no-same-owner", "-xmf"]


async def test_a_file_goes_into_folders_or_under_a_name(agent: StreamingAgent, here: Path, there: Path) -> None:
    (here / "-f").write_text("x")
    (there / "-g").write_text("y")
    assert (await run_cli(agent.root_dir, "cp", here / "-f", f"web:{there}/")).returncode == 0
    assert (await run_cli(agent.root_dir, "cp", here / "-f", f"web:{there}/name")).returncode == 0
    assert (await run_cli(agent.root_dir, "cp", f"web:{there}/-g", here)).returncode == 0
    assert (await run_cli(agent.root_dir, "cp", f"web:{there}/-g", here / "new" / "name")).returncode == 0
    assert (there / "-f").read_text() == (there / "name").read_text() == "x"
    assert (here / "-g").read_text() == (here / "new" / "name").read_text() == "y"


async def test_a_copy_into_a_folder_that_is_there_leaves_the_rest_of_it(
    agent: StreamingAgent, here: Path, there: Path
) -> None:
    (there / "a").write_text("new")
    (here / "a").write_text("old")
    (here / "b").write_text("mine")
    assert (await run_cli(agent.root_dir, "cp", f"web:{there}", here)).returncode == 0
    assert ((here / "a").read_text(), (here / "b").read_text()) == ("new", "mine")


async def test_what_cannot_be_copied_is_named_and_the_rest_copied(
    agent: StreamingAgent, here: Path, there: Path
) -> None:
    for folder in (here / "src", there / "src"):
        folder.mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "file").write_text("x")
    done = await run_cli(agent.root_dir, "cp", here / "src", f"web:{there}/in")
    assert done.returncode == 1
    assert done.stderr.decode() == f"warning: left out {here}/src/pipe: only files, folders and links are copied\n"
    (there / "src" / "link").symlink_to("/etc/passwd")
    done = await run_cli(agent.root_dir, "cp", f"web:{there}/src", here / "out")
    assert done.returncode == 1
    assert b"left out ./src/link: a link to /etc/passwd, which may lead out of what is copied" in done.stderr
    assert b"left out ./src/pipe: only files, folders and links are copied" in done.stderr
    assert (there / "in" / "file").read_text() == (here / "out" / "file").read_text() == "x"
    assert sorted(path.name for path in (here / "out").iterdir()) == ["file"]


async def test_the_containers_tar_tells_what_is_wrong(agent: StreamingAgent, here: Path, there: Path) -> None:
    done = await run_cli(agent.root_dir, "cp", f"web:{there}/missing", here / "x")
    assert done.returncode == 2
    assert b"missing: Cannot stat" in done.stderr
    assert done.stderr.endswith(b"Error: tar in the container terminated with exit code 2\n")
    assert not (here / "x").exists()
    (here / "file").write_bytes(bytes(10_000_000))
    done = await run_cli(agent.root_dir, "cp", here / "file", f"web:{there}/missing/x")
    assert done.returncode == 2
    assert done.stderr.endswith(b"Error: tar in the container terminated with exit code 2\n")


async def test_a_container_without_tar_is_said(agent: StreamingAgent, here: Path) -> None:
    from trikubelet.http.streaming.command import Failed

    async def missing(_: RemoteCommand, words: list[str]) -> CommandResult:
        return Failed(f'exec: "{words[0]}": executable file not found in $PATH')

    agent.commands["tar"] = missing
    done = await run_cli(agent.root_dir, "cp", "web:/x", here / "x")
    assert done.returncode == 127
    assert done.stderr.startswith(b"Error: cp needs tar in the container: ")


async def test_a_hostile_container_writes_nothing_outside(agent: StreamingAgent, here: Path) -> None:
    (here / "keep").mkdir()

    async def climb(command: RemoteCommand, _: list[str]) -> CommandResult:
        assert command.stdout is not None
        await command.stdout.send_all(archive(folder("d"), file("d/../../evil", b"x")))
        return Exited(0)

    agent.commands["tar"] = climb
    done = await run_cli(agent.root_dir, "cp", "web:/d", here / "keep" / "d")
    assert done.returncode == 1
    assert b"tar contents corrupted: entry 'd/../../evil': its name leads out of the copied folder" in done.stderr
    assert [path.name for path in here.rglob("*")] == ["keep", "d"]


async def test_ctrl_c_leaves_no_half_file(agent: StreamingAgent, here: Path) -> None:
    sent = trio.Event()

    async def stall(command: RemoteCommand, _: list[str]) -> CommandResult:
        assert command.stdout is not None
        whole = archive(folder("d"), file("d/big", bytes(2**20)))
        await command.stdout.send_all(whole[: 2**19])
        sent.set()
        await trio.sleep_forever()
        raise AssertionError

    agent.commands["tar"] = stall
    async with started_cli(agent.root_dir, "cp", "web:/d", str(here / "d")) as process:
        await sent.wait()
        while not (here / "d").exists() or not list((here / "d").iterdir()):
            await trio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert list((here / "d").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a:b", "c:d"], "one of src or dest must be a local file specification"),
        (["a", "b"], "one of src or dest must be a remote file specification"),
        (["web:", "b"], "filepath can not be empty"),
        ([":x", "b"], "filespec must match the canonical format"),
    ],
)
def test_what_is_no_copy_is_refused(words: list[str], why: str, root_dir: Path) -> None:
    outcome = run_command("cp", *words, "--root-dir", root_dir)
    assert outcome.code == 1
    assert why in outcome.err


async def test_a_local_file_must_be_there(agent: StreamingAgent, here: Path) -> None:
    done = await run_cli(agent.root_dir, "cp", here / "none", "web:/tmp/x")
    assert done.stderr.endswith(b"/none doesn't exist in local filesystem\n")


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("web:/tmp/a", FileSpec("/tmp/a", "web")),
        ("ns/web-0.x:rel:ative", FileSpec("rel:ative", "web-0.x", "ns")),
        ("./a:b", FileSpec("./a:b")),
        ("/a:b", FileSpec("/a:b")),
        ("a/b/c:d", FileSpec("a/b/c:d")),
        ("file", FileSpec("file")),
    ],
)
def test_a_pod_is_what_stands_before_a_colon(text: str, spec: FileSpec) -> None:
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("/tmp/a", ("/tmp", "./a")),
        ("/a/", ("/", "./a")),
        ("a", (".", "./a")),
        ("-C", (".", "./-C")),
        ("/", ("/", ".")),
        (".", (".", ".")),
        ("a/..", ("a/..", ".")),
    ],
)
def test_tar_is_told_a_folder_and_a_name_in_it(path: str, split: tuple[str, str]) -> None:
    assert split_remote(path) == split


# -- archives ----------------------------------------------------------------------------------------------------------


def entry(
    name: str, kind: bytes, *, link: str = "", mode: int = 0o644, data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size, info.mtime = kind, link, mode, len(data), 1_000_000
    return info, data


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.DIRTYPE, mode=mode)


def file(name: str, data: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.REGTYPE, data=data, mode=mode)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.SYMTYPE, link=target)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def extract(destination: Path, *members: tuple[tarfile.TarInfo, bytes]) -> list[str]:
    """What was left out, of an archive of `d`."""
    warnings: list[str] = []
    extraction = TarExtraction(destination, "d", warnings.append)
    extraction.run(io.BytesIO(archive(*members)))
    assert extraction.left_out == len(warnings)
    return warnings


@pytest.mark.parametrize("name", ["/d/x", "d/../x", "../x", "x", "dd/x", "./d/./../../x", "d/a/../../../x"])
def test_an_archive_with_a_name_that_leads_elsewhere_is_refused(here: Path, name: str) -> None:
    with pytest.raises(ArchiveError):
        extract(here / "to" / "d", folder("d"), file(name, b"x"))
    assert not [path for path in here.rglob("*") if path.is_file()]


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "sub/../../x", "sub/.."])
def test_links_that_may_lead_out_are_left_out(here: Path, target: str) -> None:
    [warning] = extract(here / "d", folder("d"), symlink("d/link", target))
    assert warning.startswith(f"d/link: a link to {target}")
    assert not (here / "d" / "link").is_symlink()


def test_links_inside_are_kept_but_never_followed(here: Path) -> None:
    members = [folder("d"), folder("d/a"), symlink("d/b", "a"), symlink("d/a/up", "../b"), file("d/b/x", b"x")]
    [warning] = extract(here / "d", *members)
    assert warning.startswith(f"d/b/x: {here}/d/b is no folder, or a link, which is not followed")
    assert ((here / "d" / "b").readlink(), (here / "d" / "a" / "up").readlink()) == (Path("a"), Path("../b"))
    assert [path.name for path in (here / "d" / "a").iterdir()] == ["up"]


def test_links_that_were_there_before_are_not_followed_either(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "d").mkdir()
    (here / "d" / "sub").symlink_to("../elsewhere")
    (here / "d" / "file").symlink_to("../victim")
    (here / "victim").write_text("untouched")
    warnings = extract(here / "d", folder("d"), folder("d/sub", 0), file("d/sub/x", b"x"), file("d/file", b"new"))
    assert [warning.partition(":")[0] for warning in warnings] == ["d/sub", "d/sub/x"]
    assert list((here / "elsewhere").iterdir()) == []
    assert ((here / "victim").read_text(), (here / "d" / "file").read_text()) == ("untouched", "new")


def test_hard_links_are_to_what_was_copied(here: Path) -> None:
    (here / "secret").write_text("x")
    hard = [entry("d/twin", tarfile.LNKTYPE, link="d/a"), entry("d/out", tarfile.LNKTYPE, link="/etc/passwd")]
    hard += [entry("d/up", tarfile.LNKTYPE, link="d/../secret"), entry("d/late", tarfile.LNKTYPE, link="d/z")]
    warnings = extract(here / "d", folder("d"), file("d/a", b"a"), *hard, file("d/z", b"z"))
    assert [warning.partition(":")[0] for warning in warnings] == ["d/out", "d/up", "d/late"]
    assert (here / "d" / "twin").stat().st_ino == (here / "d" / "a").stat().st_ino


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_special_files_are_left_out(here: Path, kind: bytes) -> None:
    [warning] = extract(here / "d", folder("d"), entry("d/x", kind), file("d/y"))
    assert warning == "d/x: only files, folders and links are copied"
    assert [path.name for path in (here / "d").iterdir()] == ["y"]


def test_permissions_and_times_are_kept_but_for_those_that_run_files_as_others(here: Path) -> None:
    extract(
        here / "d", folder("d", 0o700), folder("d/ro", 0o555), file("d/ro/x", b"x", 0o6751), file("d/w", b"", 0o666)
    )
    modes = {name: (here / "d" / name).stat().st_mode & 0o7777 for name in (".", "ro", "ro/x", "w")}
    assert modes == {".": 0o700, "ro": 0o555, "ro/x": 0o751, "w": 0o666}
    assert (here / "d" / "ro").stat().st_mtime == (here / "d" / "ro" / "x").stat().st_mtime == 1_000_000


def test_what_is_there_and_no_file_is_not_replaced(here: Path) -> None:
    (here / "d" / "x").mkdir(parents=True)
    os.mkfifo(here / "d" / "y")
    warnings = extract(here / "d", folder("d"), file("d/x", b"x"), symlink("d/y", "x"))
    assert [warning.partition(" exists")[0] for warning in warnings] == [f"d/x: {here}/d/x", f"d/y: {here}/d/y"]


def test_a_single_file_goes_where_a_link_of_the_users_leads(here: Path) -> None:
    (here / "real").write_text("old")
    (here / "link").symlink_to("real")
    assert extract(here / "link", file("d", b"new")) == []
    assert ((here / "real").read_text(), (here / "link").is_symlink()) == ("new", True)
    with pytest.raises(ArchiveError):
        extract(here / "link", file("d", b"a"), file("d/x", b"b"))


@pytest.mark.parametrize("cut", [100, 1500])
def test_an_archive_that_is_cut_short_leaves_no_half_file(here: Path, cut: int) -> None:
    whole = archive(folder("d"), file("d/x", bytes(2000)))
    with pytest.raises(ArchiveError):
        TarExtraction(here / "d", "d", print).run(io.BytesIO(whole[:cut]))
    assert not [path for path in here.rglob("*") if path.is_file()]


def test_an_extended_header_is_no_way_to_fill_the_memory(here: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2**40
    with pytest.raises(ArchiveError, match="header"):
        TarExtraction(here / "d", "d", print).run(io.BytesIO(header.tobuf() + bytes(2**20)))


@pytest.mark.parametrize(
    ("target", "depth", "inside"),
    [
        ("a", 0, True),
        ("../a", 1, True),
        ("../../a", 1, False),
        ("./../a", 1, True),
        ("a/../b", 5, False),
        ("/a", 9, False),
    ],
)
def test_a_link_may_climb_as_high_as_the_root(target: str, depth: int, inside: bool) -> None:
    assert _stays_inside(target, depth=depth) is inside


def test_an_archive_of_ours_is_read_by_tar(here: Path) -> None:
    fill(here / "src")
    (here / "src" / ("long" * 50)).write_text("x")
    with (here / "a.tar").open("wb") as out:
        TarCreation(here / "src", "name", print).run(out)
    assert os.system(f"cd {shlex.quote(str(here))} && tar -xf a.tar") == 0
    assert described(here / "name") == described(here / "src")


def test_a_file_that_shrinks_while_it_is_copied_is_said(here: Path) -> None:
    (here / "log").write_bytes(bytes(5_000_000))

    class Stream(io.BytesIO):
        def write(self, data: object, /) -> int:
            os.truncate(here / "log", 10)
            return 1

    with pytest.raises(CommandError, match="became shorter while it was copied"):
        TarCreation(here / "log", "log", print).run(Stream())
