"""Running the node's programs for volumes: what they print is bounded, and they do not outlive the call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.kinds.programs import MOST_OUTPUT, run_program

if TYPE_CHECKING:
    from pathlib import Path


def script(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    program = folder / "tool"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return program.name


async def test_a_program_that_prints_without_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = script(tmp_path, f"echo $$ > {tmp_path}/pid; while :; do echo yes; done", monkeypatch)
    with pytest.raises(UncertainVolumeError, match=f"it was killed, since it printed more than {MOST_OUTPUT} bytes"):
        await run_program("data", tool, [], package="tools", deadline=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_program_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = script(tmp_path, "sleep 1000", monkeypatch)
    with pytest.raises(UncertainVolumeError, match=r"expected tool to end within 0 s, it did not: tool one two"):
        await run_program("data", tool, ["one", "two"], package="tools", deadline=0.1)


async def test_a_secret_is_in_no_output_and_in_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = script(tmp_path, 'echo "bad password $2"; echo "really: $2" >&2; exit 3', monkeypatch)
    ended = await run_program("data", tool, ["-v", "geheim"], package="tools", deadline=60, secret="geheim")
    assert (ended.code, ended.output) == (3, "bad password ***\nreally: ***")
    script(tmp_path, "sleep 1000", monkeypatch)
    with pytest.raises(UncertainVolumeError) as late:
        await run_program("data", tool, ["-v", "geheim"], package="tools", deadline=0.1, secret="geheim")
    assert late.value.problem.endswith("tool -v ***")


async def test_an_argument_that_none_can_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = script(tmp_path, "", monkeypatch)
    with pytest.raises(VolumeError, match="embedded null byte"):
        await run_program("data", tool, ["a\0b"], package="tools", deadline=60)
