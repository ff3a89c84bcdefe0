"""Whatever step of setting up or taking down volumes an agent is killed at, the next agent repairs it.

By day it is killed at every eighth step, at night at each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import trio

from tests.examples import IS_NIGHT
from trikubelet.linux.mount_table import MountTable

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT: Final = Path(__file__).parents[2]
SHARES: Final = (os.cpu_count() or 1) if IS_NIGHT else 1
EACH: Final = 1 if IS_NIGHT else 8
"""Steps from one at which an agent is killed to the next one."""
PODS: Final = ("folders", "content", "csi", *(["all"] if IS_NIGHT else []))
PATIENCE: Final = 900.0
"""Seconds."""


@pytest.mark.root
async def test_a_kill_between_any_two_steps_is_repaired(tmp_path: Path) -> None:
    steps: dict[str, dict[int, str]] = {pod: {} for pod in PODS}

    async def share(first: int) -> None:
        folder = tmp_path / str(first)
        folder.mkdir()
        for pod, seen in (await killed(folder, first)).items():
            steps[pod].update({int(step): what for step, what in seen.items()})

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for first in range(SHARES):
                nursery.start_soon(share, first * EACH)
    for pod, seen in steps.items():
        assert sorted(seen) == list(range(0, EACH * len(seen), EACH)), f"each step of {pod} was one to be killed at"
        assert EACH * len(seen) > 40, f"{pod} was looked at closely"
    kinds = {step.split()[1] for seen in steps.values() for step in seen.values()}
    assert {"os.mkdir", "os.rmdir", "trikubelet.mount"} <= kinds
    assert MountTable.read().below(tmp_path) == []


async def killed(folder: Path, first: int) -> Mapping[str, Mapping[str, str]]:
    """By pod, the steps that agents were killed at. Fails with what was not repaired."""
    command = [sys.executable, "-m", "tests.volumes.killed_mount", str(folder), str(first), str(SHARES * EACH), *PODS]
    ended = await trio.run_process(command, cwd=PROJECT, check=False, capture_stdout=True, stderr=subprocess.STDOUT)
    output = ended.stdout.decode(errors="replace")
    assert ended.returncode == 0, output[-6000:]
    found: Mapping[str, Mapping[str, str]] = json.loads(output)
    return found
