"""Programs of somebody else's: shell scripts that do what plugins must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from trikubelet.linux.programs import Finished, TooMuchOutputError, run_program


async def run(script: str, *, stdin: bytes = b"", most: int = 1000) -> Finished:
    return await run_program(["sh", "-c", script], env=os.environ, stdin=stdin, most_stdout=most, most_stderr=4)


async def until_gone(pid: int) -> None:
    """A zombie is gone: its parent may be anybody."""
    with trio.fail_after(60):
        while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            await trio.sleep(0.01)


async def test_what_a_program_says_and_how_it_ends() -> None:
    assert await run("cat; echo problem >&2; exit 3", stdin=b"asked") == Finished(3, b"asked", b"lem\n")
    assert (await run("kill -9 $$")).ending == "signal 9"
    assert (await run("exit 2")).ending == "exit status 2"


async def test_without_input_it_has_none() -> None:
    assert (await run("readlink /proc/self/fd/0")).stdout == b"/dev/null\n"


async def test_input_need_not_be_read() -> None:
    assert (await run("exec 0<&-; echo done", stdin=b"x" * 2**20)).stdout == b"done\n"


async def test_output_may_be_as_long_as_allowed() -> None:
    assert len((await run("head -c 1000 /dev/zero")).stdout) == 1000
    with pytest.raises(TooMuchOutputError, match="more than 1000 bytes"):
        await run("head -c 1001 /dev/zero")


async def test_one_that_prints_without_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    with pytest.raises(TooMuchOutputError):
        await run(f"sleep 600 & echo $! > {tmp_path}/pid; exec cat /dev/zero")
    await until_gone(int((tmp_path / "pid").read_text()))


async def test_cancelled_it_is_killed_with_what_it_started(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, f"sleep 600 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait")
        with trio.fail_after(60):
            while not (tmp_path / "pid").exists():
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    await until_gone(int((tmp_path / "pid").read_text()))


async def test_one_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program(["/no/such"], env={}, most_stdout=1, most_stderr=1)
