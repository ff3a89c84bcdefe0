"""Files of variables: their format, and reading them from volumes that containers own."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from tests.descriptors import open_descriptors
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.runtime.containers.environment import EnvFileError, env_file_value
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.pod_files import PodFiles

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("   A='a'\n\t\tB='b'\nC='c'\n", "B", "b"),
        ("# comment\n\n \t\nA='foo'\n   # another\n\nB='bar'\n", "B", "bar"),
        ("A='foo'\nB='bar'\n", "C", ""),
        ("", "A", ""),
        ("A='foo#notcomment'\nB='bar'\n", "A", "foo#notcomment"),
        ("A='   foo bar   '\n", "A", "   foo bar   "),
        ("A='foo'\nB=''\nC='bar'\n", "B", ""),
        ("A='foo=bar=baz'\n", "A", "foo=bar=baz"),
        ("A='foo'\nB='bar' # comment\n", "B", "bar"),
        ("A='foo'#comment\n", "A", "foo"),
        ("A='foo$BAR-${HOME}_$'\nB='bar'", "A", "foo$BAR-${HOME}_$"),
        ("A= 'foo'\nB='bar'\n", "A", ""),
        ("A= 'foo'\nB='bar'\n", "B", "bar"),
        (r"A='line1\nline2\tline3'" + "\n", "A", r"line1\nline2\tline3"),
        ("A='value with \"nested\" quotes'\n", "A", 'value with "nested" quotes'),
        ("A='中文 Español 🌍'\n", "A", "中文 Español 🌍"),
        ("A='one\n  two\n\n # three'\nB='b'\n", "A", "one\n  two\n\n # three"),
        ("A='one\n  two\n\n # three'\nB='b'\n", "B", "b"),
        ("A='one\r\ntwo'\r\n", "A", "one\ntwo"),
        ("A='1'\nA='2'\n", "A", "1"),
        ("A='1'\nnonsense after it\n", "A", "1"),
    ],
)
def test_a_value_is_what_is_between_the_quotes(text: str, name: str, value: str) -> None:
    assert env_file_value(text, name) == value


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("A='foo'\nINVALID\nB='bar'\n", 2, "missing '='"),
        ("='foo'\nB='bar'\n", 1, "empty variable name"),
        ("  ='foo'\n", 1, "empty variable name"),
        ("A ='foo'\n", 1, "whitespace before '=' is not allowed"),
        ("A = 'foo'\nB=  'b'\n", 1, "whitespace before '=' is not allowed"),
        ("A='foo'\nB=bar\n", 2, "value must be enclosed in single quotes"),
        ("A=\n", 1, "value must be enclosed in single quotes"),
        ('B="bar"\n', 1, "value must be enclosed in single quotes"),
        ("B='foo''bar'", 1, "unexpected content after closing quote"),
        ("A='foo'\nB='bar\nC='baz'\n", 3, "unexpected content after closing quote"),
        (r"B='with \'nested\' quotes'", 1, "unexpected content after closing quote"),
        ("A='foo'\nB='bar\nbaz\n", 2, "unclosed single quote"),
        ("B='", 1, "unclosed single quote"),
    ],
)
def test_anything_else_is_refused_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(EnvFileError) as refused:
        env_file_value(text, "B")
    assert (refused.value.line, refused.value.problem) == (line, problem)
    assert str(refused.value) == f"invalid environment variable format at line {line}: {problem}"


# In a volume


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("of the node")
    inside = tmp_path / "volume"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "env").write_text("A='1'")
    return inside


async def read(volume: Path, path: str, limit: int = 100) -> bytes:
    files = PodFiles(RuntimeOptions(root_dir=volume, machine=MachineFacts(1)))
    return await files.read_in_volume(volume, path, limit)


@pytest.mark.parametrize("path", ["deep/env", "deep/../deep/./env", "link", "folder/env", "deep/up/deep/env", "twice"])
async def test_a_file_is_found_inside_its_volume(volume: Path, path: str) -> None:
    (volume / "link").symlink_to("deep/env")
    (volume / "folder").symlink_to("deep")
    (volume / "deep" / "up").symlink_to("..")
    (volume / "twice").symlink_to("folder/../link")
    assert await read(volume, path) == b"A='1'"


@pytest.mark.parametrize(
    "path", ["../secret", "deep/../../secret", "/etc/hostname", "out", "absolute", "deep/far/secret"]
)
async def test_nothing_leads_out_of_a_volume(volume: Path, path: str) -> None:
    (volume / "out").symlink_to("../secret")
    (volume / "absolute").symlink_to(volume.parent / "secret")
    (volume / "deep" / "far").symlink_to("../..")
    with pytest.raises(ValueError, match="leads out of its volume"):
        await read(volume, path)


async def test_links_in_a_circle_are_given_up(volume: Path) -> None:
    (volume / "a").symlink_to("b")
    (volume / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        await read(volume, "a")


async def test_what_is_no_file_is_not_opened(volume: Path) -> None:
    os.mkfifo(volume / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(volume / "socket"))
        for path in ("pipe", "socket", "deep", "."):
            with pytest.raises(OSError, match="no regular file"):
                await read(volume, path)


async def test_a_file_that_is_missing_or_too_large_is_an_error(volume: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await read(volume, "deep/nothing")
    assert not (volume / "deep" / "nothing").exists()
    assert await read(volume, "deep/env", limit=5) == b"A='1'"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        await read(volume, "deep/env", limit=4)


async def test_no_descriptor_is_left_open(volume: Path) -> None:
    before = open_descriptors()
    for path in ("deep/env", "deep/nothing", "../secret", "deep"):
        try:
            await read(volume, path)
        except (OSError, ValueError):
            continue
    assert open_descriptors() == before
