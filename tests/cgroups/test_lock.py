from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trikubelet.cgroups.lock import RootInUseError, hold_root

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from trikubelet.cgroups.lock import hold_root
with hold_root(sys.argv[1], Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_one_tree_has_one_agent(tmp_path: Path) -> None:
    with hold_root("/kubepods", tmp_path):
        with pytest.raises(RootInUseError) as caught, hold_root("/kubepods", tmp_path):
            pass
        assert caught.value.pid == os.getpid()
        assert "cgroupRoot" in str(caught.value)
        with hold_root("/other/kubepods", tmp_path):
            pass
    with hold_root("/kubepods", tmp_path):
        pass


def test_an_agent_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, "/kubepods", tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RootInUseError) as caught, hold_root("/kubepods", tmp_path):
            pass
        assert caught.value.pid == other.pid
    finally:
        other.kill()
        other.communicate()
    with hold_root("/kubepods", tmp_path):
        pass
